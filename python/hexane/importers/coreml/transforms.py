"""Core ML's feature transforms and linear models, which converters write for scikit-learn.

The transforms follow Apple's definitions, such as `Scaler.proto`, and compute in fp64. A pipeline may run transforms
before or after a network.
"""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np

from hexane.dtypes import DTYPES, FP64, INT32, INT64
from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.importers.coreml.description import DTYPES_OF, Feature
from hexane.importers.coreml.package import transform_of
from hexane.importers.coreml.program import Block, Declared, Operation, Program
from hexane.importers.coreml.translate import Item, Translator
from hexane.ops.compose import Builder, cast
from hexane.ops.fold import Folder

OPSET = 11  # the first iOS version with feature transforms.
LABEL, PROBABILITIES = "classLabel", "classProbability"  # The outputs' names if the description gives none.
L1, L2 = 1, 2  # Values of Normalizer.NormType.
LOGIT, PROBIT = 1, 2  # Values of GLMRegressor.PostEvaluationTransform; a classifier's enum starts at Logit.
ONE_VS_REST = 1  # A value of GLMClassifier.ClassEncoding.
IGNORE_UNKNOWN = 1  # A value of OneHotEncoder.HandleUnknown.


def read_transform(spec: Any) -> Program:
    """Returns the model as a program of one operation."""
    kind = transform_of(spec)
    names = tuple(port.name for port in spec.description.input)
    given = tuple(c.inputColumn for c in spec.featureVectorizer.inputList) if kind == "featureVectorizer" else names
    outputs = tuple(port.name for port in spec.description.output)
    operation = Operation(kind, {"x": given}, tuple((name, Declared(None)) for name in outputs), kind)
    return Program("main", OPSET, Block(tuple((name, Declared(None)) for name in names), (operation,), outputs))


def transform_labels(spec: Any) -> tuple[str, ...]:
    if not spec.HasField("glmClassifier"):
        return ()
    model = spec.glmClassifier
    return tuple(model.stringClassLabels.vector) or tuple(map(str, model.int64ClassLabels.vector))


class TransformTranslator(Translator):
    def __init__(self, program: Program, features: Mapping[str, Feature], spec: Any) -> None:
        super().__init__(program, features)
        self.spec = spec

    def _operation(self, operation: Operation) -> None:
        b: Builder = Folder(operation.label)
        given = [self.item(str(name)) for name in operation.inputs["x"]]
        names = [name for name, _ in operation.results]
        params = getattr(self.spec, operation.op)
        if operation.op == "identity":
            results: Sequence[Item] = given
        elif operation.op == "glmClassifier":
            names, results = self._names_of_classes(), _classified(b, params, _one(given))
        elif operation.op == "featureVectorizer":
            results = [_vectorized(b, params, given)]
        else:
            results = [_TRANSFORMS[operation.op](b, params, _one(given))]
        if len(names) != len(results):
            raise Error(f"got {len(names)} outputs, need {len(results)}")
        for name, value in zip(names, results, strict=True):
            self.values[name] = self._described(b, name, value)

    def _names_of_classes(self) -> list[str]:
        described = self.spec.description
        return [described.predictedFeatureName or LABEL, described.predictedProbabilitiesName or PROBABILITIES]

    def _described(self, b: Builder, name: str, value: Value) -> Value:
        """Returns the value in the dtype of the output's description. Raises Error for floats that are described as
        integers, because they may not be whole."""
        port = next((port for port in self.spec.description.output if port.name == name), None)
        if port is None or not port.type.HasField("multiArrayType"):
            return value
        dtype = DTYPES[DTYPES_OF.get(port.type.multiArrayType.dataType, "fp64")]
        if dtype.kind != "float" and value.dtype.kind == "float":
            raise Error(f"got the output {name!r} of {dtype}, need floats")
        return cast(b, value, dtype)


def _one(given: Sequence[Value]) -> Value:
    if len(given) != 1:
        raise Error(f"got {len(given)} inputs, need one array or number")
    return given[0]


def _numbers(x: Value, values: Sequence[float], what: str) -> Array:
    """Returns one number for all elements of x, or one for each."""
    if len(values) not in (1, x.type.size):
        raise Error(f"{what}: got {len(values)} numbers, need 1 or {x.type.size}")
    array = np.array(values, np.float64)
    return array.reshape(x.shape) if len(values) == x.type.size else array.reshape(())


def _scaler(b: Builder, p: Any, x: Value) -> Value:
    """Returns scaleValue * (x + shiftValue)."""
    y = cast(b, x, FP64)
    y = b.add(y, _numbers(x, p.shiftValue, "shiftValue")) if p.shiftValue else y
    return b.mul(y, _numbers(x, p.scaleValue, "scaleValue")) if p.scaleValue else y


def _imputer(b: Builder, p: Any, x: Value) -> Value:
    """Replaces NaN, or the number that marks a missing value."""
    imputed = next((list(getattr(p, name).vector) for name in ("imputedDoubleArray", "imputedInt64Array")
                    if p.HasField(name)), None)  # fmt: skip
    if imputed is None:
        imputed = [getattr(p, name) for name in ("imputedDoubleValue", "imputedInt64Value") if p.HasField(name)]
    marks = [getattr(p, name) for name in ("replaceDoubleValue", "replaceInt64Value") if p.HasField(name)]
    if not imputed or not marks:
        raise Error("got texts, dictionaries or nothing to replace, need numbers and the number that stands for none")
    y = cast(b, x, FP64)
    missing = b.is_nan(y) if np.isnan(marks[0]) else b.equal(y, np.array(marks[0], np.float64))
    values = np.broadcast_to(_numbers(x, imputed, "imputed values"), x.shape)
    return b.select(missing, np.ascontiguousarray(values), y)


def _normalizer(b: Builder, p: Any, x: Value) -> Value:
    """Divides x by its largest element or by its norm. An x of zeros stays 0."""
    y = cast(b, x, FP64)
    axes = tuple(range(len(x.shape)))
    if p.normType == L1:
        norm = b.reduce_sum(b.abs(y), axes=axes, keep_dims=True)
    elif p.normType == L2:
        norm = b.sqrt(b.reduce_sum(b.mul(y, y), axes=axes, keep_dims=True))
    else:
        norm = b.reduce_max(y, axes=axes, keep_dims=True)
    one = np.ones((), np.float64)
    return b.real_div(y, b.select(b.equal(norm, np.zeros((), np.float64)), one, norm))


def _one_hot(b: Builder, p: Any, x: Value) -> Value:
    """Returns a one-hot vector of the category. An unknown category is an error at run time, or gives zeros if the
    model says so."""
    categories = np.array(p.int64Categories.vector, np.int64)
    if p.outputSparse or not categories.size:
        raise Error("got categories that are texts, or a dictionary as its result, need integers and an array")
    if x.type.size != 1:
        raise Error(f"got {x.type}, need one number")
    if np.abs(categories).max() >= 2**31:
        raise Error(f"got the category {categories[np.abs(categories).argmax()]}, need one of int32")
    same = b.equal(cast(b, b.reshape(x, shape=(1,)), FP64), categories.astype(np.float64))
    if p.handleUnknown == IGNORE_UNKNOWN:
        return cast(b, same, FP64)
    numbers = np.arange(categories.size, dtype=np.int32)
    index = b.reduce_min(b.select(same, numbers, np.array(categories.size, np.int32)), axes=(0,), keep_dims=True)
    # An unknown category gets an index out of range, which makes gather fail.
    return b.reshape(b.gather(b.const(np.eye(categories.size)), index, axis=0), shape=(categories.size,))


def _vectorized(b: Builder, p: Any, given: Sequence[Value]) -> Value:
    parts = []
    for column, x in zip(p.inputList, given, strict=True):
        if x.type.size != column.inputDimensions:
            raise Error(f"{column.inputColumn!r}: got {x.type}, need {column.inputDimensions} numbers")
        parts.append(b.reshape(cast(b, x, FP64), shape=(x.type.size,)))
    return b.concat(*parts, axis=0)


def _extracted(b: Builder, p: Any, x: Value) -> Value:
    """Returns the elements of the flattened x at these indices."""
    if not p.extractIndex or max(p.extractIndex) >= x.type.size:
        raise Error(f"extractIndex: got {list(p.extractIndex)}, need indices below {x.type.size}")
    flat = b.reshape(x, shape=(x.type.size,))
    picked = b.gather(flat, np.array(p.extractIndex, np.int32), axis=0)
    return picked if x.dtype in (INT32, INT64) else cast(b, picked, FP64)


def _scores(b: Builder, p: Any, x: Value) -> Value:
    """Returns the matrix product of the weights and x, plus the offset: one number for each row of the weights."""
    rows = [list(row.value) for row in p.weights]
    if not rows or any(len(row) != x.type.size for row in rows) or len(p.offset) not in (0, len(rows)):
        counts = f"{[len(row) for row in rows]} weights and {len(p.offset)} offsets"
        raise Error(f"got {counts} for {x.type}, need {x.type.size} for each result, and one offset")
    flat = b.reshape(cast(b, x, FP64), shape=(x.type.size, 1))
    y = b.reshape(b.matmul(b.const(np.array(rows, np.float64)), flat), shape=(len(rows),))
    return b.add(y, np.array(p.offset, np.float64)) if p.offset else y


def _evaluated(b: Builder, y: Value, transform: int) -> Value:
    if transform == LOGIT:
        return b.sigmoid(y)
    if transform == PROBIT:
        return b.mul(b.add(b.erf(b.mul(y, 1 / sqrt(2))), 1.0), 0.5)
    return y


def _regressed(b: Builder, p: Any, x: Value) -> Value:
    return _evaluated(b, _scores(b, p, x), p.postEvaluationTransform)


def _classified(b: Builder, p: Any, x: Value) -> list[Value]:
    """Returns the best class and the probabilities, whose sum is 1. A class that is a text is returned as its index."""
    numbers = np.array(p.int64ClassLabels.vector, np.int64)
    count = len(p.stringClassLabels.vector) or numbers.size
    scores = _evaluated(b, _scores(b, p, x), p.postEvaluationTransform + LOGIT)
    if p.classEncoding != ONE_VS_REST or scores.shape[0] != (count if count > 2 else 1):
        got = "one class against the rest" if p.classEncoding == ONE_VS_REST else "a class of reference"
        raise Error(f"got {scores.shape[0]} scores for {count} classes by {got}, need one against the rest")
    if count == 2:
        probabilities = b.concat(b.sub(np.ones(1), scores), scores, axis=0)
    else:
        probabilities = b.real_div(scores, b.reduce_sum(scores, axes=(0,), keep_dims=True))
    best = b.reduce_argmax(probabilities, axis=0, keep_dims=True, dtype="int32")
    return [b.gather(b.const(numbers), best, axis=0) if numbers.size else best, probabilities]


_TRANSFORMS: Mapping[str, Callable[[Builder, Any, Value], Value]] = {
    "scaler": _scaler, "imputer": _imputer, "normalizer": _normalizer, "oneHotEncoder": _one_hot,
    "arrayFeatureExtractor": _extracted, "glmRegressor": _regressed,
}  # fmt: skip

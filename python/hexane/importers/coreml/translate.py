"""Translates a function of an ML program to a graph, one operation after the other. Shapes become constants. Blocks
are inlined, or become the bodies of loops and branches that depend on data."""

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from hexane.dtypes import DTYPES, FP32, DType
from hexane.errors import Error, UnsupportedError
from hexane.graph import Array, Graph, Port, Value, constant, tensor_type, unique
from hexane.graph.names import check_name
from hexane.importers.bodies import Around, Body
from hexane.importers.coreml import ops as _ops
from hexane.importers.coreml.description import Feature
from hexane.importers.coreml.known import ComputedError, known_array
from hexane.importers.coreml.program import Block, Constant, Declared, Operation, Program
from hexane.importers.coreml.registry import HANDLERS, Context, Part
from hexane.importers.likely_shapes import shape_option
from hexane.importers.signature import SpecialisationNeeded
from hexane.mil.arguments import Parameter, parameters
from hexane.mil.forms import READ
from hexane.ops.compose import Builder, cast
from hexane.ops.encodings import is_encoded
from hexane.ops.fold import Folder, fold_node
from hexane.ops.rewriter import Rewriter
from hexane.ops.valid_lengths import with_lengths

assert _ops is not None  # The import registers the ops.
Item = Any  # An Item is a Value, a text, or a list of Items.
UNFIT = (AssertionError, AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError, ZeroDivisionError)
REFUSED = {
    "custom_layer": "a layer of the author's own code, need the ops that it stands for",
    "conv_quantized": "the quantised convolution of early converters, need one with constexpr weights",
    **{
        f"random_{kind}": "random numbers, whose generator in Core ML is not known, need them as an input"
        for kind in ("normal", "uniform", "bernoulli", "categorical")
    },
}
# Ops whose other tensor operands may have another float dtype than x, from iOS17 on.
MIXED = (
    "conv", "conv_transpose", "linear", "batch_norm", "instance_norm", "layer_norm", "prelu", "softplus_parametric",
    "matmul",
)  # fmt: skip
_SCALARS = {
    "int": (("int", "uint", "bool"), int),
    "bool": (("bool", "int", "uint"), bool),
    "float": (("float", "int", "uint"), float),
    "factor": (("float", "int", "uint"), float),
}


class Translator:
    """Translates one function. values: by name, with the names of inner blocks first. states: the newest contents of
    each state."""

    def __init__(self, program: Program, features: Mapping[str, Feature]) -> None:
        self.program, self.features = program, features
        self.values: MutableMapping[str, Item] = {}
        self.states: dict[str, Value] = {}
        self.leaves: dict[str, Value] = {}
        self.constexprs: set[Value] = set()
        self.parts: dict[Value, Part] = {}  # updated tensor -> the part that is new
        self.problems: dict[str, list[str]] = {}
        self.needed: dict[str, None] = {}  # the model's inputs whose values decide shapes

    def graph(self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> Graph:
        """shapes: of the inputs; an optional input without a shape is its default. values: of the inputs that decide
        shapes, which become constants.

        Raises SpecialisationNeeded for inputs whose shapes or values must be known, UnsupportedError that lists all
        kinds of unsupported ops, and Error for shapes that do not fit.
        """
        inputs = self.inputs(shapes, values)
        self.block(self.program.block)
        raise_problems(self.needed, self.problems)
        ports = [Port(name, value) for name, value in self.outputs().items()]
        for port in ports:
            check_name("output", port.name)
        updates = self.updates()
        if not ports and not updates:
            raise Error(f"[coreml] got the function {self.program.name!r} without outputs, need at least one")
        return with_lengths(Graph(tuple(inputs), tuple(ports), name=self.program.name, updates=updates))

    def inputs(
        self,
        shapes: Mapping[str, Sequence[int]],
        values: Mapping[str, Array],
        given: Mapping[str, Value] = MappingProxyType({}),
    ) -> list[Value]:
        """Reads the inputs and the states, and returns the graph inputs. given: inputs that another model of a pipeline
        computes, which are no graph inputs."""
        inputs: list[Value] = []
        require_shapes({n: f for n, f in self.features.items() if n not in given}, shapes, values)
        for name, kind in self.program.block.inputs:
            if kind.is_state:
                self._state(name, kind)
                continue
            feature = self.features.get(name) or Feature.of(name, kind)
            value = given[name] if name in given else port_value(name, feature, shapes, values)
            if name not in given and value.node.op == "input":
                inputs.append(value)
            self.values[name] = feature.read(Folder(name), value, kind)
        return inputs

    def outputs(self) -> dict[str, Value]:
        """Returns the outputs that are tensors."""
        outputs: dict[str, Value] = {}
        for name in self.program.block.outputs:
            item = self.output(name)
            if not isinstance(item, Value):
                if item is None or isinstance(item, list):
                    raise Error(f"[coreml] got the output {name!r}, need a tensor that the program computes")
                continue  # a class label that is a text is no output.
            # Core ML returns a number as an array of one element.
            outputs[name] = item if item.shape else Folder(name).reshape(item, shape=(1,))
        return outputs

    def updates(self) -> tuple[Value, ...]:
        return tuple(value for name, value in self.states.items() if value is not self.leaves[name])

    def output(self, name: str) -> Item | None:
        """Returns the value of an output, or None if the program does not compute it."""
        return self.values.get(name)

    def _state(self, name: str, kind: Declared) -> None:
        if kind.dims is None or None in kind.dims or kind.dtype is None:
            raise Error(f"[coreml] got the state {name!r} of {kind}, need a known shape")
        shape = [d for d in kind.dims if d is not None] or [1]
        leaf = unique("state", name, tensor_type(kind.dtype, shape), np.zeros(shape, kind.dtype.numpy), (name,))
        self.states[name] = self.leaves[name] = leaf
        self.values[name] = f"state {name}"

    def stands_for(self, old: Value, new: Value) -> None:
        """Lets later ops read the new value by the names of the old one."""
        for name, item in [*self.values.items()]:
            if item == old:
                self.values[name] = new

    # ---- blocks ----

    def block(self, block: Block) -> None:
        for operation in block.operations:
            try:
                self.operation(operation)
            except ComputedError as error:
                self.needed.update(dict.fromkeys(error.inputs))
                if not error.inputs:
                    self._problem(operation, str(error))
                else:
                    self._stand_in(operation)
            except (Error, MemoryError) as error:
                self._problem(operation, str(error))

    def inline(self, block: Block, arguments: Sequence[Item]) -> list[Item]:
        """Returns the results of a block for these arguments. The names that the block defines go out of scope."""
        outer = self.values
        given = {name: item for (name, _), item in zip(block.inputs, arguments, strict=True)}
        self.values = ChainMap(given, outer)
        try:
            for operation in block.operations:
                self.operation(operation)
            return [self.item(name) for name in block.outputs]
        finally:
            self.values = outer

    @contextmanager
    def body(self, body: Body) -> Iterator[None]:
        """Collects the blocks read in this context as the body of a loop or branch that depends on data. Raises Error
        if a block writes a state."""
        values, states = self.values, self.states
        around: Any = Around(values, partial(_captured, body))
        self.values = ChainMap({}, around)
        self.states = {name: body.capture(value) for name, value in states.items()}
        begins = dict(self.states)
        try:
            yield
            if self.states != begins:
                raise Error("got a state that a loop or branch writes, need writes outside of it")
        finally:
            self.values, self.states = values, states

    def _problem(self, operation: Operation, text: str) -> None:
        what = text.partition("] ")[2] if text.startswith("[") and "] " in text else text
        key = what if what.startswith(f"{operation.op}: ") else f"{operation.op}: {what}"
        result = operation.results[0][0] if operation.results else ""
        self.problems.setdefault(key, []).append(operation.label or result)
        self._stand_in(operation)

    def _stand_in(self, operation: Operation) -> None:
        """Gives an unsupported op's results placeholders, so that the translation goes on and reports all such ops."""
        for name, kind in operation.results:
            dims = [d or 1 for d in kind.dims or ()]
            stand_in = unique("input", f"{name}?", tensor_type(kind.dtype or FP32, dims))
            self.values[name] = stand_in if kind.dims is not None else []

    def item(self, name: str) -> Item:
        if name not in self.values:
            raise Error(f"got the name {name!r}, need a value that is computed before")
        return self.values[name]

    # ---- operations ----

    def operation(self, operation: Operation) -> None:
        """Translates an operation. Raises Error for arguments that do not fit. Other exceptions that a damaged file
        causes are raised as Error, too."""
        try:
            self._operation(operation)
        except UNFIT as error:
            raise Error(f"got arguments that do not fit: {error}") from None

    def _operation(self, operation: Operation) -> None:
        sources = (operation.label or (operation.results[0][0] if operation.results else operation.op),)
        if operation.op == "const":
            (given,) = operation.inputs.get("val", (None,))
            if not isinstance(given, Constant):
                raise Error("got no val, need a constant")
            self.values[operation.results[0][0]] = self._literal(given, sources)
            return
        weights = operation.op.startswith("constexpr_")
        b: Builder = Rewriter(*sources) if weights else Folder(*sources)
        handler = HANDLERS.get(operation.op)
        if handler is not None:
            arguments = self._bound(operation, handler.parameters)
            result = handler.read(Context(b, self.program.opset, self), operation, **arguments)
        elif operation.op in READ:
            arguments = self._bound(operation, parameters()[operation.op])
            result = READ[operation.op](b, **arguments)
        else:
            raise Error(f"got {REFUSED.get(operation.op, 'an op that has no counterpart here, need another one')}")
        values = [result] if isinstance(result, Value) else list(result)  # a Value is a tuple as well
        if len(values) != len(operation.results):
            raise Error(f"got {len(operation.results)} results, need {len(values)}")
        for (name, kind), value in zip(operation.results, values, strict=True):
            self.values[name] = self._declared(b, value, kind) if not weights else value
            if weights and isinstance(value, Value):
                self.constexprs.add(value)

    def _declared(self, b: Builder, value: Item, kind: Declared) -> Item:
        """Returns the value in the declared dtype and rank. Raises Error if the declared shape differs, since the
        importer has then misread the op."""
        if not isinstance(value, Value) or kind.dtype is None or kind.dims is None:
            return value
        if value.dtype is not kind.dtype:
            if (value.dtype.kind == "float") != (kind.dtype.kind == "float"):
                raise Error(f"got a result of {kind}, need {value.dtype}{list(value.shape)}")
            value = cast(b, value, kind.dtype)
        if len(value.shape) != len(kind.dims):
            if value.type.size != 1 or any(d not in (None, 1) for d in kind.dims):
                raise Error(f"got a result of {kind}, need {value.dtype}{list(value.shape)}")
            value = b.reshape(value, shape=(1,) * len(kind.dims))
        if any(d is not None and d != e for d, e in zip(kind.dims, value.shape, strict=True)):
            raise Error(f"got a result of {kind}, need {value.dtype}{list(value.shape)}")
        return value

    def _literal(self, given: Constant, sources: tuple[str, ...] = ()) -> Item:
        if isinstance(given.value, (str, list)):
            return given.value
        return constant(given.value, sources, given.dtype)

    # ---- arguments ----

    def _bound(self, operation: Operation, known: Sequence[Parameter]) -> dict[str, Any]:
        if unknown := operation.inputs.keys() - {p.name for p in known}:
            raise Error(f"got the argument {min(unknown)}, need some of {', '.join(p.name for p in known)}")
        arguments = {p.name: self._argument(p, operation.inputs.get(p.name)) for p in known}
        x = arguments.get("x")
        if operation.op in MIXED and isinstance(x, Value):
            dtype = x.dtype if x.dtype.kind == "float" else FP32
            arguments["x"] = _like(x, dtype)
            for name, value in arguments.items():
                if isinstance(value, Value) and value.dtype.kind in ("float", "int"):
                    arguments[name] = _like(value, dtype)
        return arguments

    def _argument(self, p: Parameter, given: Sequence[Any] | None) -> Any:
        if given is None or (not given and p.kind != "values"):
            if p.optional or p.insisted:
                return p.default if p.default is not None or not p.insisted else INSISTED.get((p.name, p.kind))
            raise Error(f"need the argument {p.name}")
        try:
            items = [self.item(g) if isinstance(g, str) else self._literal(g) for g in given]
            if p.kind in ("values", "items"):
                return tuple(items)
            (item,) = items
            return self._converted(p, item)
        except ComputedError:
            raise
        except Error as error:
            raise Error(f"{p.name}: {error}") from None

    def _converted(self, p: Parameter, item: Item) -> Any:
        if p.kind == "any":
            return item
        if p.kind == "str":
            if not isinstance(item, str):
                raise Error("got a tensor, need a text")
            return item
        if p.kind == "dtype":
            if item not in DTYPES:
                raise Error(f"got {item!r}, need a dtype")
            return DTYPES[item]
        if not isinstance(item, Value):
            raise Error(f"got {'a list' if isinstance(item, list) else repr(item)}, need a tensor")
        if p.kind in _SCALARS:
            kinds, convert = _SCALARS[p.kind]
            array = known_array(item)
            if array.size != 1 or item.dtype.kind not in kinds:
                raise Error(f"got {item.type}, need one {p.kind}")
            return convert(array.reshape(-1)[0])
        if p.kind in ("ints", "bools"):
            array = known_array(item).reshape(-1)
            return tuple((bool if p.kind == "bools" else int)(v) for v in array)
        if p.kind == "weight" and p.name != "lut" and is_encoded(item.node):
            dense = fold_node(item.node)
            return dense[0] if dense else item
        return item


def require_shapes(
    features: Mapping[str, Feature], shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]
) -> None:
    """Raises SpecialisationNeeded for inputs with open dims and neither a given shape nor a given value."""
    if is_open := {n: f for n, f in features.items() if f.is_open and n not in shapes and n not in values}:
        said = " ".join(shape_option(n, f.fixed_shape()) for n, f in is_open.items())
        raise SpecialisationNeeded(
            f"[coreml] got no shape for {', '.join(is_open)}, whose dims are free, need it, as in {said}",
            tuple(is_open),
        )


def port_value(name: str, feature: Feature, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> Value:
    """Returns an input of a graph, or a constant if its value is given or it has a default and no given shape."""
    if name not in shapes and feature.default is not None and name not in values:
        default = np.full(feature.fixed_shape(), feature.default, feature.dtype.numpy)
        return constant(default, (name,), feature.dtype)
    if name in values:
        given = np.asarray(values[name])
        return constant(given.astype(feature.dtype.numpy).reshape(feature.given(given.shape)), (name,))
    check_name("input", name)
    return unique("input", name, tensor_type(feature.dtype, feature.given(shapes.get(name))), sources=(name,))


def raise_problems(needed: Iterable[str], problems: Mapping[str, Sequence[str]]) -> None:
    """Raises SpecialisationNeeded for inputs whose values must be known, and UnsupportedError for unsupported ops."""
    if names := tuple(needed):
        raise SpecialisationNeeded(
            f"[coreml] got no value for {', '.join(names)}, which decides shapes, need it: --value NAME=V", names
        )
    if problems:
        listed = "\n  ".join(f"{what}: {', '.join(where[:3])}" for what, where in problems.items())
        count = len(problems)
        raise UnsupportedError(f"[coreml] {count} kind{'s' if count > 1 else ''} of ops cannot be read:\n  {listed}")


def _captured(body: Body, item: Item) -> Item:
    """Returns a body's input for a value of the surrounding block."""
    if isinstance(item, list):
        item = copy(item)
        item[:] = [_captured(body, element) for element in item]
        return item
    return body.capture(item) if isinstance(item, Value) else item


INSISTED: Mapping[tuple[str, str], Any] = {
    ("epsilon", "float"): 0.0,
    ("interleave", "bool"): False,
    ("keep_dims", "bool"): False,
    ("transpose_x", "bool"): False,
    ("transpose_y", "bool"): False,
    ("axes", "ints"): (),
    ("axis", "int"): -1,
    ("mode", "str"): "EXACT",
}


def _like(value: Value, dtype: DType) -> Value:
    """Returns the value in this dtype. An encoded weight is returned unchanged."""
    if value.dtype is dtype or is_encoded(value.node):
        return value
    return cast(Folder(*value.node.sources), value, dtype)

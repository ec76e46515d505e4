"""The inputs and outputs of a model, and the inputs whose shapes or values must be known to compile it."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from hexane.dtypes import FP32
from hexane.errors import Error, InputError
from hexane.graph import Array, TensorType, tensor_type
from hexane.importers.likely_shapes import likely_shapes, shape_option
from hexane.importers.onnx.load import ModelFile
from hexane.importers.onnx.schema import opset_versions
from hexane.importers.onnx.shape_inputs import find_shape_inputs
from hexane.importers.onnx.tensors import check_text, element_type
from hexane.importers.signature import Dim, Input, Signature, SpecialisationNeeded

NO_NAMES = ("", "?", "*", "-1", "0", "None")  # dim names that exporters write for any extent


def opsets_of(model: onnx.ModelProto) -> dict[str, int]:
    """Returns the opset versions by domain. Raises Error if the default domain's version is missing, too old or too
    new."""
    versions = opset_versions(model.opset_import)
    if "" not in versions:
        raise Error("[import] got no opset of the standard ops, need one")
    return versions


def read_signature(model: ModelFile) -> Signature:
    opsets_of(model.proto)
    graph = model.proto.graph
    names = {info.name for info in graph.input}
    defaults = {tensor.name for tensor, _ in model.initializers() if tensor.name in names}
    walk = model.nodes, model.proto.functions, names
    shape_inputs = find_shape_inputs(*walk)
    of_floats: set[str] | None = None
    inputs: dict[str, Input] = {}
    for info in graph.input:
        if not check_text(info.name) or info.name in inputs:
            raise Error(f"[import] got the input name {info.name!r}, need names that are distinct and not empty")
        if info.type.WhichOneof("value") != "tensor_type":
            raise Error(f"[import] input {info.name!r}: got no tensor, need one")
        tensor = info.type.tensor_type
        try:
            kind = element_type(tensor.elem_type)
        except Error as error:
            raise type(error)(f"[import] input {info.name!r}: {error}") from None
        dims = tuple(map(_dim, tensor.shape.dim)) if tensor.HasField("shape") else None
        small = dims is None or len(dims) <= 1  # inputs of higher rank are data, and new values need no compilation
        shape_input = info.name in shape_inputs and small
        if shape_input and kind.kind == "float":  # a few floats are data, or conditions at run time
            of_floats = find_shape_inputs(*walk, conditions=False) if of_floats is None else of_floats
            shape_input = info.name in of_floats
        inputs[info.name] = Input(info.name, kind, dims, shape_input)
    required, optional = (tuple(i for i in inputs.values() if (i.name in defaults) is has) for has in (False, True))
    outputs = tuple(check_text(output.name) for output in graph.output)
    return Signature(required, outputs, optional, tuple(_result(output) for output in graph.output))


def _result(output: onnx.ValueInfoProto) -> Input:
    """Returns the declared type of an output, unchecked. Missing dims are open."""
    tensor = output.type.tensor_type
    try:
        kind = element_type(tensor.elem_type)
    except Error:
        kind = FP32
    return Input(output.name, kind, tuple(map(_dim, tensor.shape.dim)) if tensor.HasField("shape") else None)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    """Returns a dim. It is open (None) for an extent of -1 (Paddle) or 0, and for one of NO_NAMES: dims with such a
    name need not be equal."""
    if dim.HasField("dim_value"):
        return None if dim.dim_value in (-1, 0) else int(dim.dim_value)
    name = str(dim.dim_param)
    return None if name.strip() in NO_NAMES else name


def resolve(
    signature: Signature, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]
) -> dict[str, TensorType]:
    """Returns the type of every input. Open dims come from shapes, from values, and from equally named dims of other
    inputs. An optional input is included if it has a shape or value.

    Raises SpecialisationNeeded with the names of all inputs that need a shape or a value, and InputError for
    contradictions.
    """
    known = {i.name: i for i in (*signature.inputs, *signature.optional)}
    for name in (*shapes, *values):
        if name not in known:
            raise InputError(f"[import] got the input {name!r}, need one of {', '.join(known) or 'none'}")
    given = {name: tuple(int(d) for d in shape) for name, shape in shapes.items()}
    given.update({name: np.shape(array) for name, array in values.items()})
    named: dict[str, int] = {}
    for name, shape in given.items():
        _agree(known[name], shape, named)
    types, missing, shape_inputs = {}, [], []
    for entry in (*signature.inputs, *(i for i in signature.optional if i.name in given)):
        dims = given.get(entry.name, entry.dims)
        filled = dims and tuple(named.get(d, d) if isinstance(d, str) else d for d in dims)
        if filled is None or any(not isinstance(d, int) for d in filled):
            missing.append(entry)
        else:
            types[entry.name] = _typed(entry, [int(d) for d in filled if d is not None])
        if entry.shape_input and entry.name not in values:
            shape_inputs.append(entry)
        if entry.name in values and values[entry.name].dtype != entry.dtype.numpy:
            raise InputError(
                f"[import] input {entry.name!r}: got a value of {values[entry.name].dtype}, need {entry.dtype}"
            )
    if missing or shape_inputs:
        raise SpecialisationNeeded(
            _needs(missing, shape_inputs, named), tuple(dict.fromkeys(e.name for e in missing + shape_inputs))
        )
    return types


def _agree(entry: Input, shape: tuple[int, ...], named: dict[str, int]) -> None:
    if entry.dims is None:
        return
    if len(shape) != len(entry.dims):
        raise InputError(f"[import] input {entry.name!r}: got the shape {_extents(shape)}, need {len(entry.dims)} dims")
    text = _extents(shape)
    for got, need in zip(shape, entry.dims, strict=True):
        if isinstance(need, str):
            need = named.setdefault(need, got)
        if need is not None and got != need:
            raise InputError(f"[import] input {entry.name!r}: got the shape {text}, need {_text(entry, named)}")


def _typed(entry: Input, shape: list[int]) -> TensorType:
    try:
        return tensor_type(entry.dtype, shape)
    except Error as error:
        raise Error(f"[import] input {entry.name!r}: {error}") from None


def _text(entry: Input, named: Mapping[str, int]) -> str:
    return _extents(["?" if d is None else named.get(d, d) if isinstance(d, str) else d for d in entry.dims or ()])


def _declared(entry: Input) -> str:
    return f"{entry.dtype}[{', '.join('?' if d is None else str(d) for d in entry.dims or ())}]"


def _extents(dims: Sequence[int | str]) -> str:
    return "x".join(map(str, dims)) or "a scalar"


def _needs(missing: list[Input], shape_inputs: list[Input], named: Mapping[str, int]) -> str:
    lines = []
    examples = likely_shapes([(entry.name, entry.dtype.kind, entry.dims) for entry in missing], named)
    for entry in missing:
        declared = _declared(entry) if entry.dims is not None else f"{entry.dtype} of any rank"
        example = shape_option(entry.name, examples[entry.name])
        lines.append(f"the shape of {entry.name!r} ({declared}), for example {example}")
    for entry in shape_inputs:
        lines.append(
            f"the value of {entry.name!r} ({entry.dtype}), on which shapes depend; fix it: --value {entry.name}=V, or"
            f" --input {entry.name}=F.npy"
        )
    return "[import] got a model with free dims, need:\n  " + "\n  ".join(lines)

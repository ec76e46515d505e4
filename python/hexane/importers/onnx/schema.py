"""Reads the schema of an op from the installed onnx package: opset, attributes with defaults, number of inputs."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
from onnx import AttributeProto, helper

from hexane.errors import Error, UnsupportedError
from hexane.importers.onnx.kept_node import KeptNode, NodeLike
from hexane.importers.onnx.node import Attributes, Item, TensorList

FIRST_OPSET = 6  # older opsets are accepted for ops that opset 6 does not change.
_REPLACED = ("GroupNormalization", 18)  # ONNX deprecated this version soon, but it is well defined.


def plain_domain(domain: str) -> str:
    """ "ai.onnx" is another name of the default domain."""
    return "" if domain == "ai.onnx" else domain


def opset_versions(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Returns opset versions by domain. Raises Error if the default domain's version is too old, or newer than the onnx
    package."""
    versions = {plain_domain(entry.domain): entry.version for entry in imports}
    newest = onnx.defs.onnx_opset_version()
    if not 1 <= versions.get("", newest) <= newest:
        raise UnsupportedError(f"[import] got opset {versions['']}, need {FIRST_OPSET} to {newest}")
    return versions


@dataclass(frozen=True, slots=True)
class Schema:
    version: int
    min_inputs: int
    max_inputs: int
    kinds: Mapping[str, int]  # values of AttributeProto.AttributeType
    required: frozenset[str]
    defaults: Mapping[str, Any]
    default_protos: Mapping[str, AttributeProto]
    has_function: bool  # ONNX defines the op by other ops


@cache
def schema(op: str, opset: int) -> Schema | None:
    """Returns the schema, or None if the opset lacks the op. Raises Error for an op that the opset has removed."""
    if not onnx.defs.has(op, opset, ""):
        return None
    definition: Any = onnx.defs.get_schema(op, opset, "")
    if opset < FIRST_OPSET and definition.since_version != onnx.defs.get_schema(op, FIRST_OPSET, "").since_version:
        raise UnsupportedError(f"got it as opset {opset} has it, need opset {FIRST_OPSET} or newer")
    if definition.deprecated and (op, definition.since_version) != _REPLACED:
        raise Error(f"opset {opset} has removed it")
    attributes = definition.attributes.items()
    return Schema(
        definition.since_version,
        definition.min_input,
        definition.max_input,
        {name: int(getattr(AttributeProto, a.type.name)) for name, a in attributes},
        frozenset(name for name, a in attributes if a.required),
        {name: _plain(helper.get_attribute_value(a.default_value)) for name, a in attributes if a.default_value.name},
        {name: a.default_value for name, a in attributes if a.default_value.name},
        definition.has_function or definition.has_context_dependent_function,
    )


_KINDS: Mapping[Any, int] = {
    int: AttributeProto.INT,
    float: AttributeProto.FLOAT,
    str: AttributeProto.STRING,
    tuple[int, ...]: AttributeProto.INTS,
    tuple[float, ...]: AttributeProto.FLOATS,
    tuple[str, ...]: AttributeProto.STRINGS,
}


def own_schema(least: int, most: int, given: Mapping[str, Any], required: Collection[str] = ()) -> Schema:
    """Returns a schema for an op that ONNX lacks, from the numbers of inputs, and the default or the type of each
    attribute."""
    defaults = {name: value for name, value in given.items() if isinstance(value, (int, float, str))}
    kinds = {name: _KINDS[type(value) if name in defaults else value] for name, value in given.items()}
    return Schema(1, least, most, kinds, frozenset(required), defaults, {}, False)


def fixed_body(op: str) -> onnx.FunctionProto | None:
    """Returns the newest definition of the op by other ops, or None if ONNX has none or it depends on types."""
    known = isinstance(op, str) and onnx.defs.has(op)  # a name that is not UTF-8 is bytes
    definition: Any = onnx.defs.get_schema(op, "") if known else None
    return definition.function_body if definition is not None and definition.has_function else None


def standard_function(proto: onnx.NodeProto, opset: int, inputs: Sequence[Item | None]) -> onnx.FunctionProto:
    """Returns the definition of the op by other ops in ONNX's specification."""
    definition: Any = onnx.defs.get_schema(proto.op_type, opset, "")
    body = onnx.FunctionProto()
    if definition.has_function:
        body.CopyFrom(definition.function_body)
        return body
    types = [_type(value) for value in inputs]
    versions = [v for v in definition.context_dependent_function_opset_versions if v <= opset]
    text = definition.get_context_dependent_function_with_opset_version(max(versions), proto.SerializeToString(), types)
    body.ParseFromString(text)
    return body


def _type(value: Item | None) -> bytes:
    if value is None:
        return b""
    if isinstance(value, TensorList):
        raise Error("got a sequence, need tensors")
    code = helper.np_dtype_to_tensor_dtype(value.dtype.numpy)
    return bytes(helper.make_tensor_type_proto(code, value.shape).SerializeToString())


def attributes(proto: NodeLike, signature: Schema, outer: Mapping[str, AttributeProto]) -> Attributes:
    """Returns the node's attributes as Python values, with defaults. outer: the attributes of the surrounding function.

    Raises Error for an attribute that is unknown, given twice, missing or of the wrong type.
    """
    if isinstance(proto, KeptNode):  # a node of the model's own graph has no surrounding function
        if proto.attributes_given is None:
            proto.attributes_given = _given(proto, signature, outer)
        return Attributes(proto.attributes_given, signature.defaults)
    return Attributes(_given(proto, signature, outer), signature.defaults)


def _given(proto: NodeLike, signature: Schema, outer: Mapping[str, AttributeProto]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for attr in resolved(proto, outer):
        if attr.name not in signature.kinds:
            raise Error(f"got the attribute {attr.name!r}, need one of {', '.join(sorted(signature.kinds)) or 'none'}")
        if attr.type != signature.kinds[attr.name] or attr.name in result:
            raise Error(f"attribute {attr.name!r}: got it twice or of the wrong type")
        result[attr.name] = _plain(helper.get_attribute_value(attr))
    if missing := signature.required - result.keys():
        raise Error(f"attribute {min(missing)!r}: got none, need a value")
    return result


def given_attributes(proto: NodeLike, outer: Mapping[str, AttributeProto]) -> Attributes:
    """Returns the attributes of an op without a schema as Python values."""
    return Attributes({a.name: _plain(helper.get_attribute_value(a)) for a in resolved(proto, outer)}, {})


def resolved(proto: NodeLike, outer: Mapping[str, AttributeProto]) -> list[AttributeProto]:
    """Returns the attributes with references to the surrounding function's attributes resolved. A reference to an
    absent attribute is omitted."""
    result = []
    for attr in proto.attribute:
        if attr.ref_attr_name:
            if (given := outer.get(attr.ref_attr_name)) is None:
                continue
            renamed = AttributeProto()
            renamed.CopyFrom(given)
            renamed.name = attr.name
            attr = renamed
        result.append(attr)
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, (str, int, float)) or not hasattr(value, "__iter__"):
        return value
    return tuple(_text(v) if isinstance(v, bytes) else v for v in value)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Error(f"got the text {value[:20]!r}, need UTF-8") from None

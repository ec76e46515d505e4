"""Applies an op record to values: checks inputs and attributes, infers the types, and makes the node."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hexane.dtypes import DType
from hexane.errors import Error
from hexane.graph import AttrValue, TensorType, Value, tensor_type
from hexane.graph.node import Kind, kind_of
from hexane.ops.attributes import CHAIN_ATTRS, normalize_attrs
from hexane.ops.slots import chain_type
from hexane.ops.spec import Op


def arrange_inputs(op: Op, inputs: Sequence[Value | None]) -> tuple[Value | None, ...]:
    """Returns the inputs in the record's order, with None for omitted ones at the end. Raises Error for a wrong number
    of inputs."""
    names = op.inputs
    variadic = op.takes_slots or (bool(names) and names[-1].endswith("*"))
    needed = sum(not n.endswith("?") for n in names)
    if len(inputs) < needed or (len(inputs) > len(names) and not variadic):
        raise Error(f"got {len(inputs)} inputs, need {', '.join(names)}")
    for i, value in enumerate(inputs):
        if value is None and not names[min(i, len(names) - 1)].endswith("?"):
            raise Error(f"input {names[min(i, len(names) - 1)]}: got none, need a tensor")
    if not names or names[-1].endswith("*"):
        return tuple(inputs)
    return (*inputs, *[None] * (len(names) - len(inputs)))


def infer(op: Op, types: Sequence[TensorType | None], attrs: Mapping[str, AttrValue]) -> tuple[TensorType, ...]:
    """Returns the output types. Raises Error for inputs that NumPy or ONNX would refuse."""
    operands = types[len(op.inputs) :] if op.takes_slots else ()
    slots = attrs.get("epilogue", ())
    if op.takes_slots:
        types, attrs = types[: len(op.inputs)], {k: v for k, v in attrs.items() if k not in CHAIN_ATTRS}
    for check in op.check:
        check(types, attrs)
    dtypes = op.dtype(*(None if t is None else t.dtype for t in types), **attrs)
    shapes = op.shape(*(None if t is None else t.shape for t in types), **attrs)
    several = isinstance(shapes, list)
    if not several:
        shapes = [shapes]
    if not isinstance(dtypes, list):
        dtypes = [dtypes] * len(shapes)
    result = tuple(tensor_type(d, s) for d, s in zip(dtypes, shapes, strict=True))
    if op.level == "engine":
        return (chain_type(result[0], slots, operands, len(op.inputs)), *result[1:]) if op.takes_slots else result
    if any(t != result[0] for t in operands):
        raise Error(f"epilogue operands: got {', '.join(map(str, operands))}, need {result[0]}")
    return result


def apply(
    op: Op, inputs: Sequence[Value | None], attrs: Mapping[str, Any], sources: tuple[str, ...] = ()
) -> tuple[Value, ...]:
    """Checks and applies an op, and returns its output values. Raises Error with op and source, got and need."""
    key = _call_key(op, inputs, attrs)
    call = None if key is None else _calls.get(key)
    if call is None:
        try:
            call = _checked(op, inputs, attrs)
        except Error as error:
            where = f"{op.name} at {', '.join(sources)}" if sources else op.name
            raise Error(f"[{where}] {error}") from None
        if key is not None:
            if len(_calls) >= MOST_CALLS:
                _calls.clear()
            _calls[key] = call
    return call.kind.node((*inputs, *call.absent), sources).values


class _Call(NamedTuple):
    """The checked result of applying an op, for later equal applications. types: of the inputs. absent: the optional
    inputs omitted at the end."""

    op: Op
    types: tuple[TensorType | None, ...]
    kind: Kind
    absent: tuple[None, ...]


_calls: dict[Any, _Call] = {}
MOST_CALLS = 1 << 12
_MOST_NUMBERS = 64  # The most numbers in an attribute of a cached call.
_EXACT = frozenset((bool, int, str, DType))  # Types of attributes whose equal values are identical.


def _call_key(op: Op, inputs: Sequence[Value | None], attrs: Mapping[str, Any]) -> Any:
    """Returns a key that is equal for applications with the same op, types and attributes, bit for bit. Returns None
    for an application that is not cached.

    The key has the ids of op and types, which a `_Call` keeps alive.
    """
    key: list[Any] = [id(op)]
    for value in inputs:
        key.append(None if value is None else id(value.node.types[value.output]))
    for name, given in attrs.items():
        kind: Any = type(given)
        if kind is float:
            given = given.hex()  # -0.0 is not 0.0
        elif kind is tuple:
            kinds = {*map(type, given)}
            if len(kinds) > 1 or not kinds <= _EXACT or len(given) > _MOST_NUMBERS:
                return None
            kind = (tuple, *kinds)
        elif kind not in _EXACT:
            return None
        key += name, kind, given
    return tuple(key)


def _checked(op: Op, inputs: Sequence[Value | None], attrs: Mapping[str, Any]) -> _Call:
    arranged = arrange_inputs(op, inputs)
    values = normalize_attrs(op.attrs, attrs)
    types = tuple([None if v is None else v.type for v in arranged])
    if op.canonical is not None:
        values = op.canonical(types, values)
    kind = kind_of(op.name, values, infer(op, types, values))
    return _Call(op, types, kind, (None,) * (len(arranged) - len(inputs)))

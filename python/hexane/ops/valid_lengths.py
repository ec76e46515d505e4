"""Valid lengths: the valid part of a value whose extent depends on data, propagated from op to op while a graph is
built.

Ops such as non_zero have results of the largest possible size, and return the number of valid elements. Later ops use
only the valid part. An op that works on each element or slice separately propagates the length, a sum ignores invalid
elements, and an op that would mix them into its result is refused.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np

from hexane import ops
from hexane.errors import Error
from hexane.graph import AttrValue, Graph, Node, Port, TensorType, Value, constant
from hexane.ops import OPS, Op
from hexane.ops.spec import Lengths


class Length(NamedTuple):
    """The first `value` (an int64 scalar) indices of an axis are valid."""

    axis: int
    value: Value


_carried: "weakref.WeakKeyDictionary[Node, Sequence[Length | None]]" = weakref.WeakKeyDictionary()


def length_of(value: Value) -> Length | None:
    """Returns the length of a value; None if all of it is always valid."""
    node = value.node
    record = OPS.get(node.op)
    if record is not None and record.ragged is not None:
        axis = record.ragged(node.attrs)[value.output]
        return None if axis is None or value.shape[axis] == 0 else Length(axis, node.values[-1])
    lengths = _carried.get(node)
    return lengths[value.output] if lengths else None


def apply(
    op: Op,
    inputs: Sequence[Value | None],
    attrs: Mapping[str, AttrValue],
    sources: tuple[str, ...] = (),
    aligned: bool = False,
) -> tuple[Value, ...]:
    """Like `ops.apply`, for inputs that may have lengths. aligned: in an elementwise op, operands without a length
    correspond, index by index, to an operand with a length. Raises Error if the op's result would depend on invalid
    elements."""
    lengths = [None if v is None else length_of(v) for v in inputs]
    if not any(lengths):
        return ops.apply(op, inputs, attrs, sources)
    values = ops.apply(op, inputs, attrs, sources)
    try:
        values = ops.apply(op, _masked(values[0].node, lengths), attrs, sources)
        node = values[0].node
        rule = _elementwise if op.elementwise else _RULES.get(op.lengths)
        if rule is None:
            raise Error("this op is not supported for such an input, need a fixed length")
        lengths += [None] * (len(node.inputs) - len(lengths))
        _carried[node] = rule(node, _aligned(node, lengths) if aligned and op.elementwise else lengths)
    except Error as error:
        at, length = next((i, length) for i, length in enumerate(lengths) if length)
        where = " at ".join((op.name, *sources[:1]))
        value = inputs[at]
        assert value is not None
        raise Error(f"[{where}] input {at}: got {described(value.type, length)}; {error}") from None
    return values


def described(kind: TensorType, length: Length) -> str:
    """The words of errors for a value with a length."""
    return f"{kind} with an axis {length.axis} whose length is known only at run time"


def kept_lengths(node: Node, inputs: tuple[Value | None, ...]) -> Sequence[Value] | None:
    """Propagates lengths again for a node whose inputs have changed, for `Graph.rewrite`. Returns None if the node's
    inputs are unchanged or have no lengths."""
    if inputs == node.inputs or node not in _carried:
        return None
    return apply(OPS[node.op], inputs, node.attrs, node.sources)


def with_lengths(graph: Graph) -> Graph:
    """Returns the graph with an additional output for each length of its outputs, named after the first output with
    that length ("y.length")."""
    taken = {p.name for p in graph.outputs} | set(graph.input_names())
    names: dict[Value, str] = {}
    ports = []
    for port in graph.outputs:
        length = length_of(port.value)
        if length is not None and not port.length:
            if length.value not in names:
                name = f"{port.name}.length"
                while name in taken:
                    name += "_"
                taken.add(name)
                names[length.value] = name
            port = port._replace(length=names[length.value], axis=length.axis)
        ports.append(port)
    if not names:
        return graph
    return replace(graph, outputs=(*ports, *(Port(name, value) for value, name in names.items())))


def whole(x: Value, sources: tuple[str, ...] = ()) -> Value:
    """Returns x with zeros after its valid part, as a value without a length."""
    length = length_of(x)
    if length is None:
        return x
    invalid, zero = ops.apply(OPS["greater_equal"], [_places(x, length), length.value], {}, sources)[0], _zero(x)
    return ops.apply(OPS["select"], [invalid, zero, x], {}, sources)[0]


def _places(x: Value, length: Length) -> Value:
    shape = [-1 if i == length.axis else 1 for i in range(x.type.rank)]
    return constant(np.arange(x.shape[length.axis]).reshape(shape))


def _zero(x: Value) -> Value:
    return constant(np.zeros((), x.dtype.numpy))


# ---- zeros for invalid elements ----


def _masked(node: Node, lengths: Sequence[Length | None]) -> list[Value | None]:
    """Returns the inputs with zeros for invalid indices, and for invalid terms of a sum."""
    inputs = list(node.inputs)
    products = _is_over_valid(node, lengths)
    for i, length in enumerate(lengths):
        rule = OPS[node.op].lengths
        summed = products or (rule == "sum" and length is not None and length.axis in node.attrs["axes"])
        if length is not None and (summed or (rule in ("gather", "gather_nd") and i == 1)):
            inputs[i] = _zeroed(inputs[i], length, node.sources)
    return inputs


def _zeroed(x: Value | None, length: Length, sources: tuple[str, ...]) -> Value:
    assert x is not None
    (valid,) = ops.apply(OPS["less"], [_places(x, length), length.value], {}, sources)
    (result,) = ops.apply(OPS["select"], [valid, x, _zero(x)], {}, sources)
    _carried[result.node] = (length,)
    return result


# ---- rules: the lengths of a node's outputs from its inputs' lengths ----


Rule = Callable[[Node, Sequence[Length | None]], Sequence[Length | None]]


def _only(node: Node, lengths: Sequence[Length | None], index: int = 0) -> Length:
    """Returns the length of one input. Raises Error if another input has a length."""
    for i, length in enumerate(lengths):
        if length is not None and i != index:
            raise Error(f"need fixed lengths in input {i}")
    length = lengths[index]
    assert length is not None
    return length


def _aligned(node: Node, lengths: Sequence[Length | None]) -> list[Length | None]:
    """Returns the lengths, in which operands without a length get that of an operand with the same extent."""
    aligned = list(lengths)
    for value, length in zip(node.inputs, lengths, strict=True):
        for i, other in enumerate(node.inputs):
            if value is None or length is None or other is None or lengths[i] is not None:
                continue
            axis = length.axis + other.type.rank - value.type.rank
            if axis >= 0 and other.shape[axis] == value.shape[length.axis] != 1:
                aligned[i] = Length(axis, length.value)
    return aligned


def _elementwise(node: Node, lengths: Sequence[Length | None]) -> Sequence[Length | None]:
    common: Length | None = None
    rank = node.types[0].rank
    for value, length in zip(node.inputs, lengths, strict=True):
        if value is not None and length is not None:
            here = Length(length.axis + rank - value.type.rank, length.value)
            if common not in (None, here):
                raise Error("the inputs have different lengths, or along different axes, need the same one")
            common = here
    assert common is not None
    for value, length in zip(node.inputs, lengths, strict=True):
        axis = -1 if value is None else common.axis - rank + value.type.rank
        if value is not None and axis >= 0 and length is None and value.shape[axis] != 1:
            raise Error(f"another input has the shape {value.shape}, need an extent of 1 there, or the same length")
    return [common] * len(node.types)


def _broadcast_to(node: Node, lengths: Sequence[Length | None]) -> Sequence[Length | None]:
    length = _only(node, lengths)
    assert node.inputs[0] is not None
    axis = length.axis + node.types[0].rank - node.inputs[0].type.rank
    if node.types[0].shape[axis] != node.inputs[0].shape[length.axis]:
        raise Error("the op repeats that axis, which may have length 0, need it unchanged")
    return [Length(axis, length.value)]


def _transpose(node: Node, lengths: Sequence[Length | None]) -> Sequence[Length | None]:
    length = _only(node, lengths)
    return [Length(node.attrs["perm"].index(length.axis), length.value)]


def _reshape(node: Node, lengths: Sequence[Length | None]) -> Sequence[Length | None]:
    """The axis is unchanged, or merged with the axes after it."""
    length = _only(node, lengths)
    assert node.inputs[0] is not None
    old, new = node.inputs[0].shape, node.types[0].shape
    capacity = old[length.axis]
    before = prod(old[: length.axis])
    if old == new:
        return [length]
    if capacity > 1 and 0 not in old:
        for axis, extent in enumerate(new):
            if extent > 1 and prod(new[:axis]) == before and extent % capacity == 0:
                factor = extent // capacity
                if factor == 1:
                    return [Length(axis, length.value)]
                (value,) = ops.apply(OPS["mul"], [length.value, constant(np.array(factor))], {}, node.sources)
                return [Length(axis, value)]
    raise Error(f"the reshape from {old} to {new} mixes that axis with others, need it kept or merged with later ones")


def _squeeze(node: Node, lengths: Sequence[Length | None]) -> Sequence[Length | None]:
    length, gone = _only(node, lengths), node.attrs["axes"]
    if length.axis in gone:
        raise Error("the op removes that axis, which may have length 0, need another axis")
    return [Length(length.axis - sum(axis < length.axis for axis in gone), length.value)]


def _expand_dims(node: Node, lengths: Sequence[Length | None]) -> Sequence[Length | None]:
    length = _only(node, lengths)
    kept = [axis for axis in range(node.types[0].rank) if axis not in node.attrs["axes"]]
    return [Length(kept[length.axis], length.value)]


def _slice(node: Node, lengths: Sequence[Length | None]) -> Sequence[Length | None]:
    length = _only(node, lengths)
    assert node.inputs[0] is not None
    capacity = node.inputs[0].shape[length.axis]
    begin, end, stride = (node.attrs[k][length.axis] for k in ("begin", "end", "stride"))
    if stride != 1 and end - begin > 1:
        raise Error(f"the slice takes that axis in steps of {stride}, need steps of 1")
    value = length.value
    steps = [("minimum", end)] * (end < capacity) + [("sub", begin), ("maximum", 0)] * (begin > 0)
    for op, limit in steps:
        (value,) = ops.apply(OPS[op], [value, constant(np.array(limit))], {}, node.sources)
    return [Length(length.axis, value)]


def _axes(node: Node, lengths: Sequence[Length | None]) -> Sequence[Length | None]:
    """The op works on `axis` or `axes`, and does not mix the other axes."""
    length = _only(node, lengths)
    name = "axes" if "axes" in node.attrs else "axis"
    if length.axis in (node.attrs[name] if name == "axes" else (node.attrs[name],)):
        raise Error(f"the op works along {name} {node.attrs[name]} and would read past its length, need another axis")
    return [length] * len(node.types)


def _concat(node: Node, lengths: Sequence[Length | None]) -> Sequence[Length | None]:
    length = lengths[0]
    if length is None or any(other != length for other in lengths):
        raise Error("need all inputs with the same length along the same axis")
    if length.axis == node.attrs["axis"]:
        raise Error("joining along that axis would leave gaps between the inputs, need another axis")
    return [length]


def _reduce(node: Node, lengths: Sequence[Length | None]) -> Sequence[Length | None]:
    length, axes = _only(node, lengths), node.attrs["axes"]
    if length.axis in axes:
        if OPS[node.op].lengths != "sum":
            raise Error("the op reduces along that axis, need reduce_sum or another axis")
        return [None]
    gone = 0 if node.attrs["keep_dims"] else sum(a < length.axis for a in axes)
    return [Length(length.axis - gone, length.value)]


def _gather(node: Node, lengths: Sequence[Length | None]) -> Sequence[Length | None]:
    x, indices = node.inputs
    axis = node.attrs["axis"]
    assert x is not None
    assert indices is not None
    if lengths[1] is not None:
        if x.shape[axis] == 0:
            raise Error(f"axis {axis} of input 0 is empty, need at least one element")
        length = _only(node, lengths, 1)
        return [Length(axis + length.axis, length.value)]
    length = _only(node, lengths)
    if length.axis == axis:
        raise Error("an index along that axis may lie past its length, need another axis")
    return [Length(length.axis + (indices.type.rank - 1 if length.axis > axis else 0), length.value)]


def _gather_nd(node: Node, lengths: Sequence[Length | None]) -> Sequence[Length | None]:
    x, indices = node.inputs
    assert x is not None
    assert indices is not None
    length = _only(node, lengths, 1)
    if node.attrs["batch_dims"] or length.axis == indices.type.rank - 1 or 0 in x.shape:
        raise Error("need batch_dims 0, input 0 without empty axes, and another axis of the indices than the last")
    return [length]


def _is_over_valid(node: Node, lengths: Sequence[Length | None]) -> bool:
    """True for a product over an axis that has the same length in both operands."""
    if node.op != "matmul" or lengths[0] is None or lengths[1] is None or any(lengths[2:]):
        return False
    ranks = [v.type.rank for v in node.inputs[:2] if v is not None]
    x_axis = ranks[0] - (2 if node.attrs.get("transpose_x") else 1)
    y_axis = ranks[1] - (1 if node.attrs.get("transpose_y") else 2)
    return lengths[0] == Length(x_axis, lengths[0].value) and lengths[1] == Length(y_axis, lengths[0].value)


def _rows(node: Node, lengths: Sequence[Length | None]) -> Sequence[Length | None]:
    if _is_over_valid(node, lengths):
        return [None]
    length = _only(node, lengths)
    assert node.inputs[0] is not None
    rank = node.inputs[0].type.rank
    if length.axis != rank - (1 if node.attrs.get("transpose_x") else 2):
        raise Error("need that axis as the rows of the left operand")
    return [Length(node.types[0].rank - 2, length.value)]


_RULES: Mapping[Lengths, Rule] = {
    "axes": _axes,
    "broadcast_to": _broadcast_to,
    "concat": _concat,
    "expand_dims": _expand_dims,
    "gather": _gather,
    "gather_nd": _gather_nd,
    "reduce": _reduce,
    "reshape": _reshape,
    "rows": _rows,
    "slice": _slice,
    "squeeze": _squeeze,
    "sum": _reduce,
    "transpose": _transpose,
}

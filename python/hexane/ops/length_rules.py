"""What each op does to the valid lengths of its inputs, and the zeros that ops read in place of invalid elements."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from hexane.errors import Error
from hexane.graph import Node, TensorType, Value, constant
from hexane.ops import OPS, apply
from hexane.ops.spec import Lengths


class Length(NamedTuple):
    """The first `value` (an int64 scalar) indices of an axis are valid."""

    axis: int
    value: Value


# Lengths of the results of nodes that carry them on from their inputs.
carried: "weakref.WeakKeyDictionary[Node, Sequence[Length | None]]" = weakref.WeakKeyDictionary()


def described(kind: TensorType, length: Length) -> str:
    """The words of errors for a value with a length."""
    return f"{kind} with an axis {length.axis} whose length is known only at run time"


def places(x: Value, length: Length) -> Value:
    shape = [-1 if i == length.axis else 1 for i in range(x.type.rank)]
    return constant(np.arange(x.shape[length.axis]).reshape(shape))


def zero_of(x: Value) -> Value:
    return constant(np.zeros((), x.dtype.numpy))


# ---- zeros for invalid elements ----


def masked(node: Node, lengths: Sequence[Length | None]) -> list[Value | None]:
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
    (valid,) = apply(OPS["less"], [places(x, length), length.value], {}, sources)
    (result,) = apply(OPS["select"], [valid, x, zero_of(x)], {}, sources)
    carried[result.node] = (length,)
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


def aligned_lengths(node: Node, lengths: Sequence[Length | None]) -> list[Length | None]:
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


def elementwise(node: Node, lengths: Sequence[Length | None]) -> Sequence[Length | None]:
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
                (value,) = apply(OPS["mul"], [length.value, constant(np.array(factor))], {}, node.sources)
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
        (value,) = apply(OPS[op], [value, constant(np.array(limit))], {}, node.sources)
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
        raise Error(f"an index along axis {axis} may lie past the length of this axis, need another axis")
    return [Length(length.axis + (indices.type.rank - 1 if length.axis > axis else 0), length.value)]


def _gather_nd(node: Node, lengths: Sequence[Length | None]) -> Sequence[Length | None]:
    x, indices = node.inputs
    assert x is not None
    assert indices is not None
    length = _only(node, lengths, 1)
    if node.attrs["batch_dims"] or length.axis == indices.type.rank - 1 or 0 in x.shape:
        raise Error("need batch_dims 0, input 0 without empty axes, and indices with a fixed length of the last axis")
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


RULES: Mapping[Lengths, Rule] = {
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

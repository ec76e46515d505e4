"""Pieces of a layer whose kernel is too large: over output channels, filters, or input channels."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hexane.graph import EpilogueSlot, Node, Value, constant
from hexane.lowering.weights import is_constant
from hexane.ops import OPS, apply
from hexane.ops.slots import OPERANDS, operands_of
from hexane.passes.engine.chain import slots_of
from hexane.passes.engine.legalize.kernels import output_channels
from hexane.passes.engine.legalize.slots import apply_slots, layer, view, with_slots


def own_slots(node: Node) -> tuple[EpilogueSlot, ...]:
    """Returns the slots that each piece can apply itself: those before the first slot that spreads or quantises
    elements."""
    slots = slots_of(node)
    own = ("kernel_scale", "pre_activation", "gain_offset", "post_activation", "transpose")
    ends = [i for i, s in enumerate(slots) if s.op not in own]
    return slots[: ends[0]] if ends else slots


def piece_axis(node: Node) -> int:
    """Returns the axis of the output channels in the result of a piece."""
    axis = node.types[0].rank - 1 if node.op == "anec.linear" else 1
    for s in own_slots(node):
        if s.op == "transpose":
            axis = dict(s.attributes)["perm"].index(axis)
    return axis


def by_outputs(node: Node, inputs: Sequence[Value | None], most: int, whole: int) -> list[Value]:
    x, weight = inputs[:2]
    assert x is not None
    assert weight is not None
    own, channels = own_slots(node), output_channels(node)
    groups = int(node.attrs.get("groups", 1))
    parts = []
    for begin in range(0, channels, most):
        end = min(begin + most, channels)
        piece: dict[str, Any] = {}
        source = x
        if groups > 1:
            piece["groups"] = (end - begin) // whole
            each = x.shape[1] // groups
            source = view(x, 1, begin // whole * each, end // whole * each, node.sources)
        filters = filters_of(node, weight, begin, end, whole)
        table = [] if node.op == "anec.deconvolution" else inputs[2:3]
        parts.append(_cut(node, [source, filters, *table], inputs, own, begin, end, piece))
    return parts


def filters_of(node: Node, weight: Value, begin: int, end: int, whole: int) -> Value:
    """Returns the weights of these output channels. whole: the number of output channels in a group."""
    if node.op != "anec.deconvolution":
        return _part(weight, 0, begin, end, node)
    groups = int(node.attrs["groups"])
    if groups == 1:
        return _part(weight, 1, begin, end, node)
    each = weight.shape[0] // groups
    return _part(weight, 0, begin // whole * each, end // whole * each, node)


def _cut(
    node: Node, operands: list[Value | None], inputs: Sequence[Value | None], own: Sequence[EpilogueSlot], begin: int, end: int,  # noqa: E501
    piece: dict[str, Any],
) -> Value:  # fmt: skip
    """Returns the layer for one piece, with per-channel operands of the slots restricted to the piece's channels."""
    slots = []
    for s in own:
        v = dict(s.attributes)
        for i in operands_of(s):
            given = inputs[i]
            assert given is not None
            name = next(n for n in OPERANDS[s.op] if v[n] == i)
            v[name] = len(operands)
            operands.append(_part(given, 0, begin, end, node) if given.shape else given)
        slots.append(EpilogueSlot(s.op, tuple(v.items())))
    return apply(OPS[node.op], operands, {**node.attrs, **piece, "epilogue": tuple(slots)}, node.sources)[0]


def _part(value: Value, axis: int, begin: int, end: int, node: Node) -> Value:
    """Returns value[begin:end] along an axis; a constant is sliced at compile time."""
    if value.node.data is None or not is_constant(value):
        return view(value, axis, begin, end, node.sources)
    index = (slice(None),) * axis + (slice(begin, end),)
    return constant(np.ascontiguousarray(value.node.data[index]), value.node.sources)


def by_inputs(node: Node, inputs: Sequence[Value | None], per_channel: int, limit: int) -> Value:
    x, weight = inputs[:2]
    assert x is not None
    assert weight is not None
    channels = weight.shape[1]
    most = max(limit // (per_channel // channels), 1)
    scale = tuple(s for s in slots_of(node) if s.op == "kernel_scale")
    y: Value | None = None
    for begin in range(0, channels, most):
        end = min(begin + most, channels)
        filters = _part(weight, 1, begin, end, node)
        part = with_slots(node, [view(x, 1, begin, end, node.sources), filters, inputs[2]], scale)
        y = part if y is None else layer("add", [y, part], node.sources)
    assert y is not None
    return apply_slots(y, node, slots_of(node)[len(scale) :])

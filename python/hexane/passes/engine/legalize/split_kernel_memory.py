"""Splits layers whose weights do not fit the chip's kernel memory."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hexane.graph import EpilogueSlot, Graph, Node, Value, constant
from hexane.graph.decisions import Decision
from hexane.lowering.weights import is_constant, is_weight
from hexane.ops import OPS, apply
from hexane.ops.encodings import operand_encoding
from hexane.ops.slots import OPERANDS, operands_of
from hexane.passes.engine.chain import slots_of
from hexane.passes.engine.legalize.compression import kernel_bytes
from hexane.passes.engine.legalize.slots import apply_slots, layer, view, with_slots
from hexane.targets import Chip
from hexane.validate.compute import kernel_memory

STAGE = "split_kernel_memory"
SOURCE = "guide ch35, listing 35.2"


class Kernel(NamedTuple):
    """The bytes of kernel memory that a layer's weights need, and the memory's size. shared: in the memory that the
    cores share; else in each core's own memory."""

    demand: int
    limit: int
    shared: bool


def is_streamable(node: Node) -> bool:
    """True if the weights may be streamed: they are constant, and the layer has unit strides and no dilation (guide
    ch24 and ch25)."""
    return (
        is_constant(node.inputs[1])
        and set(node.attrs.get("strides", (1,))) == {1}
        and set(node.attrs.get("dilation_rates", (1,))) == {1}
    )


def output_channels(node: Node) -> int:
    """Returns the number of output channels of a layer with weights. The weights of a transposed convolution hold the
    channels of one group on their second axis."""
    weight = node.inputs[1]
    assert weight is not None
    return weight.shape[1] * int(node.attrs["groups"]) if node.op == "anec.deconvolution" else weight.shape[0]


def table_of(node: Node) -> Value | None:
    """Returns the palette of a convolution's or linear layer's weights. A transposed convolution has no palette."""
    return None if node.op == "anec.deconvolution" else node.inputs[2]


def kernel_of(node: Node, chip: Chip) -> Kernel:
    """Returns the kernel memory that the weights need, by the rule of listing 35.2. The shared memory (16 MB, field
    0x210) holds streamable weights on a chip whose compiler builds shared kernels and whose byte 0x48f is set. Weights
    outside the shared memory lie in the memory of each core (64 KB, field 0x200): with n cores, each core holds every
    n-th output channel.
    """
    weight = node.inputs[1]
    assert weight is not None
    asks = chip.gates.shared_kernel_data and is_streamable(node)
    shared = asks and chip.gates.kernel_streaming
    limit = kernel_memory(chip, asks)
    channels, size = output_channels(node), kernel_bytes(operand_encoding(weight, table_of(node)), chip)
    return Kernel(size if shared else -(-channels // chip.cores) * -(-size // channels), limit, shared)


def exceeds_kernel_memory_limit(node: Node, chip: Chip) -> bool:
    """True if the weights exceed kernel memory: the compiler's ExceedKmemSizeLimit."""
    kernel = kernel_of(node, chip)
    return kernel.demand > kernel.limit


def split_kernel_memory(graph: Graph, chip: Chip) -> Graph:
    """anec.convolution(%x, %w) : [1, 512, H, W]  ->  anec.concat(anec.convolution(%x, %w[:256]), anec.convolution(%x, %w[256:]))

    The number of pieces is the smallest that fits. Each piece has whole groups of output channels, unless a single
    group is too large. Per-channel slots are split like the channels. Each piece also writes its result transposed. The
    slots from the first one that spreads or quantises elements on become layers after the concatenation. If the weights of one output channel alone are too large, the input channels are
    split and the partial sums added. The roundings of the partial sums are recorded as a hazard."""  # noqa: E501
    decisions: list[Decision] = []

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if not is_weight(inputs[1]):
            return None
        fitted = _fitted(node, inputs, chip, decisions)
        return None if fitted is None else (fitted,)

    return graph.rewrite(change, ("anec.convolution", "anec.deconvolution", "anec.linear")).decided(*decisions)


def _fitted(node: Node, inputs: Sequence[Value | None], chip: Chip, decisions: list[Decision]) -> Value | None:
    """Returns the layer in pieces that fit kernel memory, or None if it fits whole or cannot be split."""
    kernel, weight = kernel_of(node, chip), inputs[1]
    assert weight is not None
    if kernel.demand <= kernel.limit:
        return None
    channels = output_channels(node)
    per_channel = -(-kernel_bytes(operand_encoding(weight, table_of(node)), chip) // channels)
    most = kernel.limit // per_channel * (1 if kernel.shared else chip.cores)
    groups = int(node.attrs.get("groups", 1))
    whole = channels // groups
    if groups > 1:
        most = max(most // whole, 1) * whole  # a group that is still too large is split by the recursive call
    where = "that the cores share" if kernel.shared else "of a core"
    need = f"{kernel.demand} bytes of weights, the kernel memory {where} has {kernel.limit}"
    if most:
        if len(_own(node)) < len(slots_of(node)):
            reason = "it spreads or quantises elements, so it runs after the pieces are concatenated"
            decisions.append(Decision(STAGE, node.where, "unfused", reason, SOURCE))
        pieces = -(-channels // most)
        decisions.append(Decision(STAGE, node.where, "split", f"{need}: {pieces} pieces of output channels", SOURCE))
        parts = _by_outputs(node, inputs, most, whole)
        parts = [_fitted(part.node, part.node.inputs, chip, decisions) or part for part in parts]
        return apply_slots(
            layer("concat", parts, node.sources, axis=_axis(node)), node, slots_of(node)[len(_own(node)) :]
        )
    if node.op != "anec.convolution":
        return None
    reason = f"{need}: parts of the sums are rounded before they are added"
    decisions.append(Decision(STAGE, node.where, "hazard", reason, SOURCE))
    return _by_inputs(node, inputs, per_channel, kernel.limit)


def _own(node: Node) -> tuple[EpilogueSlot, ...]:
    """Returns the slots that each piece can apply itself: those before the first slot that spreads or quantises
    elements."""
    slots = slots_of(node)
    own = ("kernel_scale", "pre_activation", "gain_offset", "post_activation", "transpose")
    ends = [i for i, s in enumerate(slots) if s.op not in own]
    return slots[: ends[0]] if ends else slots


def _axis(node: Node) -> int:
    """Returns the axis of the output channels in the result of a piece."""
    axis = node.types[0].rank - 1 if node.op == "anec.linear" else 1
    for s in _own(node):
        if s.op == "transpose":
            axis = dict(s.attributes)["perm"].index(axis)
    return axis


def _by_outputs(node: Node, inputs: Sequence[Value | None], most: int, whole: int) -> list[Value]:
    x, weight = inputs[:2]
    assert x is not None
    assert weight is not None
    own, channels = _own(node), output_channels(node)
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
        filters = _filters(node, weight, begin, end, whole)
        table = [] if node.op == "anec.deconvolution" else inputs[2:3]
        parts.append(_cut(node, [source, filters, *table], inputs, own, begin, end, piece))
    return parts


def _filters(node: Node, weight: Value, begin: int, end: int, whole: int) -> Value:
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


def _by_inputs(node: Node, inputs: Sequence[Value | None], per_channel: int, limit: int) -> Value:
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

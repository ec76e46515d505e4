"""Splits layers whose weights do not fit the chip's kernel memory."""

from collections.abc import Sequence

from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.lowering.weights import is_weight
from hexane.ops.encodings import operand_encoding
from hexane.passes.engine.chain import slots_of
from hexane.passes.engine.legalize.compression import kernel_bytes
from hexane.passes.engine.legalize.kernel_pieces import by_inputs, by_outputs, own_slots, piece_axis
from hexane.passes.engine.legalize.kernels import kernel_of, output_channels, table_of
from hexane.passes.engine.legalize.slots import apply_slots, layer
from hexane.targets import Chip

STAGE = "split_kernel_memory"
SOURCE = "guide ch35, listing 35.2"


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
        if len(own_slots(node)) < len(slots_of(node)):
            reason = "it spreads or quantises elements, so it runs after the pieces are concatenated"
            decisions.append(Decision(STAGE, node.where, "unfused", reason, SOURCE))
        pieces = -(-channels // most)
        decisions.append(Decision(STAGE, node.where, "split", f"{need}: {pieces} pieces of output channels", SOURCE))
        parts = by_outputs(node, inputs, most, whole)
        parts = [_fitted(part.node, part.node.inputs, chip, decisions) or part for part in parts]
        return apply_slots(
            layer("concat", parts, node.sources, axis=piece_axis(node)), node, slots_of(node)[len(own_slots(node)) :]
        )
    if node.op != "anec.convolution":
        return None
    reason = f"{need}: parts of the sums are rounded before they are added"
    decisions.append(Decision(STAGE, node.where, "hazard", reason, SOURCE))
    return by_inputs(node, inputs, per_channel, kernel.limit)

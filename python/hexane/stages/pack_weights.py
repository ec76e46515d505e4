"""The weights of a layer as the engines read them: groups of output channels, dealt to the engines in turn."""

from hexane import _core
from hexane.graph import Node
from hexane.layers import Weights
from hexane.passes.engine.legalize.compression import kernel_bytes
from hexane.passes.engine.legalize.split_kernel_memory import kernel_of
from hexane.passes.engine.lower import is_weight
from hexane.targets import Chip

_WEIGHTED = ("anec.convolution", "anec.linear")


def pack_weights(node: Node, chip: Chip) -> Weights | None:
    """None for a layer that has no weights of its own, and for transposed convolutions, of which nobody says how they are packed. Groups
    are of the size that was measured on M6."""
    if node.op not in _WEIGHTED or not is_weight(node.inputs[1]):
        return None
    weight = node.inputs[1]
    assert weight is not None
    size = kernel_bytes(weight.type, chip, palette=node.inputs[2] is not None)
    groups = int(node.attrs.get("groups", 1))
    outputs, inputs, *taps = weight.shape
    depth, height, width = (1, 1, 1, *taps)[-3:]
    bits = size * 8 // max(weight.type.size, 1)
    kernel = (outputs, inputs, depth, height, width, groups, bits)
    group = _core.output_group(kernel, chip.memory.kernel, chip.hal.output_group)
    num_groups, engines, passes, stride = _core.packed_shape(kernel, (chip.cores, group, chip.memory.row_alignment))
    memory = kernel_of(node, chip)
    return Weights(
        size, bits, group, num_groups, engines, passes, stride * engines, memory.shared, memory.demand, memory.limit
    )

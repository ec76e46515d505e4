"""Computes the packed form of a layer's weights: groups of output channels, assigned to the engines round-robin."""

from math import prod

from hexane import _core
from hexane.graph import Node
from hexane.lowering.weights import is_weight
from hexane.ops.encodings import Encoding as Stored
from hexane.ops.encodings import encoding_of, operand_encoding
from hexane.passes.engine.legalize.compression import kernel_bits, kernel_bytes
from hexane.passes.engine.legalize.kernels import kernel_of, output_channels, table_of
from hexane.program.layers import Encoding, Weights
from hexane.targets import Chip

_WEIGHTED = ("anec.convolution", "anec.deconvolution", "anec.linear")


def pack_weights(node: Node, chip: Chip) -> Weights | None:
    """Returns the packed form of a layer's weights, or None if it has none. No source says how weights of transposed
    convolutions are packed: they are packed here as for a convolution with the same channels.

    Groups have the size measured on M6, but at most the power of two that holds the output channels of one convolution
    group, because an engine's group has channels of one convolution group only. Pruned weights are stored as a mask,
    with one bit per weight and in the same groups, followed by the nonzero numbers. A pruned constant that other ops
    read too is stored dense, but its bytes are counted as if it were pruned.
    """
    if node.op not in _WEIGHTED or not is_weight(node.inputs[1]):
        return None
    weight, table = node.inputs[1], table_of(node)
    assert weight is not None
    groups, outputs, taps = int(node.attrs.get("groups", 1)), output_channels(node), weight.shape[2:]
    inputs = weight.type.size // (outputs * prod(taps))
    depth, height, width = (1, 1, 1, *taps)[-3:]
    whole = operand_encoding(weight, table)
    encoding = encoding_of(weight) if "sparse" in chip.formats.streams else whole
    pruned = encoding if encoding.kind == "pruned" else None
    bits = kernel_bits(whole, chip)

    def kernel(bits: int) -> tuple[int, int, int, int, int, int, int]:
        return outputs, inputs, depth, height, width, groups, bits

    most = min(chip.hal.output_group, 1 << (outputs // groups - 1).bit_length())
    group = _core.output_group(kernel(bits), chip.memory.kernel, most)
    stored = bits if pruned is None else 1
    shape = _core.packed_shape(kernel(stored), (chip.cores, group, chip.memory.row_alignment))
    num_groups, engines, passes, stride = shape
    extra = 0 if pruned is None else pruned.bytes - (weight.type.size + 7) // 8  # the numbers, which follow their mask
    memory = kernel_of(node, chip)
    return Weights(
        encoding=_encoding(whole, bits) if pruned is None else "sparse",
        bytes=kernel_bytes(whole, chip) if pruned is None else pruned.bytes,
        bits=bits,
        group=group,
        groups=num_groups,
        engines=engines,
        passes=passes,
        packed_bytes=stride * engines + extra,
        shared=memory.shared,
        demand=memory.demand,
        limit=memory.limit,
    )


def _encoding(stored: Stored, bits: int) -> Encoding:
    if stored.stored.dtype.kind == "float" or bits == 16:
        return "fp16"
    return "palette" if stored.kind == "palette" else "int8"

"""The kernel of a convolution or product: its weights, their table, and their place in kernel memory."""

from typing import NamedTuple

from hexane.graph import Node, Value
from hexane.lowering.weights import is_constant
from hexane.ops.encodings import operand_encoding
from hexane.passes.engine.legalize.compression import kernel_bytes
from hexane.targets import Chip
from hexane.validate.convolution import kernel_memory


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

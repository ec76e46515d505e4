"""Which kernels may be stored compressed, and what they take."""

from hexane.graph import TensorType
from hexane.targets import Chip

LEAST_BITS = 8  # guide ch35: "only kernels of at least eight bits are compressible"


def is_valid_for_compression(bits: int, chip: Chip) -> bool:
    """Whether kernels of so many bits per weight may be: the compiler's gate of this name. The chip has to stream kernels at all
    (byte 0x48f), and less than 8 bits never are (guide ch35)."""
    return bits >= LEAST_BITS and chip.gates.kernel_streaming


def kernel_bytes(weights: TensorType, chip: Chip, palette: bool = False) -> int:
    """What weights take in kernel memory. Integers, and indices of a palette, stay as small as they are stored where the chip streams
    that encoding; else the compiler has made fp16 of them (guide ch7 and ch35, table 35.4).
    """
    streams = chip.gates.palette_stream if palette else chip.gates.int8_stream
    encoded = weights.dtype.kind != "float"
    return weights.size * 2 if encoded and not streams else weights.bytes

"""Which kernels may be stored compressed."""

from hexane.targets import Chip

LEAST_BITS = 8  # guide ch35: "only kernels of at least eight bits are compressible"


def is_valid_for_compression(bits: int, chip: Chip) -> bool:
    """Whether kernels of so many bits per weight may be: the compiler's gate of this name. The chip has to stream kernels at all
    (byte 0x48f), and less than 8 bits never are (guide ch35)."""
    return bits >= LEAST_BITS and chip.gates.kernel_streaming

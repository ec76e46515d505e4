"""Decides which kernels may be compressed, and computes their size."""

from hexane.dtypes import FP16
from hexane.ops.encodings import Encoding
from hexane.targets import Chip

LEAST_BITS = 8  # guide ch35: "only kernels of at least eight bits are compressible"


def is_valid_for_compression(bits: int, chip: Chip) -> bool:
    """True if kernels with this many bits per weight may be compressed (the compiler's gate of this name). The chip has
    to support streamed kernels (byte 0x48f), and weights below 8 bits are never compressed (guide ch35)."""
    return bits >= LEAST_BITS and chip.gates.kernel_streaming


def kernel_bits(encoding: Encoding, chip: Chip) -> int:
    """Returns the bits per weight in kernel memory. On a chip that streams the encoding, integers keep their stored
    size, and palette indices have the smallest width that the chip supports and that covers all entries. For other
    chips the compiler expands integers and palettes to fp16 (guide ch7 and ch35, table 35.4).
    """
    if encoding.stored.dtype.kind == "float":
        return encoding.bits
    if encoding.kind != "palette":
        return encoding.bits if chip.gates.int8_stream else FP16.bits
    fits = [bits for bits in chip.formats.palette_bits or () if encoding.bits <= bits]
    return min(fits) if fits and chip.gates.palette_stream else FP16.bits


def kernel_bytes(encoding: Encoding, chip: Chip) -> int:
    """Returns the size of the weights in kernel memory in bytes, without the palette. Pruned weights count as dense,
    because no source says how kernel memory holds them."""
    return (encoding.stored.type.size * kernel_bits(encoding, chip) + 7) // 8

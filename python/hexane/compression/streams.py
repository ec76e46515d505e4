"""How a target uses an encoding: its engine streams it, a CPU keeps it, or the compiler folds it to floats."""

from hexane.compression.encode import has_blocks, has_vectors, kept_whole, without_mask
from hexane.compression.request import blocks_of, has_int8_tables, palette_of, zeros_beside_palette, zeros_of
from hexane.compression.weights import Weight
from hexane.graph import Value
from hexane.ops.encodings import PALETTES
from hexane.ops.records.decode import decodes_in_calls
from hexane.ops.records.encoded_product import (
    TABLE_COLUMNS,
    can_be_encoded,
)
from hexane.ops.records.sparse_product import is_multiplied_without_zeros
from hexane.targets import Chip, Target

FOLDS = "folds on this chip: no bandwidth gained"
UNKNOWN = "counts as folded: no source says that a chip streams a mask with indices"
UNKNOWN_TABLES = "counts as folded: tables of int8 are known to stream only with activations of int8"
STAYS = "stays in few bits on this CPU"
STAYS_SPARSE = "stored without its zeros where this CPU computes in fp32"
SOURCE = "formats.streams"


def streams(weight: Weight, encoding: str, target: Target) -> bool:
    """True if the weight is compressed until the engine reads it."""
    if not isinstance(target, Chip) or not weight.is_kernel or encoding == "none" or weight.node.op == "conv_transpose":
        return False
    if zeros_of(encoding) is not None:
        return "sparse" in target.formats.streams and not without_mask(weight, encoding)
    if zeros_beside_palette(encoding) is not None or has_int8_tables(encoding):
        return False
    palette, blocks = palette_of(encoding), blocks_of(encoding)
    if blocks is not None:
        kind = "blockwise" if blocks[0] == 4 or has_blocks(weight, encoding) else "integers"
        return is_streamed(kind, blocks[0], target)
    if palette is None:
        return is_streamed("integers", 8, target)
    return is_streamed("vectors" if has_vectors(weight, encoding) else "palette", palette[0], target)


def said(weight: Weight, encoding: str, target: Target) -> str:
    """Returns the target's use of an encoding in words, for decisions and reports."""
    if reason := without_mask(weight, encoding):
        return reason
    if not isinstance(target, Chip):
        if zeros_of(encoding) is not None and is_multiplied_without_zeros(weight.node, weight.whole):
            return STAYS_SPARSE
        return STAYS if _cpu_reads(weight, encoding) else "folds on this CPU: no memory gained"
    if streams(weight, encoding, target):
        return "streams"
    if zeros_beside_palette(encoding) is not None:
        return UNKNOWN
    if has_int8_tables(encoding) and weight.is_kernel:
        return UNKNOWN_TABLES
    return FOLDS if weight.is_kernel else "folds: an embedding is no kernel of the engine"


def _cpu_reads(weight: Weight, encoding: str) -> bool:
    """True if the weight stays encoded on a CPU, by passes/quantize/keep_encoded.py and decode_in_calls.py."""
    of_windows = (weight.node.op == "conv" and can_be_encoded(weight.node)) or decodes_in_calls(weight.node)
    of_rows = weight.node.op in ("gather", "linear", "matmul") and weight.whole.type.rank == 2
    if not (of_windows or of_rows):
        return False
    palette = palette_of(encoding)
    if weight.node.op == "gather":
        return encoding != "none" and zeros_of(encoding) is None and not has_vectors(weight, encoding)
    tables = palette is None or not palette[1] or palette[1] % TABLE_COLUMNS == 0
    return encoding != "none" and zeros_of(encoding) is None and (tables or bool(kept_whole(weight, encoding)))


def why_folded(name: str) -> str:
    """Returns the reason why weights that a model has in this encoding do not stream."""
    if "+" in name:
        return UNKNOWN
    return UNKNOWN_TABLES if name.startswith("palette") and name.endswith(":int8") else FOLDS


def group_of(weight: Value) -> str:
    """Returns ":g16" for a table per 16 output channels, and ":blocks" for other blocks."""
    if weight.node.op not in PALETTES:
        return ""
    tables = weight.node.inputs[1]
    assert tables is not None
    counts = tables.shape[: weight.type.rank]
    several = [d // blocks for d, blocks in zip(weight.shape, counts, strict=True) if blocks > 1]
    return f":g{several[0]}" if len(several) == 1 else ":blocks" if several else ""


def size_of(weight: Value) -> int:
    """Returns how many numbers an entry of a palette has."""
    tables = weight.node.inputs[1] if weight.node.op == "decode_vectors" else None
    return 1 if tables is None else tables.shape[-1]


def block_of(weight: Value) -> str:
    """Returns ":b32" for a scale per 32 input channels of an output channel, and ":blocks" for other blocks."""
    scales = weight.node.inputs[1]
    assert scales is not None
    sizes = [d // blocks for d, blocks in zip(weight.shape, scales.shape, strict=True) if 1 < blocks < d]
    return f":b{sizes[0]}" if len(sizes) == 1 else ":blocks"


def is_streamed(kind: str, bits: int, chip: Chip) -> bool:
    """True if a chip streams the encoding, by the facts `formats.streams` and `formats.palette_bits`. A palette with a
    table per group streams like a palette with one table. Apple's guide to coremltools finds networks with groups of 8
    or 16 channels faster than uncompressed ones, but names no chip. Palettes of vectors are treated as folded: the
    engine's compiler has a format for vectors of 2, 4 and 5 numbers, but no source says which chips read it."""
    if kind == "palette":
        return "int4" in chip.formats.streams and any(bits <= most for most in chip.formats.palette_bits or ())
    if kind == "blockwise":
        return "blockwise" in chip.formats.streams
    return kind == "integers" and bits == 8 and "int8" in chip.formats.streams

"""Encodes a weight: integers with a scale for each channel or block, indices of a palette, or sparse numbers."""

from concurrent.futures import ThreadPoolExecutor
from math import ceil, prod

import numpy as np

from hexane import _core
from hexane.compression.request import (
    blocks_of,
    has_int8_tables,
    palette_alone,
    palette_of,
    vector_of,
    zeros_beside_palette,
    zeros_of,
)
from hexane.compression.tables import int8_tables
from hexane.compression.weights import Weight
from hexane.errors import Error
from hexane.graph import Array, Value, constant
from hexane.ops import OPS, apply
from hexane.ops.encodings import PALETTE_BITS, encoding_of, fewest_bits, kept

BEYOND_FP16 = 65520.0  # fp16 rounds numbers from 65520 on to infinity


def encode(weight: Weight, encoding: str, threads: int = 1, importance: Array | None = None) -> Value:
    """Returns one of these values: dequantize(const int8, scale), decode_blocks(const int8, scales), gather(table,
    const indices), decode_palette(const indices, tables), where entry 0 is 0 for "sparse:0.5+palette4",
    decode_scaled_palette(const indices, const int8, scales), or decode_vectors(const indices, table). With
    "sparse:0.5" the result is a constant whose smallest half is set to 0; with "none" and "sparse" it is the weight
    itself. importance: the cost of an error in each input channel, for scales of blocks (importance.py).

    Raises Error for weights that are not finite or overflow fp16, except with "none".
    """
    whole = weight.whole
    data = whole.node.data
    assert data is not None
    if encoding == "none":
        return whole
    sources = whole.node.sources or weight.node.sources
    halves = _halves(weight, data)
    if encoding == "int8":
        outer, channels = prod(data.shape[: weight.axis]), data.shape[weight.axis]
        wide = np.ascontiguousarray(data, np.float32)
        integers, scales = _core.quantise_int8(wide, outer, channels, data.size // (outer * channels))
        operands = [constant(integers.reshape(data.shape), sources), constant(scales, sources), None]
        (result,) = apply(OPS["dequantize"], operands, {"axis": weight.axis, "dtype": whole.dtype}, sources)
        return result
    if blocks_of(encoding) is not None:
        return _in_blocks(weight, data, encoding, threads, importance)
    if zeros_of(encoding) is not None:
        return _pruned(weight, data, zeros_of(encoding) or 0.0)
    palette = palette_of(encoding)
    assert palette is not None, encoding
    bits, group = palette
    if not without_zeros(weight, encoding):
        return _masked(weight, data, encoding, threads)
    if group and not kept_whole(weight, encoding):
        outer, groups = prod(data.shape[: weight.axis]), data.shape[weight.axis] // group
        entries, indices = _core.quantise_groups(halves.view(np.uint16), outer, groups, bits, threads)
        tables = entries.view(np.float16).astype(data.dtype)
    elif has_vectors(weight, encoding):
        return _of_vectors(weight, halves, bits, vector_of(encoding), threads)
    else:
        entries, indices, _ = _core.quantise_palette(halves.view(np.uint16), bits)
        tables = entries.view(np.float16).astype(data.dtype)[None]
    if has_int8_tables(encoding):
        return _with_int8_tables(weight, halves, indices, tables)
    result = _looked_up(weight, indices, tables)
    if encoding_of(result).masked_bits is None:
        return result
    # The entries are reversed: if entry 0 were 0, and half of the numbers, MIL would store a mask. Chips are
    # only known to stream palettes without masks.
    return _looked_up(weight, tables.shape[1] - 1 - indices, np.ascontiguousarray(tables[:, ::-1]))


def _looked_up(weight: Weight, indices: Array, tables: Array) -> Value:
    """Returns an encoded weight of indices with one table for the whole weight, or one for each group. tables:
    [groups][entries]."""
    sources, shape = weight.whole.node.sources or weight.node.sources, weight.whole.shape
    indices = indices.reshape(shape)
    if len(tables) == 1:
        operands = [constant(tables[0], sources), constant(indices.astype(np.int32), sources)]
        (result,) = apply(OPS["gather"], operands, {"axis": 0}, sources)
        return result
    blocks = [len(tables) if i == weight.axis else 1 for i in range(len(shape))]
    held = constant(tables.reshape(*blocks, -1), sources)
    (result,) = apply(OPS["decode_palette"], [constant(indices.astype(np.uint8), sources), held], {}, sources)
    return result


def _with_int8_tables(weight: Weight, halves: Array, indices: Array, tables: Array) -> Value:
    """Returns a weight whose tables are integers, with one scale for each table; each number is the index of the
    nearest entry. tables: [groups][entries]."""
    sources, shape, axis = weight.whole.node.sources or weight.node.sources, weight.whole.shape, weight.axis
    outer, groups = prod(shape[:axis]) if len(tables) > 1 else 1, len(tables)
    entries = next(1 << bits for bits in PALETTE_BITS if tables.shape[1] <= 1 << bits)  # lengths of MIL's tables
    tables = np.pad(tables, ((0, 0), (0, entries - tables.shape[1])), mode="edge")
    parts, named = (a.reshape(outer, groups, -1) for a in (halves, indices))
    counts = np.stack([np.bincount(named[:, g].reshape(-1), minlength=entries) for g in range(groups)])
    integers, scales = int8_tables(tables.astype(np.float32), counts)
    rounded = (integers.astype(np.float16) * scales).astype(np.float32)
    picks = np.empty(parts.shape, np.uint8)
    for g, table in enumerate(rounded):
        order = np.argsort(table, kind="stable")
        between = (table[order][1:] + table[order][:-1]) / 2
        picks[:, g] = order[np.searchsorted(between, parts[:, g].astype(np.float32))]
    blocks = [groups if i == axis else 1 for i in range(len(shape))]
    operands = [
        constant(picks.reshape(shape), sources),
        constant(integers.reshape(*blocks, -1), sources),
        constant(scales.astype(weight.whole.dtype.numpy).reshape(*blocks, 1), sources),
    ]
    (result,) = apply(OPS["decode_scaled_palette"], operands, {}, sources)
    return result


def _masked(weight: Weight, data: Array, encoding: str, threads: int) -> Value:
    """Returns palettes whose entry 0 is 0. Nonzero numbers have 2^bits further entries; with 4 and 8 bits one fewer, so
    that a CPU's indices, which include 0, fit these bits."""
    palette = palette_of(encoding)
    assert palette is not None
    bits, group = palette
    pruned = _pruned(weight, data, zeros_beside_palette(encoding) or 0.0).node.data
    assert pruned is not None
    channels = weight.whole.shape[weight.axis]
    groups = channels // group if group and not kept_whole(weight, encoding) else 1
    outer = prod(data.shape[: weight.axis])
    parts = _halves(weight, pruned).reshape(outer, groups, -1)
    less = 1 if bits in (4, 8) else 0
    wide = next(n for n in PALETTE_BITS if 1 << n >= (1 << bits) + 1 - less)
    tables, indices = np.zeros((groups, 1 << wide), np.float16), np.zeros(parts.shape, np.int32)

    def find(at: int) -> int:
        """Fills the entries of a group's table after entry 0, and returns how many it filled."""
        part = parts[:, at]
        places = part != 0
        numbers = np.ascontiguousarray(part[places])
        if not numbers.size:
            return 0
        entries, named, _ = _core.quantise_palette(numbers.view(np.uint16), bits, less)
        tables[at, 1 : 1 + entries.size] = entries.view(np.float16)
        indices[:, at][places] = np.where(entries[named] & 0x7FFF, named + 1, 0)  # a mean may round to 0
        return int(entries.size)

    with ThreadPoolExecutor(threads) as pool:
        most = max(pool.map(find, range(groups)))
    return _looked_up(weight, indices, tables[:, : 1 + most if groups == 1 else None].astype(data.dtype))


def _of_vectors(weight: Weight, halves: Array, bits: int, size: int, threads: int) -> Value:
    """Returns a palette with one table, whose entries are vectors of neighbouring output channels."""
    shape, axis = weight.whole.shape, weight.axis
    outer, vectors = prod(shape[:axis]), shape[axis] // size
    entries, indices, _ = _core.quantise_vectors(halves.view(np.uint16), outer, vectors, size, bits, threads)
    table = entries.view(np.float16).astype(weight.whole.dtype.numpy).reshape(*[1] * len(shape), *entries.shape)
    picks = indices.reshape([vectors if i == axis else d for i, d in enumerate(shape)])
    sources = weight.whole.node.sources or weight.node.sources
    (result,) = apply(
        OPS["decode_vectors"], [constant(picks, sources), constant(table, sources)], {"axis": axis}, sources
    )
    return result


def _in_blocks(weight: Weight, data: Array, encoding: str, threads: int, importance: Array | None) -> Value:
    """Returns integers with a scale for each block of input channels, including all taps of a filter, or for each
    output channel."""
    grid = blocks_of(encoding)
    assert grid is not None
    bits, block = grid
    whole = not has_blocks(weight, encoding)
    sources = weight.whole.node.sources or weight.node.sources
    counts = [1] * data.ndim
    counts[weight.axis] = data.shape[weight.axis]
    if not whole:
        counts = [
            d if weight.node.op not in ("conv", "conv_transpose") or i < 2 else 1 for i, d in enumerate(data.shape)
        ]
        counts[weight.input_axis] = data.shape[weight.input_axis] // block
    # [blocks of axis 0][in a block of axis 0][blocks of axis 1] ..  ->  [blocks of all axes][in a block of all axes]
    split = [part for d, n in zip(data.shape, counts, strict=True) for part in (n, d // n)]
    order = [*range(0, 2 * data.ndim, 2), *range(1, 2 * data.ndim, 2)]
    blocks = np.ascontiguousarray(data.reshape(split).transpose(order), np.float32)
    flat, scales = _quantised(weight, blocks.reshape(prod(counts), -1), counts, bits, threads, importance)
    integers = np.ascontiguousarray(flat.reshape(blocks.shape).transpose(np.argsort(order))).reshape(data.shape)
    if whole:
        operands = [constant(integers, sources), constant(scales, sources), None]
        (result,) = apply(OPS["dequantize"], operands, {"axis": weight.axis, "dtype": weight.whole.dtype}, sources)
        return result
    held = constant(scales.astype(data.dtype).reshape(counts), sources)
    (result,) = apply(OPS["decode_blocks"], [constant(integers, sources), held], {}, sources)
    return result


def _quantised(
    weight: Weight, blocks: Array, counts: list[int], bits: int, threads: int, importance: Array | None
) -> tuple[Array, Array]:
    """Returns the integers and scales of blocks [blocks][numbers]. counts: of blocks on each axis of the weight."""
    if importance is None:
        return _core.quantise_blocks(blocks.reshape(-1), len(blocks), bits, threads)
    axis, shape = weight.input_axis, weight.whole.shape
    groups, along = len(importance) // shape[axis], counts[axis]
    # The input channels of a block follow from its index on their axis and, in convolutions, from the group of its
    # output channel.
    group = np.arange(counts[0]) // (counts[0] // groups) * along
    place = np.arange(along).reshape([-1 if i == axis else 1 for i in range(len(counts))])
    rows = np.broadcast_to(group.reshape(-1, *[1] * (len(counts) - 1)) + place, counts).reshape(-1)
    order = np.argsort(rows, kind="stable")  # blocks with equal input channels become adjacent
    matrices = prod(d // n for d, n in zip(shape[:axis], counts[:axis], strict=True))  # matrices in a block
    channels = np.tile(importance.reshape(groups * along, -1), (1, matrices))
    rounded, rounded_scales = _core.quantise_blocks(blocks[order].reshape(-1), len(blocks), bits, threads, channels)
    integers, scales = np.empty(blocks.shape, np.int8), np.empty_like(rounded_scales)
    integers[order], scales[order] = rounded.reshape(blocks.shape), rounded_scales
    return integers, scales


def _pruned(weight: Weight, data: Array, zeros: float) -> Value:
    """Returns the weight with this part of its numbers, the smallest magnitudes, set to 0; of equal magnitudes, the
    first in memory. At least one number is kept."""
    if not zeros or not weight.is_kernel:
        return weight.whole
    count = min(ceil(zeros * data.size), data.size - 1)
    pruned = data.reshape(-1).copy()
    pruned[np.argsort(np.abs(pruned), kind="stable")[:count]] = 0
    return constant(pruned.reshape(data.shape), weight.whole.node.sources or weight.node.sources)


def without_mask(weight: Weight, encoding: str) -> str:
    """Returns the reason why a weight with a sparse mode is stored whole; "" if it has a mask, and for other modes."""
    zeros = zeros_of(encoding)
    why = "" if zeros is None else _no_mask(weight, zeros, negative_zeros=True)
    return why and f"whole: {why}"


def without_zeros(weight: Weight, encoding: str) -> str:
    """Returns the reason why a weight with a masked palette gets the palette without a mask; "" if it may have one."""
    zeros = zeros_beside_palette(encoding)
    return "nothing asks for a mask" if zeros is None else _no_mask(weight, zeros, negative_zeros=False)


def _no_mask(weight: Weight, zeros: float, negative_zeros: bool) -> str:
    """Returns the reason why a mask of nonzero numbers would save nothing, else "". zeros: the part that becomes 0.
    negative_zeros: True if -0.0 counts as nonzero."""
    if not weight.is_kernel:
        return "the rows of an embedding have no mask"
    data = weight.whole.node.data
    assert data is not None
    halves = _halves(weight, data)
    numbers = int(np.count_nonzero(kept(halves) if negative_zeros else halves))
    if numbers == 0:
        return "all of its numbers are 0"
    few = not zeros and 2 * numbers > data.size
    return f"{1 - numbers / data.size:.0%} of its numbers are 0, a mask needs half" if few else ""


def as_stored(encoding: str, value: Value) -> str:
    """Returns the final encoding of a weight: the palette without a mask if a mask saves nothing."""
    masked = zeros_beside_palette(encoding) is None or encoding_of(value).masked_bits is not None
    return encoding if masked else palette_alone(encoding)


def has_blocks(weight: Weight, encoding: str) -> bool:
    """True if an output channel has several scales."""
    blocks, inputs = blocks_of(encoding), weight.whole.shape[weight.input_axis]
    return blocks is not None and inputs % blocks[1] == 0 and inputs > blocks[1]


def has_vectors(weight: Weight, encoding: str) -> bool:
    """True if the weight's palette has entries of several numbers."""
    return vector_of(encoding) > 1 and not kept_whole(weight, encoding)


def kept_whole(weight: Weight, encoding: str) -> str:
    """Returns the reason why a weight gets one table in place of tables of groups, one scale per output channel in
    place of blocks, or single numbers in place of vectors; "" if it gets the requested encoding."""
    blocks, inputs = blocks_of(encoding), weight.whole.shape[weight.input_axis]
    if blocks is not None and inputs % blocks[1] != 0:
        return f"a scale for each output channel, since {inputs} input channels are no multiple of {blocks[1]}"
    palette, channels = palette_of(encoding), weight.whole.shape[weight.axis]
    size = vector_of(encoding)
    if palette is not None and size > 1:
        if channels % size:
            return f"one number for each index, since {channels} channels are no multiple of {size}"
        table, indices = (1 << palette[0]) * size * 2, weight.whole.type.size // size * palette[0] // 8
        large = "one number for each index, since a table of vectors would take more than their indices"
        return large if table > indices else ""
    if palette is None or not palette[1] or channels % palette[1] == 0:
        return ""
    return f"one table, since {channels} channels are no multiple of {palette[1]}"


def stored_bytes(weight: Weight, name: str, value: Value) -> int:
    """Returns the bytes of a weight in the encoding of this name, with its scales or table, in fp16."""
    if zeros_of(name) is not None and not without_mask(weight, name):
        data = value.node.data
        assert data is not None
        return (data.size + 7) // 8 + 2 * int(np.count_nonzero(kept(_halves(weight, data))))
    encoding = encoding_of(value)
    if encoding.kind in ("whole", "pruned"):
        return 2 * value.type.size
    if encoding.kind == "integers" and fewest_bits(encoding.stored) <= 4:  # MIL stores them in four bits
        return (encoding.stored.type.size + 1) // 2 + 2 * _beside(value, encoding.stored).type.size
    tables = _beside(value, encoding.stored).type
    if value.node.op == "decode_scaled_palette":
        return encoding.bytes + tables.size + 2 * (tables.size // tables.shape[-1])
    if encoding.masked_bits is not None:
        return encoding.bytes + 2 * (tables.size // tables.shape[-1] << encoding.masked_bits)
    return encoding.bytes + 2 * tables.size


def _beside(value: Value, stored: Value) -> Value:
    other = value.node.inputs[0 if value.node.inputs[1] == stored else 1]
    assert other is not None
    return other


def fits_fp16(weight: Weight) -> bool:
    """True if the weight's numbers are finite in fp16, as every encoding needs."""
    data = weight.whole.node.data
    assert data is not None
    return bool(max(data.max(initial=0), -data.min(initial=0)) < BEYOND_FP16)  # False for NaN


def _halves(weight: Weight, data: Array) -> Array:
    """Returns the numbers in fp16. Raises Error if a number is not finite or overflows fp16."""
    if data.dtype == np.float16:
        halves = np.ascontiguousarray(data)
        finite = bool(np.isfinite(halves).all())
    else:
        halves = np.empty(data.shape, np.float16)
        finite = _core.convert(np.ascontiguousarray(data), halves)
    if finite:
        return halves
    bad = data[~np.isfinite(halves)][0]
    what = "within +-65504, which fp16 holds" if np.isfinite(bad) else "finite"
    raise Error(
        f"[compress] {weight.node.where}: got the weight {bad}, need all of them {what}; per_layer={{'...': 'none'}}"
        " leaves a layer as it is"
    )

"""Integers with scales: between ops, and in encoded weights. An encoded weight of MIL is read as an encoding of the
catalogue if one has the same numbers, else as the floats that it decodes to."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hexane.dtypes import DTYPES, FP16, FP32, DType
from hexane.errors import Error
from hexane.graph import Array, Node, Value, constant, make_node
from hexane.mil.forms.form import Form, MilCall
from hexane.ops.compose import Builder
from hexane.ops.encodings import PALETTE_BITS, encoding_of, fewest_bits, is_encoded
from hexane.system.limits import MAX_GROWTH_BYTES


def _narrow_scale(scale: Value, kind: DType) -> Array | None:
    """Returns the scale in the floats' dtype, which MIL needs; None if this dtype cannot represent it, or if the
    scale is computed."""
    if scale.node.data is None or kind not in (FP16, FP32):
        return None
    with np.errstate(over="ignore"):
        narrow: Array = scale.node.data.astype(kind.numpy)
    return narrow if np.array_equal(narrow.astype(np.float32), scale.node.data) else None


def _write(node: Node) -> MilCall | None:
    x, scale, zero = node.inputs
    assert scale is not None
    quantizes = node.op == "quantize"
    if not quantizes and x is not None and x.node.op == "const":
        return _write_weight(node)
    kind = x.dtype if quantizes and x is not None else node.types[0].dtype
    narrow = _narrow_scale(scale, kind)
    if narrow is None:
        return None
    given: dict[str, Any] = {"input": x, "scale": constant(narrow, scale.node.sources), "zero_point": zero}
    given |= {"axis": node.attrs["axis"]} if scale.shape else {}
    return MilCall(node.op, given | ({"output_dtype": node.attrs["dtype"]} if quantizes else {}))


def _scale(scale: Value) -> Array:
    data = scale.node.data
    if data is None or scale.dtype.kind != "float":
        raise Error(f"scale: got {scale.type}, need a constant float")
    return data.astype(np.float32)


def _read_quantize(
    b: Builder, input: Value, zero_point: Value | None, scale: Value, axis: int | None, output_dtype: DType
) -> Value:
    return b.quantize(input, _scale(scale), zero_point, axis=axis or 0, dtype=output_dtype)


def _read_dequantize(b: Builder, input: Value, zero_point: Value | None, scale: Value, axis: int | None) -> Value:
    return b.dequantize(input, _scale(scale), zero_point, axis=axis or 0, dtype=scale.dtype)


# ---- weights ----


def _write_weight(node: Node) -> MilCall | None:
    """Writes bytes with a scale and a zero point, for all elements or for each index of an axis. Integers that
    fit four bits are written with one block for each index of the axis."""
    x, scale, zero = node.inputs
    assert x is not None
    assert scale is not None
    narrow = _narrow_scale(scale, node.types[0].dtype)
    if narrow is None or x.dtype.name not in _NIBBLES or not x.shape:
        return None
    if zero is not None and (zero.node.data is None or zero.dtype is not x.dtype or zero.shape != scale.shape):
        return None
    axis = int(node.attrs["axis"])
    integers = [v for v in (x, zero) if v is not None]
    if fewest_bits(*integers) > 4:
        zeros = constant(np.zeros((), x.dtype.numpy)) if zero is None else zero
        given = {"quantized_data": x, "zero_point": zeros, "scale": constant(narrow, scale.node.sources), "axis": axis}
        return MilCall("constexpr_affine_dequantize", given)
    blocks = [-1 if scale.shape and i == axis else 1 for i in range(len(x.shape))]
    data, *offsets = map(_nibbles, integers)
    offset = constant(offsets[0].reshape(blocks)) if offsets else None
    scales = constant(narrow.reshape(blocks), scale.node.sources)
    given = {"data": constant(data, x.node.sources), "scale": scales, "offset": offset}
    return MilCall("constexpr_blockwise_shift_scale", given)


def _write_blocks(node: Node) -> MilCall | None:
    """Writes constant integers with a scale for each block, in four bits if they fit. Returns None if the form would be
    read back as a `dequantize`."""
    x, scales = node.inputs
    assert x is not None
    assert scales is not None
    data = x.node.data
    if data is None or scales.node.data is None or scales.dtype not in (FP16, FP32) or not data.size or not x.shape:
        return None
    bits = encoding_of(node.values[0]).bits
    if bits == 4 and _one_axis(x.shape, scales.shape):
        return None
    stored = constant(_nibbles(x), x.node.sources) if bits == 4 else x
    return MilCall("constexpr_blockwise_shift_scale", {"data": stored, "scale": scales, "offset": None})


def _one_axis(shape: Sequence[int], blocks: Sequence[int]) -> bool:
    """True if there is one block, or one for each index of one axis."""
    several = [(d, s) for d, s in zip(shape, blocks, strict=True) if s != 1]
    return not several or (len(several) == 1 and several[0][0] == several[0][1])


LUT_SCALE = "lut_scale"  # name of the scales from which MIL computes the lut
_NIBBLES = {"int8": DTYPES["int4"], "uint8": DTYPES["uint4"]}


def _nibbles(value: Value) -> Array:
    assert value.node.data is not None
    return value.node.data.astype(_NIBBLES[value.dtype.name].numpy)


def _encoded(b: Builder, data: Value, scale: Array, zero: Array | None, axis: int, kind: DType) -> Value:
    """Returns encoded integers with a scale. A zero point of 0 is omitted."""
    wide = np.uint8 if data.dtype.kind == "uint" else np.int8
    zeros = None if zero is None or not zero.astype(wide).any() else b.const(np.array(zero.astype(wide), order="C"))
    if data.dtype.bits < 8:
        data = b.const(_data("data", data).astype(wide))
    return b.dequantize(data, b.const(scale.astype(np.float32)), zeros, axis=axis, dtype=kind)


def palette(node: Node) -> Node | None:
    """Returns a constant palette, gather(table, indices), in the form that reads back as itself. The indices are int32.
    The table has an entry for every index of as many bits as the encoding has; unused entries are 0.
    Returns None for encodings that are not in this form."""
    encoding = encoding_of(node.values[0])
    table, indices = node.inputs
    assert table is not None
    assert indices is not None
    entries, picks = table.node.data, indices.node.data
    if encoding.kind != "palette" or entries is None or picks is None or not picks.size or picks.min() < 0:
        return None
    bits = next((n for n in PALETTE_BITS if encoding.bits <= n), None)
    if bits is None or table.dtype not in (FP16, FP32) or picks.max() >= entries.size:
        return None
    padded = np.zeros(1 << bits, entries.dtype)
    padded[: entries.size] = entries
    inputs = [constant(padded, table.node.sources), constant(picks.astype(np.int32), indices.node.sources)]
    return make_node(node.op, inputs, dict(node.attrs), node.types, node.sources)


def write_palette(node: Node) -> MilCall | None:
    """Writes a gather that `palette` returned."""
    form = palette(node)
    if form is None or form.inputs != node.inputs:
        return None
    table, indices = node.inputs
    assert table is not None
    assert indices is not None
    assert table.node.data is not None
    assert indices.node.data is not None
    bits, masked = table.type.size.bit_length() - 1, encoding_of(node.values[0]).masked_bits
    if masked is not None:
        blocks = (1,) * indices.type.rank
        return _write_masked(indices, table.node.data.reshape(*blocks, -1), masked, table.node.sources)
    kind = DTYPES[f"uint{bits}"]
    picks = constant(indices.node.data.astype(kind.numpy), indices.node.sources, kind)
    lut = constant(table.node.data.reshape((1,) * indices.type.rank + (-1, 1)), table.node.sources)
    return MilCall("constexpr_lut_to_dense", {"indices": picks, "lut": lut})


def _write_palettes(node: Node) -> MilCall | None:
    """Writes constant indices with a table for each block. A table has 2^n entries for indices of n bits. The numbers
    of an entry become neighbours along vector_axis."""
    indices, tables = node.inputs
    assert indices is not None
    assert tables is not None
    picks, lut = indices.node.data, tables.node.data
    if picks is None or not picks.size or lut is None or tables.dtype not in (FP16, FP32):
        return None
    vectors = node.op == "decode_vectors"
    entries = tables.shape[picks.ndim]
    if entries not in [1 << bits for bits in PALETTE_BITS] or picks.max() >= entries or (vectors and lut.shape[-1] < 2):
        return None
    masked = encoding_of(node.values[0]).masked_bits
    if masked is not None:
        return _write_masked(indices, lut, masked, tables.node.sources)
    kind = DTYPES[f"uint{entries.bit_length() - 1}"]
    given: dict[str, Any] = {
        "indices": constant(picks.astype(kind.numpy), indices.node.sources, kind),
        "lut": tables if vectors else constant(lut[..., None], tables.node.sources),
    }
    return MilCall("constexpr_lut_to_dense", given | ({"vector_axis": node.attrs["axis"]} if vectors else {}))


def _write_scaled(node: Node) -> MilCall | None:
    """Writes indices of int8 tables. Before this op, the writer adds an op that converts the tables to floats."""
    indices, tables, scales = node.inputs
    assert indices is not None
    assert tables is not None
    assert scales is not None
    picks, lut, factors = indices.node.data, tables.node.data, scales.node.data
    if picks is None or not picks.size or lut is None or factors is None:
        return None
    entries = tables.shape[-1]
    if entries not in [1 << bits for bits in PALETTE_BITS] or picks.max() >= entries:
        return None
    kind = DTYPES[f"uint{entries.bit_length() - 1}"]
    given = {
        "indices": constant(picks.astype(kind.numpy), indices.node.sources, kind),
        "lut": constant(lut[..., None], tables.node.sources),
        LUT_SCALE: constant(factors[..., None], scales.node.sources),
    }
    return MilCall("constexpr_lut_to_dense", given)


def _write_masked(indices: Value, tables: Array, bits: int, sources: tuple[str, ...]) -> MilCall:
    """Returns a mask of nonzero indices, and these indices, with tables that lack entry 0. The writer adds the op that
    makes a dense weight of them."""
    picks, kind = indices.node.data, DTYPES[f"uint{bits}"]
    assert picks is not None
    mask = picks != 0
    entries = tables[..., 1 : 1 + (1 << bits)]
    lut = np.pad(entries, [(0, 0)] * picks.ndim + [(0, (1 << bits) - entries.shape[-1])])
    given = {
        "indices_mask": constant(mask.astype(np.uint8), indices.node.sources, DTYPES["uint1"]),
        "indices_nonzero_data": constant((picks[mask] - 1).astype(kind.numpy), indices.node.sources, kind),
        "lut": constant(np.ascontiguousarray(lut[..., None]), sources),
    }
    return MilCall("constexpr_lut_to_sparse", given)


def _data(name: str, value: Value) -> Array:
    if value.node.data is None:
        raise Error(f"{name}: got {value.type} that is computed, need a constant")
    return value.node.data


def _dense(b: Builder, array: Array, kind: DType) -> Value:
    with np.errstate(over="ignore"):
        return b.const(np.array(array.astype(kind.numpy), order="C"))


def _limited(shape: Sequence[int]) -> None:
    if np.prod(np.array(shape, np.float64)) * 8 > MAX_GROWTH_BYTES * 64:
        raise Error(f"got a weight of the shape {tuple(shape)}, need a smaller one")


def _read_affine(b: Builder, quantized_data: Value, zero_point: Value, scale: Value, axis: int) -> Value:
    """Reads (data - zero_point) * scale. zero_point, scale: one number for all elements, or one per index of the
    axis."""
    data = _data("quantized_data", quantized_data)
    if not -data.ndim <= axis < data.ndim:
        raise Error(f"axis: got {axis} for {quantized_data.type}, need one of its axes")
    line = [-1 if i == axis % data.ndim else 1 for i in range(data.ndim)]
    parts = []
    for name, value in (("zero_point", zero_point), ("scale", scale)):
        part = _data(name, value).astype(np.float64)
        if part.ndim > 1 or part.size not in (1, data.shape[axis]):
            raise Error(f"{name}: got {value.type}, need one number, or {data.shape[axis]}")
        parts.append(part.reshape(line if part.size > 1 else [1] * data.ndim))
    zeros, scales = _data("zero_point", zero_point), _data("scale", scale)
    like = quantized_data.dtype.bits == 8 and zero_point.dtype is quantized_data.dtype and scale.dtype in (FP16, FP32)
    if like and (not zeros.any() or zeros.shape == scales.shape) and scales.ndim <= 1 and scales.shape != (1,):
        return _encoded(b, quantized_data, scales, zeros, axis if scales.ndim else 0, scale.dtype)
    return _dense(b, (data.astype(np.float64) - parts[0]) * parts[1], scale.dtype)


def _spread(blocks: Array, shape: tuple[int, ...]) -> Array:
    for axis, (d, n) in enumerate(zip(shape, blocks.shape, strict=True)):
        blocks = np.repeat(blocks, d // n, axis)
    return blocks


def _read_blockwise(b: Builder, data: Value, scale: Value, offset: Value | None) -> Value:
    """Reads (data - offset) * scale, with one number of offset and scale per block."""
    elements, scales = _data("data", data), _data("scale", scale)
    offsets = np.zeros(scales.shape) if offset is None else _data("offset", offset)
    if scales.ndim != elements.ndim or offsets.shape != scales.shape or 0 in scales.shape:
        raise Error(f"got data {data.type} and scale {scale.type}, need a block for each number")
    if any(d % s for d, s in zip(elements.shape, scales.shape, strict=True)):
        raise Error(f"got data {data.type} and scale {scale.type}, need blocks of one size")
    wide_axes = [i for i, s in enumerate(scales.shape) if s != 1]
    whole = _one_axis(elements.shape, scales.shape)
    like = offset is None or offset.dtype is data.dtype
    if whole and like and data.dtype.name in ("int4", "uint4") and scale.dtype in (FP16, FP32):
        shape = (-1,) if wide_axes else ()
        zeros = None if offset is None else offsets.reshape(shape)
        return _encoded(b, data, scales.reshape(shape), zeros, wide_axes[0] if wide_axes else 0, scale.dtype)
    integers = data.dtype.kind in ("int", "uint") and data.dtype.bits <= 8
    if like and integers and scale.dtype in (FP16, FP32) and elements.size:
        centred = elements.astype(np.int16) - _spread(offsets.astype(np.int16), elements.shape)
        if centred.min() >= -128 and centred.max() <= 127:
            return b.decode_blocks(b.const(centred.astype(np.int8)), scale)
    result = elements.astype(np.float64) - _spread(offsets.astype(np.float64), elements.shape)
    result *= _spread(scales.astype(np.float64), elements.shape)
    return _dense(b, result, scale.dtype)


def _checked_palettes(picks: Array, indices: Value, lut: Value) -> tuple[int, ...]:
    """Returns the number of blocks on each axis of the indices. Raises Error if the palettes do not fit the indices."""
    palettes = _data("lut", lut)
    blocks: tuple[int, ...] = palettes.shape[: picks.ndim]
    entries, size = palettes.shape[-2:] if palettes.ndim > 1 else (0, 0)
    if indices.dtype.kind != "uint" or palettes.ndim != picks.ndim + 2 or 0 in (*blocks, size):
        raise Error(f"got indices {indices.type} and lut {lut.type}, need a lut of two axes more, none of them empty")
    if any(d % s for d, s in zip(picks.shape, blocks, strict=True)) or (picks.size and picks.max() >= entries):
        raise Error(
            f"got indices {indices.type} and lut {lut.type}, need blocks of one size and indices below {entries}"
        )
    return blocks


def _picked(picks: Array, palettes: Array) -> Array:
    """Returns the entries at the indices. palettes: [blocks.., entries], with an optional last axis for the numbers of
    an entry."""
    blocks = palettes.shape[: picks.ndim]
    at = np.meshgrid(*(np.arange(d) // (d // s) for d, s in zip(picks.shape, blocks, strict=True)), indexing="ij")
    entries: Array = palettes[(*at, picks.astype(np.int64))]
    return entries


def _stored_palette(b: Builder, picks: Array, palettes: Array) -> Value:
    """Returns an encoded weight of indices. palettes: [blocks.., entries]."""
    if set(palettes.shape[:-1]) == {1}:
        return b.gather(b.const(palettes.reshape(-1)), b.const(picks.astype(np.int32)), axis=0)
    return b.decode_palette(b.const(picks.astype(np.uint8)), b.const(np.ascontiguousarray(palettes)))


def _read_lut(b: Builder, indices: Value, lut: Value, vector_axis: int | None) -> Value:
    """Reads a palette. lut: the rank of the indices plus two, [blocks.., entries, numbers of an entry]. The numbers of
    an entry become neighbours along vector_axis."""
    picks = _data("indices", indices)
    scaled = _scaled_palette(b, picks, indices, lut)
    if scaled is not None:
        return scaled
    lut = _whole_lut(lut)
    blocks, palettes = _checked_palettes(picks, indices, lut), _data("lut", lut)
    entries, size = palettes.shape[-2:]
    axis = _vector_axis(picks.ndim, vector_axis, size)
    stays = entries in [1 << bits for bits in PALETTE_BITS] and picks.ndim > 1 and picks.size
    if stays and size > 1 and lut.dtype in (FP16, FP32):
        return b.decode_vectors(b.const(picks.astype(np.uint8)), b.const(palettes), axis=axis)
    if stays and size == 1 and (set(blocks) == {1} or lut.dtype in (FP16, FP32)):
        return _stored_palette(b, picks, palettes[..., 0])
    shape = [d * size if i == axis else d for i, d in enumerate(picks.shape)]
    _limited(shape)
    picked = _picked(picks, palettes)
    return _dense(b, (np.moveaxis(picked, -1, axis + 1) if size > 1 else picked).reshape(shape), lut.dtype)


def _scaled_palette(b: Builder, picks: Array, indices: Value, lut: Value) -> Value | None:
    """Returns indices of int8 tables, with a scale for each table or for several tables. Returns None for
    other luts: without scales, with scales that differ within a table or that fp16 lacks, or with vectors."""
    integers, scales = lut.node.inputs[:2] if lut.node.op == "decode_blocks" else (None, None)
    if integers is None or scales is None or lut.type.rank != picks.ndim + 2 or picks.ndim < 2 or not picks.size:
        return None
    tables, factors = _data("lut", integers), _data("lut", scales)
    if lut.shape[-1] != 1 or lut.shape[-2] not in [1 << bits for bits in PALETTE_BITS] or factors.shape[-2] != 1:
        return None
    with np.errstate(over="ignore"):
        if not np.array_equal(factors.astype(np.float16).astype(factors.dtype), factors):
            return None
    _checked_palettes(picks, indices, _whole_lut(lut))
    of_tables = _spread(factors, (*tables.shape[:-2], 1, 1))[..., 0]
    operands = (b.const(a) for a in (picks.astype(np.uint8), tables[..., 0], np.ascontiguousarray(of_tables)))
    return b.decode_scaled_palette(*operands)


def _whole_lut(lut: Value) -> Value:
    return encoding_of(lut).decode() if is_encoded(lut.node) else lut


def _vector_axis(rank: int, given: int | None, size: int) -> int:
    if size == 1:
        return 0  # with entries of one number, any axis gives the same result
    if given is None or not -rank <= given < rank:
        raise Error(f"vector_axis: got {given}, need one of {-rank}..{rank - 1} for entries of {size} numbers")
    return given % rank


def _read_masked(
    b: Builder, indices_mask: Value, indices_nonzero_data: Value, lut: Value, vector_axis: int | None
) -> tuple[Value, Value]:
    """Returns the mask, and the palette's entries at indices where the mask is 1. If a palette of at most 8 bits with
    an additional entry of 0 is possible, mask and entries are computed from it, so that `_read_sparse` finds it."""
    named, mask = _data("indices_nonzero_data", indices_nonzero_data), _data("indices_mask", indices_mask) != 0
    _limited(mask.shape)
    _need_as_many("indices_nonzero_data", indices_nonzero_data, mask)
    picks = np.zeros(mask.shape, np.int32)
    picks[mask] = named
    lut = _whole_lut(lut)
    _checked_palettes(picks, indices_nonzero_data, lut)
    if lut.shape[-1] != 1:
        raise Error(f"got lut {lut.type}, need entries of one number each for indices with a mask")
    palettes = _data("lut", lut)[..., 0]
    entries = palettes.shape[-1]
    bits = next((n for n in PALETTE_BITS if entries == 1 << n), None)
    # Entry 0 is inserted. The last entry is dropped if it is 0 and unused; otherwise indices get wider.
    if (named.size and named.max() == entries - 1) or palettes[..., -1].view(f"u{palettes.itemsize}").any():
        bits = next((n for n in PALETTE_BITS if bits is not None and n > bits), None)
    if bits is None or mask.ndim < 2 or not named.size or lut.dtype not in (FP16, FP32):
        return indices_mask, b.const(np.ascontiguousarray(_picked(picks, palettes)[mask]))
    wider = np.zeros((*palettes.shape[:-1], max(entries + 1, 1 << bits)), palettes.dtype)
    wider[..., 1 : entries + 1] = palettes
    dense = _stored_palette(b, (picks + 1) * mask, np.ascontiguousarray(wider[..., : 1 << bits]))
    places = b.const(np.flatnonzero(mask).astype(np.int32))
    return indices_mask, b.gather(b.reshape(dense, shape=(mask.size,)), places, axis=0)


def _palette_of(numbers: Value, mask: Value) -> Value:
    """Returns the palette from which `_read_masked` computed the numbers."""
    flat, places = numbers.node.inputs if numbers.node.op == "gather" else (None, None)
    dense = flat.node.inputs[0] if flat is not None and flat.node.op == "reshape" else None
    if dense is None or places is None or dense.shape != mask.shape:
        raise Error(f"nonzero_data: got {numbers.type} that is computed, need a constant")
    if not np.array_equal(_data("places", places), np.flatnonzero(_data("mask", mask))):
        raise Error("got nonzero_data of another mask, need both results of constexpr_lut_to_sparse")
    return dense


def _need_as_many(name: str, numbers: Value, mask: Array) -> None:
    if len(numbers.shape) != 1 or int(mask.sum()) != numbers.type.size:
        raise Error(f"got {name} {numbers.type} for a mask with {int(mask.sum())} ones, need as many")


def _read_sparse(b: Builder, nonzero_data: Value, mask: Value) -> Value:
    """Reads a sparse weight: the numbers in order where the mask is 1, and 0 at the other places."""
    if nonzero_data.node.op != "const":
        return _palette_of(nonzero_data, mask)
    values, places = _data("nonzero_data", nonzero_data), _data("mask", mask).astype(np.bool_)
    _limited(places.shape)
    _need_as_many("nonzero_data", nonzero_data, places)
    result = np.zeros(places.shape, values.dtype)
    result[places] = values
    return b.const(result)


def _read_constexpr_cast(b: Builder, source_val: Value, output_dtype: DType) -> Value:
    return _dense(b, _data("source_val", source_val), output_dtype)


FORMS = (
    Form("quantize", "quantize", _write, _read_quantize),
    Form("dequantize", "dequantize", _write, _read_dequantize),
    Form("decode_blocks", "constexpr_blockwise_shift_scale", _write_blocks, None),
    Form("decode_palette", "constexpr_lut_to_dense", _write_palettes, None),
    Form("decode_scaled_palette", "constexpr_lut_to_dense", _write_scaled, None),
    Form("decode_vectors", "constexpr_lut_to_dense", _write_palettes, None),
    Form("", "constexpr_affine_dequantize", None, _read_affine),
    Form("", "constexpr_blockwise_shift_scale", None, _read_blockwise),
    Form("", "constexpr_lut_to_dense", None, _read_lut),
    Form("", "constexpr_lut_to_sparse", None, _read_masked),
    Form("", "constexpr_sparse_to_dense", None, _read_sparse),
    Form("", "constexpr_cast", None, _read_constexpr_cast),
)

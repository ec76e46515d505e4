"""Imports onnxruntime's ops (domain com.microsoft) that look up elements, such as embeddings and crops, and a few
matrix ops."""

import numpy as np

from hexane.dtypes import DTYPES, FP16, FP32, INT32
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.onnx.foreign import MICROSOFT
from hexane.importers.onnx.node import Builder, OnnxNode, Result, axis_of
from hexane.importers.onnx.registry import domain_op
from hexane.importers.onnx.standard import given, standard
from hexane.ops.compose import cast, limited, part

LARGEST_INVERSE = 16  # most rows of a matrix, because the elimination is unrolled
_GRID = {"align_corners": 0, "mode": "bilinear", "padding_mode": "zeros"}


@domain_op(
    MICROSOFT, "EmbedLayerNormalization", inputs=(7, 9), attributes={"epsilon": 1e-12, "mask_index_type": 0},
    ignores=("mask_index_type",),
)  # fmt: skip
def embed_layer_normalization(b: Builder, n: OnnxNode) -> Result:
    """Returns the normalised sum of rows from the tables of words, positions and segments, the number of unmasked
    tokens in each sequence (0 without a mask), and the sum before the normalisation."""
    ids, words, places = n.value(0), n.value(2), n.value(3)
    mask, at = n.optional(7), n.optional(8)
    return _embedded(b, n, [ids, n.optional(1), mask, at], [words, places, n.optional(4)], n.value(5), n.value(6))


@domain_op(MICROSOFT, "QEmbedLayerNormalization", inputs=(18, 18), attributes={"epsilon": 1e-12})
def quantised_embed_layer_normalization(b: Builder, n: OnnxNode) -> Result:
    """Like embed_layer_normalization, for integer tables, scale and shift (inputs 2 to 6). Inputs 8 to 17 are scales
    and zero points."""
    words, places, segments, gamma, beta = (
        standard(b, n, "DequantizeLinear", n.value(i), n.value(i + 6), n.optional(i + 11)) if n.has(i) else None
        for i in range(2, 7)
    )
    if gamma is None:
        raise Error("gamma: got none, need a tensor")
    return _embedded(b, n, [n.value(0), n.optional(1), n.optional(7), None], [words, places, segments], gamma, beta)


def _embedded(
    b: Builder, n: OnnxNode, ids: list[Value | None], tables: list[Value | None], gamma: Value, beta: Value | None
) -> Result:
    words, segments, mask, at = ids
    if words is None or tables[1] is None or len(words.shape) != 2:
        raise Error("got ids or a table of places that are no matrix, need (batch, length) and (places, width)")
    batch, length = words.shape
    total = b.gather(tables[0], words, axis=0)
    total = b.add(total, part(b, tables[1], 0, 0, length) if at is None else b.gather(tables[1], at, axis=0))
    if segments is not None and tables[2] is not None:
        total = b.add(total, b.gather(tables[2], segments, axis=0))
    out = b.layer_norm(total, gamma, beta, axes=(-1,), epsilon=n.attrs["epsilon"])
    if mask is None:
        counts = b.const(np.zeros(batch, np.int32))
    else:
        counts = b.reduce_sum(cast(b, b.equal(mask, 1), INT32), axes=(1,), keep_dims=False)
    return [out, counts, total]


@domain_op(
    MICROSOFT, "GatherBlockQuantized", inputs=(3, 4),
    attributes={"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1},
)  # fmt: skip
def gather_block_quantized(b: Builder, n: OnnxNode) -> Result:
    """Gathers rows of an integer table. A scale, and an optional zero point, holds for each block along an axis. A byte
    holds one 8-bit integer, or two 4-bit ones with the first in the low bits. ONNX's int4 and uint4 are also
    allowed."""
    table, indices, scales = n.value(0), n.value(1), n.value(2)
    bits, block = n.attrs["bits"], n.attrs["block_size"]
    rank = len(table.shape)
    along, axis = axis_of(n.attrs["quantize_axis"], rank), axis_of(n.attrs["gather_axis"], rank)
    if bits not in (4, 8) or block < 16 or block & (block - 1) or along == axis:
        raise Error(f"got bits {bits}, block_size {block}, axes {along} and {axis}, need 4 or 8, a power of 2 from 16, "
                    "and two axes")  # fmt: skip
    whole, signed = _integers(n, 0, bits, along == rank - 1)
    if scales.dtype not in (FP32, FP16):
        raise Error(f"scales: got {scales.dtype}, need fp32 or fp16")
    factor = n.array(2).astype(np.float32)
    zeros = np.full(factor.shape, 0 if signed else 1 << (bits - 1), np.int16)
    if n.has(3):
        zeros = _integers(n, 3, bits, True)[0][tuple(slice(0, d) for d in factor.shape)]
    need = tuple(-(-d // block) if i == along else d for i, d in enumerate(whole.shape))
    if factor.shape != need or zeros.shape != need:
        raise Error(f"scales: got {list(factor.shape)}, zero points {list(zeros.shape)}, need {list(need)}")
    limited(whole.size, np.dtype(np.float32))
    places = np.arange(whole.shape[along]) // block
    numbers = (whole - zeros.take(places, along)) * factor.take(places, along)
    decoded = b.const(np.ascontiguousarray(numbers.astype(scales.dtype.numpy)))
    return b.gather(decoded, indices, axis=axis)


def _integers(
    n: OnnxNode, index: int, bits: int, last: bool
) -> "tuple[np.ndarray[tuple[int, ...], np.dtype[np.int16]], bool]":
    """Returns the integers of an input, and True if they are signed. A uint8 holds 8 // bits integers."""
    value = n.value(index)
    data = n.array(index)
    if value.dtype is not DTYPES["uint8"]:
        return data.astype(np.int16), value.dtype.name.startswith("int")
    if bits == 8:
        return data.astype(np.int16), False
    if not last:
        raise Error("quantize_axis: got another than the last with packed integers, need the last")
    pairs = np.stack([data & 15, data >> 4], -1).astype(np.int16)
    return pairs.reshape(*data.shape[:-1], 2 * data.shape[-1]), False


@domain_op(MICROSOFT, "GridSample", inputs=(2, 2), attributes=_GRID)
def grid_sample(b: Builder, n: OnnxNode) -> Result:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(n.attrs["mode"], n.attrs["mode"])
    options = {"padding_mode": n.attrs["padding_mode"], "align_corners": bool(n.attrs["align_corners"])}
    return b.grid_sample(n.value(0), n.value(1), mode=mode, **options)


@domain_op(
    MICROSOFT, "CropAndResize", inputs=(4, 4), attributes={"extrapolation_value": 0.0, "mode": "bilinear"},
    shape_inputs=(3,),
)  # fmt: skip
def crop_and_resize(b: Builder, n: OnnxNode) -> Result:
    """Crops boxes (top, left, bottom, right, each from 0 to 1) from the images at batch_indices and resizes them to
    crop_size. Points outside the image read extrapolation_value."""
    x, boxes, owners, size = n.value(0), n.value(1), n.value(2), n.ints(3)
    if len(x.shape) != 4 or boxes.shape[1:] != (4,) or len(size) != 2 or n.attrs["mode"] not in ("bilinear", "nearest"):
        raise Error(f"got x {x.shape}, boxes {boxes.shape}, size {size} and mode {n.attrs['mode']}, need an image, "
                    "(boxes, 4), two integers, bilinear or nearest")  # fmt: skip
    count, images = boxes.shape[0], b.gather(x, owners, axis=0)
    points, inside = [], []
    for axis in (0, 1):
        low, high = part(b, boxes, 1, axis, axis + 1), part(b, boxes, 1, axis + 2, axis + 3)
        steps = np.linspace(0, 1, size[axis]) if size[axis] > 1 else np.full(1, 0.5)
        rest = b.const(steps.astype(np.float32))
        at = b.add(b.mul(low, b.const((1 - steps).astype(np.float32))), b.mul(high, rest))  # (boxes, size)
        last = x.shape[2 + axis] - 1
        within = b.logical_and(b.greater_equal(at, 0.0), b.less_equal(at, 1.0))
        inside.append(within if last else b.equal(at, at))
        if n.attrs["mode"] == "nearest" and last:
            at = b.real_div(b.floor(b.add(b.mul(at, float(last)), 0.5)), float(last))
        points.append(b.sub(b.mul(at, 2.0), 1.0))
    shape = (count, *size)
    rows, columns = b.reshape(points[0], shape=(count, size[0], 1)), b.reshape(points[1], shape=(count, 1, size[1]))
    grid = b.stack(b.broadcast_to(columns, shape=shape), b.broadcast_to(rows, shape=shape), axis=3)
    out = b.grid_sample(images, grid, mode=n.attrs["mode"], align_corners=True, padding_mode="border")
    keep = b.logical_and(
        b.reshape(inside[0], shape=(count, 1, size[0], 1)), b.reshape(inside[1], shape=(count, 1, 1, size[1]))
    )
    return b.select(keep, out, b.const(np.full((), n.attrs["extrapolation_value"], x.dtype.numpy)))


@domain_op(MICROSOFT, "Inverse", inputs=(1, 1), attributes={})
def inverse(b: Builder, n: OnnxNode) -> Result:
    """Inverts square matrices by Gauss-Jordan elimination, with the largest element of a column as pivot."""
    x = n.value(0)
    rows = x.shape[-1] if len(x.shape) > 1 else 0
    if not 0 < rows <= LARGEST_INVERSE or x.shape[-2] != rows:
        raise Error(f"got matrices {x.shape}, need square ones of at most {LARGEST_INVERSE} rows")
    unit = np.eye(rows, dtype=x.dtype.numpy)
    one = b.broadcast_to(b.const(unit), shape=x.shape)
    work, last = b.concat(x, one, axis=-1), len(x.shape) - 1
    for step in range(rows):
        column = part(b, work, last, step, step + 1)
        free = np.arange(rows).reshape(rows, 1) >= step
        size = b.select(b.const(free), b.abs(column), b.const(np.full((), -1, x.dtype.numpy)))
        chosen = b.reduce_argmax(size, axis=-2, keep_dims=True)
        largest = b.equal(b.const(np.arange(rows).reshape(rows, 1).astype(chosen.dtype.numpy)), chosen)
        zero = b.const(np.zeros((), x.dtype.numpy))
        pivot = b.reduce_sum(b.select(largest, work, zero), axes=(-2,))
        here = part(b, work, last - 1, step, step + 1)
        work = b.select(largest, here, work)
        pivot = b.real_div(pivot, part(b, pivot, last, step, step + 1))
        column = b.select(b.const(np.arange(rows).reshape(rows, 1) == step), zero, part(b, work, last, step, step + 1))
        work = b.select(b.const(np.arange(rows).reshape(rows, 1) == step), pivot, b.sub(work, b.mul(column, pivot)))
    return part(b, work, last, rows, 2 * rows)


@domain_op(MICROSOFT, "Trilu", inputs=(1, 2), attributes={"upper": 1}, shape_inputs=(1,))
def trilu(b: Builder, n: OnnxNode) -> Result:
    return standard(b, n, "Trilu", n.value(0), n.optional(1), **given(n, ["upper"]))


@domain_op(MICROSOFT, "ExpandDims", inputs=(2, 2), attributes={}, shape_inputs=(1,))
def expand_dims(b: Builder, n: OnnxNode) -> Result:
    return b.expand_dims(n.value(0), axes=(n.integer(1),))

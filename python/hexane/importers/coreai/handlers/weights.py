"""Compressed weights and quantised tensors."""

from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import DTYPES, FP16, FP32, DType
from hexane.graph import Array, Value, constant
from hexane.importers.coreai.attributes import Tensor
from hexane.importers.coreai.encoded import decoded
from hexane.importers.coreai.numbers import DTYPE_OF, whole_bytes
from hexane.importers.coreai.registry import Context, Found, Sparse, handles
from hexane.ops import OPS, apply
from hexane.ops.encodings import is_encoded


@handles("primitive.blockwise_shift_scale")
def _blockwise(c: Context) -> Found:
    """Returns scale * (data - offset1) + offset2. Each scale and offset holds for a block of the data."""
    kind = _declared(c)
    data = c.value(0)
    if data.node.op != "const" and not is_encoded(data.node):
        return _affine(c, data, kind)
    if (stored := _stored_integers(c, decoded(data), kind)) is not None:
        return stored
    wide: Any = np.float64 if kind.numpy == np.float64 else np.float32
    numbers = c.array(0).astype(wide)
    scales = _spread(c, 1, numbers.shape).astype(wide)
    first, second = (_spread(c, i, numbers.shape).astype(wide) if i < len(c.operands) else wide(0) for i in (2, 3))
    with np.errstate(all="ignore"):  # an infinite scale times 0 is NaN
        return c.b.const((scales * (numbers - first) + second).astype(kind.numpy))


def _stored_integers(c: Context, data: Value, kind: DType) -> Value | None:
    """Returns `dequantize` if there is one scale, or one for each index of one axis, else `decode_blocks`. Returns None
    if these ops do not take the dtypes and shapes, or would give other bits, such as -0.0 for 0 times a negative
    scale."""
    scales, like = c.array(1), c.value(2).dtype if len(c.operands) > 2 else data.dtype
    first, second = (c.array(i) if i < len(c.operands) else np.zeros_like(scales) for i in (2, 3))
    if data.dtype.kind not in ("int", "uint") or data.dtype.bits > 8 or like is not data.dtype or not data.type.size:
        return None
    if kind not in (FP16, FP32) or scales.dtype != kind.numpy or second.any() or not (scales > 0).all():
        return None
    if scales.ndim != data.type.rank or not scales.ndim or first.shape != scales.shape or 0 in scales.shape:
        return None
    if any(d % n for d, n in zip(data.shape, scales.shape, strict=True)):
        return None
    wide: Any = np.int8 if data.dtype.kind == "int" else np.uint8
    several = [i for i, n in enumerate(scales.shape) if n != 1]
    if not several or (len(several) == 1 and scales.shape[several[0]] == data.shape[several[0]]):
        return _one_axis(c, scales, first.astype(wide), several, kind)
    steps = whole_bytes(c.array(0), c.translator.room)
    if first.any():
        steps = steps.astype(np.int16) - _repeated(c, first.astype(np.int16), data.shape)
    if steps.dtype != np.int8 and (steps.min() < -128 or steps.max() > 127):
        return None
    return _applied(c, "decode_blocks", c.b.const(steps.astype(np.int8, copy=False)), c.b.const(scales))


def _one_axis(c: Context, scales: Array, zeros: Array, several: list[int], kind: DType) -> Value:
    """Returns `dequantize` of integers with one scale and zero point, or one for each index of one axis."""
    line, axis = ((-1,), several[0]) if several else ((), 0)
    numbers = c.b.const(whole_bytes(c.array(0), c.translator.room))
    scale, zero = c.b.const(scales.astype(np.float32).reshape(line)), c.b.const(zeros.reshape(line))
    return _applied(c, "dequantize", numbers, scale, zero if zeros.any() else None, axis=axis, dtype=kind)


def _applied(c: Context, op: str, *operands: Value | None, **attrs: Any) -> Value:
    """Applies an op to constants without folding it."""
    return apply(OPS[op], list(operands), attrs, c.b.sources)[0]


def _declared(c: Context) -> DType:
    kind = c.results[0].type
    if not isinstance(kind, Tensor) or kind.element not in DTYPE_OF:
        c.fail(f"got the result {kind}, need a tensor of real numbers")
    return DTYPES[DTYPE_OF[kind.element]]


def _spread(c: Context, index: int, shape: tuple[int, ...]) -> Array:
    """Repeats the number of each block for all elements of the block."""
    return _repeated(c, c.array(index), shape)


def _repeated(c: Context, array: Array, shape: tuple[int, ...]) -> Array:
    for axis, extent in enumerate(shape):
        if axis < array.ndim and array.shape[axis] != extent:
            if array.shape[axis] == 0 or extent % array.shape[axis]:
                c.fail(f"got {array.shape[axis]} blocks along an axis of {extent}, need a divisor of it")
            array = np.repeat(array, extent // array.shape[axis], axis)
    return array


def _affine(c: Context, data: Value, kind: DType) -> Value:
    x = c.b.cast(data, dtype=kind)
    shaped = [c.b.const(_spread(c, i, data.shape).astype(kind.numpy)) for i in range(1, len(c.operands))]
    if len(shaped) > 1:
        x = c.b.sub(x, shaped[1])
    x = c.b.mul(x, shaped[0])
    return c.b.add(x, shaped[2]) if len(shaped) > 2 else x


@handles("primitive.lut_to_dense")
def _lut(c: Context) -> Found:
    """Returns the entries of a table at the indices. The table is [blocks.., entries, numbers of an entry]. If an entry
    has several numbers, they widen an axis."""
    indices, table = whole_bytes(c.array(0), c.translator.room), c.array(1)
    *blocks, entries, width = table.shape
    if len(blocks) != indices.ndim:
        c.fail(f"got palettes of {len(blocks)} axes for indices of {indices.ndim}, need as many")
    if indices.dtype.kind == "i" and indices.size and indices.min() < 0:
        c.fail(f"got the index {indices.min()}, need none below 0")
    if entries < 1 << c.value(0).dtype.bits and indices.size and indices.max() >= entries:
        c.fail(f"got the index {indices.max()}, need one below {entries}")
    for extent, count in zip(indices.shape, blocks, strict=True):
        if count == 0 or extent % count:
            c.fail(f"got {count} palettes along an axis of {extent}, need a divisor of it")
    if (stored := _stored_indices(c, indices, table)) is not None:
        return stored
    places = []
    for axis, (extent, count) in enumerate(zip(indices.shape, blocks, strict=True)):
        line = np.arange(extent) // (extent // count) if extent else np.arange(0)
        places.append(line.reshape([-1 if i == axis else 1 for i in range(indices.ndim)]))
    vectors = table[(*places, indices)]
    if width == 1:
        return c.b.const(np.ascontiguousarray(vectors[..., 0]))
    axis = c.integer(2) % indices.ndim
    moved = np.moveaxis(vectors, -1, axis + 1)
    shape = [n * width if i == axis else n for i, n in enumerate(indices.shape)]
    return c.b.const(np.ascontiguousarray(moved.reshape(shape)))


def _stored_indices(c: Context, indices: Array, table: Array) -> Value | None:
    """Returns encoded indices of a table, or None for other entries than at most 256 of fp16 or fp32, and for signed
    indices."""
    entries, width = table.shape[-2:]
    if table.dtype not in (np.float16, np.float32) or not indices.size or not indices.ndim:
        return None
    if entries > 256 or indices.dtype != np.uint8:
        return None
    if width > 1:
        axis = c.integer(2) % indices.ndim
        return _applied(c, "decode_vectors", c.b.const(indices), c.b.const(table), axis=axis)
    return _applied(c, "decode_palette", c.b.const(indices), c.b.const(table[..., 0]))


# ---- sparse weights ----


@handles("primitive.build_sparse_with_bitmask")
def _build_sparse(c: Context) -> Found:
    """Returns the dense tensor with its mask: the numbers where the mask is 1, zeros where it is 0."""
    numbers, mask = c.array(0).ravel(), c.array(1).astype(bool)
    if numbers.size < mask.sum():
        c.fail(f"got {numbers.size} numbers for a mask with {mask.sum()} ones, need as many")
    dense = np.zeros(mask.shape, numbers.dtype)
    dense[mask] = numbers[: int(mask.sum())]
    kind = c.results[0].type
    if isinstance(kind, Tensor) and prod(mask.shape) == prod(d or 0 for d in kind.shape):
        shape = [d or 0 for d in kind.shape]
        dense, mask = dense.reshape(shape), mask.reshape(shape)
    return Sparse(constant(dense, c.b.sources, c.value(0).dtype), mask)


@handles("primitive.sparse_with_bitmask_to_dense")
def _to_dense(c: Context) -> Found:
    return c.value(0)


@handles("primitive.lut_to_sparse_with_bitmask")
def _lut_to_sparse(c: Context) -> Found:
    """Returns the entries of a table at the indices where a mask is 1, and zeros where it is 0. Entries of several
    numbers also widen an axis of the mask."""
    return _among_zeros(c, _lut(c))


@handles("primitive.sparse_with_bitmask_blockwise_shift_scale")
def _sparse_blockwise(c: Context) -> Found:
    """Returns dequantised integers where a mask is 1, and zeros where it is 0, whatever the offsets are."""
    return _among_zeros(c, _blockwise(c))


def _among_zeros(c: Context, item: Found) -> Sparse:
    """Returns the decoded numbers of a sparse operand where its mask is 1, and zeros where it is 0."""
    stored, numbers = c.operands[0], decoded(item).node.data if isinstance(item, Value) else None
    if not isinstance(stored, Sparse) or numbers is None:
        c.fail("got numbers without a mask, need those of build_sparse_with_bitmask")
    mask = _repeated(c, stored.mask, numbers.shape)
    return Sparse(c.b.const(np.where(mask, numbers, np.zeros((), numbers.dtype))), mask)


# ---- quantised tensors ----


def _sides(c: Context, rank: int) -> list[Value | None]:
    """Returns scale, offset1 and offset2. If one of them is a vector, it is reshaped to broadcast along the tensor's
    axis that operand 4 names (the last one by default)."""
    axis = c.integer(4) if len(c.operands) > 4 else -1
    sides: list[Value | None] = []
    for i in (1, 2, 3):
        x = c.value(i) if i < len(c.operands) else None
        if x is not None and x.type.rank == 1 and rank:
            shape = [1] * rank
            shape[axis % rank] = x.shape[0]
            x = c.b.reshape(x, shape=shape)
        sides.append(x)
    return sides


@handles("dequantize")
def _dequantize(c: Context) -> Found:
    """Returns (x - offset1) * scale + offset2."""
    x = c.value(0)
    scale, first, second = _sides(c, x.type.rank)
    assert scale is not None
    y = c.b.cast(x, dtype=scale.dtype)
    if first is not None:
        y = c.b.sub(y, c.b.cast(first, dtype=scale.dtype))
    y = c.b.mul(y, scale)
    return y if second is None else c.b.add(y, c.b.cast(second, dtype=scale.dtype))


@handles("quantize")
def _quantize(c: Context) -> Found:
    """Returns round((x - offset2) / scale) + offset1, clamped to the range of the integers."""
    x, to = c.value(0), _declared(c)
    if to.kind == "float":
        c.fail(f"got a quantisation to {to}, need integers")
    scale, first, second = _sides(c, x.type.rank)
    b = c.b
    y = x if x.dtype is not FP16 else b.cast(x, dtype=FP32)
    if second is not None:
        y = b.sub(y, b.cast(second, dtype=y.dtype))
    assert scale is not None
    y = b.round(b.real_div(y, b.cast(scale, dtype=y.dtype)))
    if first is not None:
        y = b.add(y, b.cast(first, dtype=y.dtype))
    bits = to.bits
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if to.kind == "int" else (0, (1 << bits) - 1)
    return b.cast(b.clip(y, alpha=float(low), beta=float(high)), dtype=to)

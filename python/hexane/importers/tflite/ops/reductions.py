"""Reductions over axes, indices of maxima and minima, the k largest elements, and cumulative sums."""

from math import prod

import numpy as np

from hexane.dtypes import INT32, INT64
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.tflite.integer import multiplier, one, stored, two, wrapped
from hexane.importers.tflite.registry import INT8, INT16, UINT8, Context, reads
from hexane.ops.compose import cast
from hexane.ops.records.q31 import LEAST_SHIFT


def _axes(c: Context, i: int = 1) -> tuple[int, ...]:
    rank = len(c.x(0).shape)
    axes = {a + rank if a < 0 else a for a in c.ints(i)}
    if any(not 0 <= a < rank for a in axes):
        raise Error(f"got the axes {sorted(axes)}, need some of {rank}")
    return tuple(sorted(axes))


@reads("MEAN")
def mean(c: Context) -> Value:
    x, b, axes, keep = c.x(0), c.b, _axes(c), bool(c.o["keep_dims"])
    if not axes:
        return x
    if x.dtype.kind == "float":
        return b.reduce_mean(x, axes=axes, keep_dims=keep)
    count = prod(x.shape[a] for a in axes)
    if not c.is_integer:
        total = b.reduce_sum(cast(b, x, INT64), axes=axes, keep_dims=keep)
        return cast(b, b.real_div(total, max(count, 1)), x.dtype)
    grid, to = c.grid(), c.out_grid
    m, shift = multiplier(float(np.float64(grid.scale) / np.float64(to.scale)))
    up = min(count.bit_length() - 1, 32, shift - LEAST_SHIFT)
    m, shift = (m << up) // count, shift - up
    if x.dtype in (INT8, UINT8):
        return b.q31_mean(x, axes=axes, keep_dims=keep, x_zero=grid.zero, multiplier=m, shift=shift, dtype=x.dtype,
                          output_zero=to.zero)  # fmt: skip
    total = b.reduce_sum(cast(b, x, INT64), axes=axes, keep_dims=keep)
    return stored(b, two(b, b.sub(total, count * grid.zero), m, shift), x.dtype, to.zero)


@reads("SUM")
def total(c: Context) -> Value:
    x, b, axes, keep = c.x(0), c.b, _axes(c), bool(c.o["keep_dims"])
    if not axes:
        return x
    if not c.is_integer:
        return b.reduce_sum(x, axes=axes, keep_dims=keep)
    grid, to = c.grid(), c.out_grid
    count = prod(x.shape[a] for a in axes)
    sums = b.reduce_sum(cast(b, x, INT64), axes=axes, keep_dims=keep)
    m, shift = multiplier(float(np.float64(grid.scale) / np.float64(to.scale)))
    return stored(b, two(b, b.sub(sums, count * grid.zero), m, shift), x.dtype, to.zero)


@reads("REDUCE_PROD")
def product(c: Context) -> Value:
    """Multiplies elements. Quantised integers are multiplied one by one. Each of the n partial products is scaled
    by scale / result_scale^(1/n)."""
    x, b, axes, keep = c.x(0), c.b, _axes(c), bool(c.o["keep_dims"])
    if not axes:
        return x
    if not c.is_integer:
        return b.reduce_prod(x, axes=axes, keep_dims=keep)
    grid, to = c.grid(), c.out_grid
    count = prod(x.shape[a] for a in axes)
    if count > 256:
        raise Error(f"got a product of {count} quantised numbers, need at most 256")
    m, shift = multiplier(float(np.float64(grid.scale) / np.float64(to.scale) ** (1 / count)))
    rest = [a for a in range(len(x.shape)) if a not in axes]
    moved = b.transpose(x, perm=[*axes, *rest])
    moved = b.sub(cast(b, b.reshape(moved, shape=(count, *(x.shape[a] for a in rest))), INT64), grid.zero)
    whole: Value | None = None
    for i in range(count):
        part = b.slice_by_index(moved, begin=[i] + [0] * len(rest), end=[i + 1, *moved.shape[1:]])
        whole = part if whole is None else wrapped(b, one(b, b.mul(whole, part), m, shift))
    assert whole is not None
    y = stored(b, wrapped(b, one(b, whole, m, shift)), x.dtype, to.zero)
    shape = tuple(1 if a in axes else d for a, d in enumerate(x.shape) if keep or a not in axes)
    return b.reshape(y, shape=shape)


@reads("REDUCE_MAX", "REDUCE_MIN")
def extreme(c: Context) -> Value:
    x, b, axes = c.x(0), c.b, _axes(c)
    if not axes:
        return x
    if c.is_integer and (c.grid().scale, c.grid().zero) != (c.out_grid.scale, c.out_grid.zero):
        raise Error("got another scale or zero point for the result than for the operand, need the same")
    wide = cast(b, x, INT32) if x.dtype is INT16 else x
    y = b.apply(c.op.name.lower(), wide, axes=axes, keep_dims=bool(c.o["keep_dims"]))
    return cast(b, y, x.dtype)


@reads("REDUCE_ALL", "REDUCE_ANY")
def truths(c: Context) -> Value:
    b, axes = c.b, _axes(c)
    if not axes:
        return c.x(0)
    numbers = cast(b, c.x(0), INT32)
    name = "reduce_min" if c.op.name == "REDUCE_ALL" else "reduce_max"
    return b.not_equal(b.apply(name, numbers, axes=axes, keep_dims=bool(c.o["keep_dims"])), 0)


@reads("ARG_MAX", "ARG_MIN")
def arg_extreme(c: Context) -> Value:
    x, b, (axis,) = c.x(0), c.b, c.ints(1)
    name = "reduce_argmax" if c.op.name == "ARG_MAX" else "reduce_argmin"
    wide = cast(b, x, INT32) if x.dtype in (INT16, INT8, UINT8) or x.dtype.kind == "bool" else x
    return b.apply(name, wide, axis=axis, keep_dims=False, dtype=c.out().dtype)


@reads("TOPK_V2")
def topk(c: Context) -> tuple[Value, ...]:
    x, b, (k,) = c.x(0), c.b, c.ints(1)
    wide = cast(b, x, INT32) if x.dtype in (INT16, INT8, UINT8) else x
    values, places = b.several("topk", wide, axis=-1, k=k, dtype=c.out(1).dtype)
    return cast(b, values, x.dtype), places


@reads("CUMSUM")
def cumsum(c: Context) -> Value:
    (axis,) = c.ints(1)
    return c.b.cumsum(c.x(0), axis=axis, exclusive=bool(c.o["exclusive"]), reverse=bool(c.o["reverse"]))

"""Ops on windows: other poolings, unpooling, extraction of windows as columns and the sum of such columns."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import INT32, INT64
from hexane.errors import Error
from hexane.graph import TensorType, Value
from hexane.ops.attributes import Attr, flag, integer, integers
from hexane.ops.compose import Builder, limited
from hexane.ops.dtype_rules import floating, numeric, same_dtype
from hexane.ops.gradients import windows as grads
from hexane.ops.shape_rules import Shape, axis_index
from hexane.ops.spec import Case, Op
from hexane.ops.taps import pairs, pool_taps
from hexane.ops.window_rules import POOL, WINDOW, pool_shape, spread, spread_pad, window_attrs

Array = Any


def _places(
    extents: Shape, kernel: Shape, outs: Shape, strides: Shape, dilations: Shape, pad: Shape, steps: Shape = ()
) -> tuple[Array, Array, Array]:
    """Returns for each window and tap (points, taps): the index of the element that the tap reads, whether the element
    lies inside, and its index with strides `steps`."""
    at = np.zeros((prod(outs), prod(kernel)), np.int64)
    inside, spread_at = np.ones(at.shape, bool), np.zeros(at.shape, np.int64)
    for i, extent in enumerate(extents):
        place = (np.indices(tuple(outs))[i].reshape(-1, 1) * strides[i] - pad[2 * i]
                 + np.indices(tuple(kernel))[i].reshape(1, -1) * dilations[i])  # fmt: skip
        inside &= (place >= 0) & (place < extent)
        at = at * extent + place
        if steps:
            spread_at += place * steps[i]
    return at, inside, spread_at


# ---- lp_pool ----


def _lp_attrs(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    if attrs["p"] < 1:
        raise Error(f"p: got {attrs['p']}, need a positive integer")
    return window_attrs(types, attrs)


def _lp_shape(x: Shape, p: int, **attrs: Any) -> Shape:
    return pool_shape(x, **attrs, ceil_mode=False, layout="nchw")


def _expand_lp_pool(b: Builder, x: Value, p: int, **attrs: Any) -> Value:
    """Expands to an average pool of |x|^p, padding included, times the window's size, and the p-th root."""
    powers = b.avg_pool(b.pow(b.abs(x), float(p)), exclude_padding=False, **attrs)
    return b.pow(b.mul(powers, float(prod(attrs["kernel_sizes"]))), 1 / p)


def _lp_pool(x: Array, p: int, **attrs: Any) -> Array:
    values, _ = pool_taps(x, 0.0, **attrs, ceil_mode=False)
    return np.linalg.norm(values, p, axis=0)


# ---- max_pool_with_indices, max_unpool ----


def _indexed_attrs(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    result, x = window_attrs(types, attrs), types[0]
    if attrs["column_major"] and x.rank != 4:
        raise Error(f"column_major: got it for the shape {x.shape}, need two spatial axes")
    if 0 in x.shape:
        raise Error(f"got the shape {x.shape}, need at least one element")
    outs = pool_shape(x.shape, layout="nchw", **{k: v for k, v in result.items() if k != "column_major"})[2:]
    limited(max(prod(result["kernel_sizes"]) * prod(outs), x.shape[0] * x.shape[1]), np.dtype(np.int64))
    return result


def _indexed_shape(x: Shape, column_major: bool, **attrs: Any) -> list[Shape]:
    return [pool_shape(x, **attrs, layout="nchw")] * 2


def _expand_indexed(b: Builder, x: Value, column_major: bool, **attrs: Any) -> list[Value]:
    values = b.max_pool(x, **attrs)
    extents, outs = x.shape[2:], values.shape[2:]
    size, lines = prod(extents), x.shape[0] * x.shape[1]
    steps = (1, extents[0]) if column_major else tuple(prod(extents[i + 1 :]) for i in range(len(extents)))
    options = {k: v for k, v in attrs.items() if k in ("strides", "dilations", "pad")}
    at, inside, places = _places(extents, attrs["kernel_sizes"], outs, **options, steps=steps)
    flat = b.pad(b.reshape(x, shape=(*x.shape[:2], size)), begin=(0, 0, 0), end=(0, 0, 1), value=-np.inf)
    windows = b.gather(flat, b.const(np.ascontiguousarray(np.where(inside, at, size).T)), axis=2)
    tap = b.reduce_argmax(windows, axis=2, keep_dims=True, dtype=INT64)
    table = b.broadcast_to(b.const(np.ascontiguousarray(np.where(inside, places, 0).T)), shape=windows.shape)
    local = b.reshape(b.gather_along_axis(table, tap, axis=2), shape=values.shape)
    first = np.arange(lines).reshape(*x.shape[:2], *[1] * len(extents)) * size
    return [values, b.add(local, b.const(first))]


def _indexed(x: Array, column_major: bool, **attrs: Any) -> list[Array]:
    values, regions = pool_taps(x, -np.inf, **attrs)
    shape = x.shape[2:]
    order = np.arange(prod(shape)).reshape(shape, order="F" if column_major else "C")
    counted, _ = pool_taps(np.broadcast_to(order, (1, 1, *shape)), 0, **attrs)
    best = np.argmax(np.where(regions == 2, values, -np.inf), axis=0)
    places = np.take_along_axis(np.broadcast_to(counted, values.shape), best[None], 0)[0]
    lines = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * len(shape))
    return [values.max(axis=0), places + lines * prod(shape)]


def _unpooled(x: Shape, kernel_sizes: Shape, strides: Shape, pad: Shape, **_: Any) -> Shape:
    outs = [(d - 1) * s - sum(p) + k for d, s, k, p in zip(x[2:], strides, kernel_sizes, pairs(pad), strict=True)]
    if min(outs) < 1:
        raise Error(f"got the output extents {outs}, need positive ones")
    return (*x[:2], *outs)


def _unpool_shape(x: Shape, indices: Shape, output_shape: Shape, **attrs: Any) -> Shape:
    if indices != x:
        raise Error(f"got x {x} and indices {indices}, need equal shapes")
    shape = _unpooled(x, **attrs)
    if output_shape and (
        len(output_shape) != len(shape) or any(w < d for w, d in zip(output_shape, shape, strict=True))
    ):
        raise Error(f"output_shape: got {output_shape}, need at least {shape}")
    return output_shape or shape


def _unpool_dtype(x: Any, indices: Any, **_: Any) -> Any:
    if indices not in (INT32, INT64):
        raise Error(f"got indices of dtype {indices}, need int32 or int64")
    return numeric(x)


def _unpool_limit(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> None:
    shape = _unpooled(types[0].shape, **{k: v for k, v in attrs.items() if k != "output_shape"})
    limited(prod(shape), types[0].dtype.numpy)


def _expand_max_unpool(b: Builder, x: Value, indices: Value, output_shape: Shape, **attrs: Any) -> Value:
    shape = _unpooled(x.shape, **attrs)
    flat = [b.reshape(v, shape=(x.type.size,)) for v in (indices, x)]
    y = b.scatter_along_axis(b.const(np.zeros(prod(shape), x.dtype.numpy)), *flat, axis=0, mode="update")
    y = b.reshape(y, shape=shape)
    if output_shape in ((), shape):
        return y
    return b.pad(y, begin=(0,) * len(shape), end=[w - d for w, d in zip(output_shape, shape, strict=True)])


def _max_unpool(x: Array, indices: Array, output_shape: Shape, **attrs: Any) -> Array:
    shape = _unpooled(x.shape, **attrs)
    y = np.zeros(shape, x.dtype)
    for value, index in zip(x.reshape(-1), indices.reshape(-1), strict=True):
        y[np.unravel_index(index % y.size if index < 0 else index, shape)] = value
    return np.pad(y, [(0, w - d) for w, d in zip(output_shape or shape, shape, strict=True)])


# ---- im2col, col2im ----


def _column_attrs(num: int, attrs: Mapping[str, Any]) -> dict[str, Any]:
    result = {name: spread(name, attrs[name], num) for name in ("kernel_sizes", "strides", "dilations")}
    result["pad"] = spread_pad(attrs["pad"], num)
    if num < 1 or any(min(v) < 1 for k, v in result.items() if k != "pad") or min(result["pad"]) < 0:
        raise Error(f"got {dict(attrs)}, need positive numbers for each of {num} axes, and pads that are not negative")
    return {**attrs, **result}


def _counts(extents: Shape, kernel_sizes: Shape, strides: Shape, dilations: Shape, pad: Shape) -> Shape:
    counts = tuple(
        (d + sum(p) - r * (k - 1) - 1) // s + 1
        for d, k, s, r, p in zip(extents, kernel_sizes, strides, dilations, pairs(pad), strict=True)
    )
    if min(counts) < 1:
        raise Error(f"got the extents {extents} for kernels of {kernel_sizes}, need room for one")
    return counts


def _im2col_attrs(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return _column_attrs(types[0].rank - 2, attrs)


def _im2col_shape(x: Shape, kernel_sizes: Shape, **attrs: Any) -> Shape:
    counts = _counts(x[2:], kernel_sizes, **attrs)
    limited(prod(kernel_sizes) * prod(counts), np.dtype(np.int64))
    return (x[0], x[1] * prod(kernel_sizes), prod(counts))


def _expand_im2col(b: Builder, x: Value, kernel_sizes: Shape, pad: Shape, **attrs: Any) -> Value:
    counts = _counts(x.shape[2:], kernel_sizes, pad=pad, **attrs)
    begin, end = (0, 0, *pad[::2]), (0, 0, *pad[1::2])
    x = b.pad(x, begin=begin, end=end) if any(pad) else x
    at, _, _ = _places(x.shape[2:], kernel_sizes, counts, **attrs, pad=(0,) * len(pad))
    flat = b.reshape(x, shape=(*x.shape[:2], prod(x.shape[2:])))
    columns = b.gather(flat, b.const(np.ascontiguousarray(at.T)), axis=2)
    return b.reshape(columns, shape=(x.shape[0], x.shape[1] * prod(kernel_sizes), prod(counts)))


def _im2col(x: Array, kernel_sizes: Shape, strides: Shape, dilations: Shape, pad: Shape) -> Array:
    x = np.pad(x, ((0, 0), (0, 0), *pairs(pad)))
    reach = tuple(r * (k - 1) + 1 for k, r in zip(kernel_sizes, dilations, strict=True))
    axes = tuple(range(2, x.ndim))
    windows: Array = np.lib.stride_tricks.sliding_window_view(x, reach, axes)
    windows = windows[(..., *(slice(None, None, s) for s in strides), *(slice(None, None, r) for r in dilations))]
    moved = np.moveaxis(windows, axes, range(-len(axes), 0))
    return moved.reshape(x.shape[0], x.shape[1] * prod(kernel_sizes), prod(moved.shape[-len(axes) :]))


def _col2im_attrs(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return _column_attrs(len(attrs["image_shape"]), attrs)


def _col2im_shape(x: Shape, image_shape: Shape, kernel_sizes: Shape, **attrs: Any) -> Shape:
    taps, columns = prod(kernel_sizes), prod(_counts(image_shape, kernel_sizes, **attrs))
    if len(x) != 3 or x[1] % taps or x[2] != columns:
        raise Error(f"got x {x}, need (N, C * {taps}, {columns})")
    return (x[0], x[1] // taps, *image_shape)


def _col2im_limit(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> None:
    limited(max(types[0].size, prod(attrs["image_shape"])), np.dtype(np.int64))


def _col2im(x: Array, image_shape: Shape, kernel_sizes: Shape, strides: Shape, dilations: Shape, pad: Shape) -> Array:
    counts = _counts(image_shape, kernel_sizes, strides, dilations, pad)
    blocks = x.reshape(x.shape[0], -1, *kernel_sizes, *counts)
    whole = [d + sum(p) for d, p in zip(image_shape, pairs(pad), strict=True)]
    y: Array = np.zeros((*blocks.shape[:2], *whole), x.dtype)
    for tap in np.ndindex(*kernel_sizes):
        window = (slice(t * r, t * r + (c - 1) * s + 1, s)
                  for t, r, c, s in zip(tap, dilations, counts, strides, strict=True))  # fmt: skip
        y[(..., *window)] += blocks[(slice(None), slice(None), *tap)]
    return y[(..., *(slice(p, p + d) for (p, _), d in zip(pairs(pad), image_shape, strict=True)))]


# ---- sliding_windows ----


def _sliding_attrs(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    axis = axis_index(attrs["axis"], types[0].rank)
    extent, size, stride = types[0].shape[axis], attrs["size"], attrs["stride"]
    if stride < 1 or not 1 <= size <= extent:
        raise Error(f"got windows of {size} every {stride} for an extent of {extent}, need windows within it")
    limited(((extent - size) // stride + 1) * size, np.dtype(np.int64))
    return {**attrs, "axis": axis}


def _sliding_shape(x: Shape, axis: int, size: int, stride: int) -> Shape:
    return (*x[:axis], (x[axis] - size) // stride + 1, size, *x[axis + 1 :])


def _expand_sliding(b: Builder, x: Value, axis: int, size: int, stride: int) -> Value:
    starts = np.arange(0, x.shape[axis] - size + 1, stride)
    return b.gather(x, b.const(starts[:, None] + np.arange(size)), axis=axis)


def _sliding(x: Array, axis: int, size: int, stride: int) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, size, axis)
    return np.moveaxis(windows, -1, axis + 1).take(range(0, x.shape[axis] - size + 1, stride), axis)


_UNPOOL: dict[str, Attr] = {
    "kernel_sizes": integers(), "strides": integers((1,)), "pad": integers((0,)), "output_shape": integers(()),
}  # fmt: skip
_KERNEL = {"kernel_sizes": integers(), **WINDOW}

OPS = (
    Op(
        name="lp_pool", doc="sum(|x|^p)^(1/p) of each window of x (N, C, spatial...).", inputs=("x",),
        attrs={"p": integer(2), **_KERNEL}, shape=_lp_shape, dtype=floating, canonical=_lp_attrs, expand=_expand_lp_pool,
        ref=_lp_pool,
        cases=(Case(((1, 3, 8, 8),), {"kernel_sizes": 2, "strides": 2}),
               Case(((2, 2, 7),), {"p": 3, "kernel_sizes": 3, "pad": 1, "dilations": 2})),
    ),
    Op(
        name="max_pool_with_indices",
        doc="max_pool of x (N, C, spatial...), and the index of each maximum (the first one) in the flattened x. With "
            "column_major, indices count the last two axes in exchanged order.",
        inputs=("x",), outputs=("values", "indices"), attrs={**POOL, "column_major": flag(False)}, shape=_indexed_shape,
        dtype=lambda x, **_: [floating(x), INT64], canonical=_indexed_attrs, expand=_expand_indexed, ref=_indexed,
        cases=(Case(((2, 3, 8, 8),), {"kernel_sizes": 2, "strides": 2}),
               Case(((1, 2, 5, 7),), {"kernel_sizes": 3, "strides": 2, "pad": 1, "column_major": True}),
               Case(((1, 2, 9),), {"kernel_sizes": 3, "strides": 2, "dilations": 2, "ceil_mode": True})),
    ),
    Op(
        name="max_unpool",
        doc="Zeros, except for the elements of x (N, C, spatial...) at the indices that max_pool_with_indices returned "
            "for these windows. output_shape adds zeros at the ends.",
        inputs=("x", "indices"), attrs=_UNPOOL, shape=_unpool_shape, dtype=_unpool_dtype, check=(_unpool_limit,),
        canonical=window_attrs, expand=_expand_max_unpool, ref=_max_unpool,
        cases=(Case(arrays=(np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2), np.array([[[[5, 7], [13, 15]]]])),
                    attrs={"kernel_sizes": 2, "strides": 2}),
               Case(arrays=(np.arange(1, 4, dtype=np.float32).reshape(1, 1, 3), np.array([[[0, 3, 4]]], np.int32)),
                    attrs={"kernel_sizes": 2, "strides": 2, "output_shape": (1, 1, 8)})),
    ),
    Op(
        name="im2col",
        doc="The windows of x (N, C, spatial...) as columns (N, C * taps, windows).", inputs=("x",), attrs=_KERNEL,
        shape=_im2col_shape, dtype=same_dtype, canonical=_im2col_attrs, expand=_expand_im2col, moves=("x",), fills=True, ref=_im2col,
        cases=(Case(((2, 3, 5, 6),), {"kernel_sizes": (2, 3), "pad": 1, "strides": 2}),
               Case(((1, 2, 9),), {"kernel_sizes": 3, "dilations": 2})),
    ),
    Op(
        name="col2im",
        doc="Columns (N, C * taps, windows) added at their positions in an image (N, C, image_shape...): the transpose "
            "of im2col.",
        inputs=("x",), attrs={"image_shape": integers(), **_KERNEL}, shape=_col2im_shape, dtype=numeric,
        check=(_col2im_limit,), canonical=_col2im_attrs, kernel="col2im", ref=_col2im,
        cases=(Case(((2, 12, 9),), {"image_shape": (4, 5), "kernel_sizes": 2, "dilations": (1, 2)}),
               Case(((1, 6, 4),), {"image_shape": (7,), "kernel_sizes": 3, "strides": 2, "pad": 1})), grad=grads.col2im,
    ),
    Op(
        name="sliding_windows",
        doc="Windows of `size` along an axis, one every `stride`: (..., extent, ...) -> (..., windows, size, ...).",
        inputs=("x",), attrs={"axis": integer(), "size": integer(), "stride": integer(1)}, shape=_sliding_shape,
        dtype=same_dtype, canonical=_sliding_attrs, expand=_expand_sliding, moves=("x",), ref=_sliding,
        cases=(Case(((2, 9, 3),), {"axis": 1, "size": 4, "stride": 2}), Case(((7,),), {"axis": 0, "size": 3})),
    ),
)  # fmt: skip

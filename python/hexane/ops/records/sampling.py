"""Ops that sample tensors between their elements: at the points of a grid, and in regions."""

from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from itertools import product
from math import ceil, prod
from typing import Any

import numpy as np

from hexane.dtypes import FP64, INT32, INT64
from hexane.errors import Error
from hexane.graph import Value
from hexane.ops.attributes import finite, flag, integer, integers, number, text
from hexane.ops.compose import Builder, cast, limited, part, wide
from hexane.ops.dtype_rules import floating
from hexane.ops.interpolation import (
    Taps,
    channels_behind,
    clipped,
    cubic_taps,
    interpolated,
    kept_inside,
    linear_taps,
    outside_of,
    pairs_of,
    read_pairs,
    reflected,
)
from hexane.ops.shape_rules import Shape
from hexane.ops.spec import Case, Op

Array = Any

# ---- grid_sample ----


def _grid_shape(x: Shape, grid: Shape, mode: str, padding_mode: str, **_: Any) -> Shape:
    if mode == "bicubic" and padding_mode == "border":  # implementations disagree on bicubic with border
        raise Error("got mode bicubic with padding_mode border, whose meaning differs between ONNX and its peers")
    if len(x) < 3 or len(grid) != len(x) or grid[-1] != len(x) - 2 or grid[0] != x[0] or 0 in x[2:]:
        raise Error(f"got x {x} and a grid of shape {grid}, need (N, C, D...) and (N, points..., {len(x) - 2})")
    return (*x[:2], *grid[1:-1])


def _first_of_floats(x: Any, *others: Any, **_: Any) -> Any:
    for d in others:
        if d is not None and d not in (INT32, INT64):
            floating(d)
    return floating(x)


def _expand_grid_sample(
    b: Builder, x: Value, grid: Value, mode: str, padding_mode: str, align_corners: bool, unit: float = 1.0
) -> Value:
    """Expands for a grid that is `unit` times the coordinates."""
    extents, points, kind = x.shape[2:], prod(grid.shape[1:-1]), wide(x, grid)
    places = FP64 if mode == "nearest" else kind  # fp32 would round once more before halves are detected
    flat_grid = b.reshape(cast(b, grid, places), shape=(x.shape[0], points, len(extents)))
    taps = []
    for axis, extent in enumerate(extents):
        at = len(extents) - 1 - axis
        place = b.add(b.reshape(part(b, flat_grid, 2, at, at + 1), shape=(x.shape[0], points)), unit)
        place = b.mul(place, extent - 1.0) if align_corners else b.sub(b.mul(place, float(extent)), unit)
        place = b.mul(place, 0.5) if unit == 1 else b.real_div(place, 2 * unit)
        place = cast(b, b.round(place), kind) if mode == "nearest" else place
        taps.append(_padded_taps(b, place, extent, mode, padding_mode, align_corners))
    y = interpolated(b, channels_behind(b, x, kind), taps, extents)
    y = b.reshape(b.transpose(y, perm=(0, 2, 1)), shape=(*x.shape[:2], *grid.shape[1:-1]))
    return cast(b, y, x.dtype)


def _padded_taps(b: Builder, at: Value, extent: int, mode: str, padding: str, corners: bool) -> Taps:
    low, high = (0.0, extent - 1.0) if corners else (-0.5, extent - 0.5)
    if padding == "border":
        at = b.select(outside_of(b, at, low, high), clipped(b, at, extent), at)
    elif padding == "reflection":
        at = b.select(outside_of(b, at, low, high), reflected(b, at, low, high), at)
    if mode == "nearest":
        taps = [(at, b.broadcast_to(b.const(np.array(1, at.dtype.numpy)), shape=at.shape))]
    else:
        taps = linear_taps(b, at) if mode == "bilinear" else cubic_taps(b, at)
    if padding == "zeros":
        return kept_inside(b, taps, extent)
    if padding == "reflection":
        taps = [(b.select(outside_of(b, i, low, high), reflected(b, i, low, high), i), w) for i, w in taps]
    return [(clipped(b, i, extent), w) for i, w in taps]


def _grid_sample(x: Array, grid: Array, mode: str, padding_mode: str, align_corners: bool) -> Array:
    extents = x.shape[2:]
    flat = grid.reshape(x.shape[0], -1, len(extents))
    y = np.zeros((*x.shape[:2], flat.shape[1]))
    for item, point in np.ndindex(*flat.shape[:2]):
        axes = []
        for extent, place in zip(extents, flat[item, point, ::-1], strict=True):
            at = (place + 1) / 2 * (extent - 1) if align_corners else ((place + 1) * extent - 1) / 2
            axes.append(pairs_of(float(at), extent, mode, padding_mode, align_corners))
        y[item, :, point] = read_pairs(x[item], axes)
    return y.reshape(*x.shape[:2], *grid.shape[1:-1])


# ---- affine_grid, affine ----


def _grid_of(theta: Shape, size: tuple[int, ...], **_: Any) -> Shape:
    num = len(size) - 2
    if num not in (2, 3) or min(size) < 1 or theta != (size[0], num, num + 1):
        raise Error(
            f"got theta {theta} for the size {size}, need (N, C, H, W) or (N, C, D, H, W) and (N, axes, axes + 1)"
        )
    return (size[0], *size[2:], num)


def _base_grid(extents: Sequence[int], corners: bool) -> Array:
    """Returns the homogeneous coordinates of every point, last axis first: (points, axes + 1)."""
    lines = [np.linspace(-1, 1, e) if corners and e > 1 else (2 * np.arange(e) + 1) / e - 1 for e in extents]
    grid = np.stack([*np.meshgrid(*lines, indexing="ij")[::-1], np.ones(tuple(extents))], -1)
    return grid.reshape(-1, len(extents) + 1)


def _expand_affine_grid(b: Builder, theta: Value, size: tuple[int, ...], align_corners: bool) -> Value:
    """The product has long rows; the coordinates of a point are made adjacent afterwards."""
    base = b.const(np.ascontiguousarray(_base_grid(size[2:], align_corners).T.astype(theta.dtype.numpy)))
    grid = b.transpose(b.matmul(theta, base), perm=(0, 2, 1))
    return b.reshape(grid, shape=(size[0], *size[2:], len(size) - 2))


def _exact_grid(theta: Array, size: tuple[int, ...], align_corners: bool) -> Array:
    """Returns the grid in exact fractions if theta is finite."""
    if np.isfinite(theta).all():
        theta = np.vectorize(Fraction, otypes=[object])(theta)
    grid = np.empty((size[0], *size[2:], len(size) - 2), object)
    for item, *at in np.ndindex(size[0], *size[2:]):
        place = [(Fraction(2 * i, e - 1) - 1 if e > 1 else Fraction(0)) if align_corners else Fraction(2 * i + 1, e) - 1
                 for i, e in zip(at, size[2:], strict=True)]  # fmt: skip
        grid[(item, *at)] = theta[item] @ np.array([*place[::-1], Fraction(1)])
    return grid


def _affine_grid(theta: Array, size: tuple[int, ...], align_corners: bool) -> Array:
    return _exact_grid(theta, size, align_corners).astype(np.float64)


def _bounded_grid(types: Any, attrs: Any) -> None:
    size = attrs["size"]
    limited(prod(size[2:]) * len(size), np.dtype(np.float64))


def _expand_affine(
    b: Builder, x: Value, theta: Value, output_height: int, output_width: int, align_corners: bool, **options: Any
) -> Value:
    """For nearest, the grid is theta times integers, because rounding of halves needs coordinates that are exact."""
    extents = (output_height, output_width)
    if options["mode"] != "nearest":
        grid = b.affine_grid(theta, size=(*x.shape[:2], *extents), align_corners=align_corners)
        return b.grid_sample(x, grid, align_corners=align_corners, **options)
    parts = [max(e - 1, 1) if align_corners else e for e in extents]
    unit = prod(parts)
    lines = [(2 * np.arange(e) - e + 1.0) * (unit // p) for e, p in zip(extents, parts, strict=True)]
    rows, columns = np.meshgrid(*lines, indexing="ij")
    base = b.const(np.stack([columns.ravel(), rows.ravel(), np.full(columns.size, float(unit))]))
    grid = b.reshape(b.transpose(b.matmul(cast(b, theta, FP64), base), perm=(0, 2, 1)), shape=(x.shape[0], *extents, 2))
    return _expand_grid_sample(b, x, grid, align_corners=align_corners, unit=float(unit), **options)


# ---- roi_align ----


def _roi_shape(x: Shape, rois: Shape, batch: Shape, output_height: int, output_width: int, **attrs: Any) -> Shape:
    if len(x) != 4 or 0 in x or len(batch) != 1 or rois != (*batch, 4):
        raise Error(f"got x {x}, rois {rois} and batch_indices {batch}, need (N, C, H, W), (R, 4), (R,)")
    if min(output_height, output_width) < 1:
        raise Error(f"got the output extents {(output_height, output_width)}, need positive ones")
    most = max(_most_samples(attrs["sampling_ratio"], x[2:], (output_height, output_width)))
    limited(max(output_height, output_width) * most, np.dtype(np.float32))
    return (rois[0], x[1], output_height, output_width)


def _roi_dtype(x: Any, rois: Any, batch: Any, **_: Any) -> Any:
    if batch not in (INT32, INT64):
        raise Error(f"got batch_indices of dtype {batch}, need int32 or int64")
    return _first_of_floats(x, rois)


def _most_samples(ratio: int, extents: Sequence[int], outs: Sequence[int]) -> list[int]:
    """Returns the most points of a bin on each axis. With ratio 0, the number of points follows from a region's size,
    and regions up to twice the image are supported."""
    if ratio < 0:
        raise Error(
            f"got sampling_ratio {ratio}, need a positive integer, or 0 for a number that follows from a region's size"
        )
    return [ratio or 2 * -(-extent // out) for extent, out in zip(extents, outs, strict=True)]


def _expand_roi_align(
    b: Builder, x: Value, rois: Value, batch: Value, mode: str, output_height: int, output_width: int, sampling_ratio: int,
    spatial_scale: float, coordinate_transformation_mode: str,
) -> Value:  # fmt: skip
    outs, half = (output_height, output_width), coordinate_transformation_mode == "half_pixel"
    count, channels, extents = rois.shape[0], x.shape[1], x.shape[2:]
    most, kind = _most_samples(sampling_ratio, extents, outs), wide(x, rois)
    corners = b.mul(cast(b, rois, FP64), spatial_scale)  # corners are exact unless the scale has many digits
    axes, used, counts = [], [], []
    for i, (extent, out, samples) in enumerate(zip(extents, outs, most, strict=True)):
        begin, end = (b.slice_by_index(corners, begin=(0, c), end=(count, c + 1)) for c in (1 - i, 3 - i))
        length = b.sub(end, begin)
        if not half:
            length = b.maximum(length, 1.0)
        number = b.const(np.full((1, 1), float(samples)))
        if not sampling_ratio:
            number = _checked_samples(b, b.ceil(b.real_div(length, float(out))), samples)
        # Positions in units of 1 / parts are integer multiples of the length, so that no division rounds before the
        # test for points outside.
        parts = b.mul(b.maximum(number, 1.0), 2.0 * out)
        bins, points = (np.ravel(v).astype(np.float64) for v in np.indices((out, samples)))
        steps = b.add(b.mul(b.maximum(number, 1.0), 2 * bins), 2 * points + 1)
        many = b.add(b.mul(begin, parts), b.mul(length, steps))
        if half:
            many = b.sub(many, b.mul(parts, 0.5))
        outside = b.logical_or(b.less(many, b.neg(parts)), b.greater(many, b.mul(parts, float(extent))))
        low = linear_taps(b, clipped(b, b.real_div(many, parts), extent))
        nothing = b.const(np.array(0, kind.numpy))
        axes.append([(clipped(b, index, extent), b.select(outside, nothing, cast(b, w, kind))) for index, w in low])
        used.append(b.less(b.const(points), number))
        counts.append(number)
    grid = (outs[0] * most[0], outs[1] * most[1])
    taps = [[(_over(b, v, grid, i), _over(b, w, grid, i)) for v, w in axis] for i, axis in enumerate(axes)]
    flat = b.gather(channels_behind(b, x, kind), cast(b, batch, INT64), axis=0)
    bins_shape = (count, outs[0], most[0], outs[1], most[1], channels)
    if mode == "avg":
        y = interpolated(b, flat, taps, extents)
    else:  # the maximum is over the weighted elements, by definition
        terms = [interpolated(b, flat, [[v], [h]], extents) for v in taps[0] for h in taps[1]]
        y = reduce(lambda p, q: b.maximum(p, q), terms)
    if not sampling_ratio:
        rows, columns = (_over(b, shown, grid, i) for i, shown in enumerate(used))
        none = b.const(np.array(0 if mode == "avg" else -np.inf, kind.numpy))
        y = b.select(b.expand_dims(b.logical_and(rows, columns), axes=(-1,)), y, none)
    y = _of_bins(b, b.reshape(y, shape=bins_shape), mode, None if sampling_ratio else b.mul(counts[0], counts[1]))
    return cast(b, b.transpose(y, perm=(0, 3, 1, 2)), x.dtype)


def _checked_samples(b: Builder, number: Value, most: int) -> Value:
    """Returns the number of points of a bin on an axis. A number above `most` raises an error, as an index out of
    range."""
    there = b.const(np.arange(most + 1, dtype=np.float64))
    return b.gather(there, b.cast(b.maximum(number, 0.0), dtype=INT64), axis=0)


def _of_bins(b: Builder, y: Value, mode: str, total: Value | None) -> Value:
    """Returns the mean or maximum of each bin's points, (regions, rows, points, columns, points, channels). total: the
    number of a bin's valid points, if the region's size decides it; other points are 0 or -inf."""
    if total is None:
        reduced = b.reduce_mean if mode == "avg" else b.reduce_max
        return reduced(y, axes=(2, 4), keep_dims=False)
    total = cast(b, b.reshape(total, shape=(y.shape[0], 1, 1, 1)), y.dtype)
    if mode == "avg":
        return b.real_div(b.reduce_sum(y, axes=(2, 4), keep_dims=False), b.maximum(total, 1.0))
    nothing = b.const(np.array(0, y.dtype.numpy))
    return b.select(b.greater(total, 0.0), b.reduce_max(y, axes=(2, 4), keep_dims=False), nothing)


def _over(b: Builder, v: Value, grid: tuple[int, int], axis: int) -> Value:
    """Broadcasts (regions, rows) or (regions, columns) to every point of the grid."""
    deep = b.expand_dims(v, axes=(2 - axis,))
    return b.reshape(b.broadcast_to(deep, shape=(v.shape[0], *grid)), shape=(v.shape[0], prod(grid)))


def _roi_align(
    x: Array, rois: Array, batch: Array, mode: str, output_height: int, output_width: int, sampling_ratio: int,
    spatial_scale: float, coordinate_transformation_mode: str,
) -> Array:  # fmt: skip
    outs, half = (output_height, output_width), coordinate_transformation_mode == "half_pixel"
    scale = Fraction(spatial_scale)
    y = np.zeros((len(rois), x.shape[1], *outs))
    for region, row, column in np.ndindex(len(rois), *outs):
        corners = [Fraction(v) * scale if np.isfinite(v) else v * spatial_scale for v in rois[region].tolist()]
        lengths = [
            corners[3 - i] - corners[1 - i] if half else max(corners[3 - i] - corners[1 - i], 1) for i in range(2)
        ]
        counts = [sampling_ratio or max(ceil(length / out), 0) for length, out in zip(lengths, outs, strict=True)]
        points = []
        for shift in product(*map(range, counts)):
            at = []
            for i, length in enumerate(lengths):
                begin = corners[1 - i]
                step = (row, column)[i] + Fraction(2 * shift[i] + 1, 2 * counts[i])
                at.append(begin + length * step / outs[i] - Fraction(half, 2))
            if any(not -1 <= v <= e for v, e in zip(at, x.shape[2:], strict=True)):
                points.append(np.zeros((1, x.shape[1])))
                continue
            axes = [pairs_of(float(min(max(v, 0), e - 1)), e, "bilinear", "border", True)
                    for v, e in zip(at, x.shape[2:], strict=True)]  # fmt: skip
            image = x[batch[region]]
            whole = read_pairs(image, axes)[None]
            points.append(
                whole if mode == "avg" else np.stack([read_pairs(image, [[v], [h]]) for v in axes[0] for h in axes[1]])
            )
        if not points:
            continue
        samples = np.concatenate(points)
        y[region, :, row, column] = samples.mean(0) if mode == "avg" else samples.max(0)
    return y


_GRID = {"mode": text("bilinear", ("bilinear", "nearest", "bicubic")),
         "padding_mode": text("zeros", ("zeros", "border", "reflection")), "align_corners": flag(False)}  # fmt: skip
_ROIS = np.array([[0, 0, 7, 7], [-3, 1, 3.5, 20], [2, 2, 2.1, 2.1]], np.float32)
_IMAGES = np.random.default_rng(0).uniform(-1, 1, (2, 3, 9, 8)).astype(np.float32)

OPS = (
    Op(
        name="grid_sample",
        doc="x (N, C, D...) read at the points of a grid (N, points..., axes) -> (N, C, points...). A point's "
            "coordinates lie in -1..1, with x's last axis first. Coordinates run from centre to centre of the outermost "
            "elements with align_corners, else from edge to edge. The padding_mode decides the values outside.",
        inputs=("x", "grid"), attrs=_GRID, shape=_grid_shape, dtype=_first_of_floats, expand=_expand_grid_sample,
        ref=_grid_sample,
        cases=(
            *(Case(((2, 3, 5, 4), (2, 6, 7, 2)), {"mode": mode, "padding_mode": padding, "align_corners": corners}, low=-1.6, high=1.6)
              for mode, padding, corners in (("bilinear", "zeros", False), ("bilinear", "border", True), ("nearest", "zeros", True),
                                             ("bicubic", "zeros", False), ("bicubic", "reflection", True), ("nearest", "border", False))),
            Case(((1, 2, 3, 4, 5), (1, 2, 3, 4, 3)), {"padding_mode": "reflection"}, low=-1.9, high=1.9),
        ),
    ),
    Op(
        name="affine_grid",
        doc="The grid for grid_sample: theta @ (x, y, 1) of every point. A theta of (N, 2, 3) belongs to a result of "
            "`size` (N, C, H, W), one of (N, 3, 4) to (N, C, D, H, W).",
        inputs=("theta",), attrs={"size": integers(), "align_corners": flag(False)}, shape=_grid_of,
        dtype=_first_of_floats, check=(_bounded_grid,), expand=_expand_affine_grid, ref=_affine_grid,
        cases=(Case(((2, 2, 3),), {"size": (2, 3, 4, 5)}),
               Case(((1, 3, 4),), {"size": (1, 2, 3, 1, 4), "align_corners": True})),
    ),
    Op(
        name="affine",
        doc="An image (N, C, H, W) under the transform (N, 2, 3) -> (N, C, output_height, output_width). The "
            "transform maps coordinates of the result in -1..1 to coordinates of x: affine_grid, then grid_sample.",
        inputs=("x", "transform_matrix"), attrs={"output_height": integer(), "output_width": integer(), **_GRID},
        shape=lambda x, theta, output_height, output_width, align_corners, **options: _grid_shape(
            x, _grid_of(theta, (*x[:2], output_height, output_width)), **options),
        dtype=_first_of_floats,
        check=(lambda types, attrs: limited(4 * attrs["output_height"] * attrs["output_width"], np.dtype(np.float64)),),
        expand=_expand_affine,
        ref=lambda x, theta, output_height, output_width, align_corners, **options: _grid_sample(
            x, _exact_grid(theta, (*x.shape[:2], output_height, output_width), align_corners), align_corners=align_corners,
            **options),
        cases=tuple(Case(((2, 3, 5, 4), (2, 2, 3)), {"output_height": 4, "output_width": 6, "mode": mode}, low=-0.9, high=0.9)
                    for mode in ("bilinear", "nearest")),
    ),
    Op(
        name="roi_align",
        doc="Regions of images (N, C, H, W), each read on a grid of bins -> (R, C, output_height, output_width). The "
            "rois (R, 4) are x1, y1, x2, y2; batch_indices (R,) name their images. A bin is the mean (or maximum) of "
            "sampling_ratio^2 points. With sampling_ratio 0, each axis of a bin has as many points as image elements, "
            "for regions up to twice the image's size; larger ones are an error. Torchvision's aligned=True is the mode "
            "half_pixel.",
        inputs=("x", "rois", "batch_indices"),
        attrs={"mode": text("avg", ("avg", "max")), "output_height": integer(1), "output_width": integer(1),
               "sampling_ratio": integer(0), "spatial_scale": number(1.0),
               "coordinate_transformation_mode": text("half_pixel", ("half_pixel", "output_half_pixel"))},
        shape=_roi_shape, dtype=_roi_dtype, check=(finite("spatial_scale"),), expand=_expand_roi_align, ref=_roi_align,
        cases=tuple(
            Case(arrays=(_IMAGES, _ROIS, np.array([1, 0, 1])),
                 attrs={"output_height": 3, "output_width": 2, "sampling_ratio": ratio, "spatial_scale": 0.5, "mode": mode,
                        "coordinate_transformation_mode": half})
            for mode, half, ratio in (("avg", "half_pixel", 2), ("max", "output_half_pixel", 2), ("avg", "output_half_pixel", 0),
                                      ("max", "half_pixel", 0))
        ),
    ),
)  # fmt: skip

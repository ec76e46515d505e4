"""Resizing. On each axis, output i reads the source around the coordinate (i * scale + offset) / unit."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import ceil, floor, inf
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import TensorType, Value
from hexane.ops.attributes import Attr, flag, integer, integers, number, numbers, text
from hexane.ops.compose import Builder, limited
from hexane.ops.dtype_rules import floating, same_dtype
from hexane.ops.gradients import windows as grads
from hexane.ops.lines import LIMIT, ROUNDINGS, fits, nearest, whole
from hexane.ops.shape_rules import Shape, axis_index
from hexane.ops.spec import Case, Op
from hexane.ops.window_rules import LAYOUT, from_nchw, split_shape, to_nchw

Array = Any


_RESIZE: dict[str, Attr] = {
    "height": integer(), "width": integer(), "scale_h": number(), "scale_w": number(), "offset_h": number(0.0),
    "offset_w": number(0.0), "unit_h": number(1.0), "unit_w": number(1.0),
}  # fmt: skip


def _resize_shape(x: Shape, height: int, width: int, layout: str, **_: Any) -> Shape:
    if len(x) != 4 or height < 1 or width < 1 or 0 in x:
        raise Error(f"got the shape {x} for {height} x {width}, need a non-empty image of rank 4")
    batch, channels, _spatial = split_shape(x, layout)
    return (batch, height, width, channels) if layout == "nhwc" else (batch, channels, height, width)


def _lines(attrs: Mapping[str, Any]) -> list[tuple[float, float, float]]:
    """Returns (scale, offset, unit) of the rows and of the columns."""
    return [(attrs[f"scale_{axis}"], attrs[f"offset_{axis}"], attrs[f"unit_{axis}"]) for axis in "hw"]


def _on_lines(_: Any, attrs: Mapping[str, Any]) -> None:
    for line in _lines(attrs):
        whole(*line)


def _on_short_lines(types: Any, attrs: Mapping[str, Any]) -> None:
    _on_lines(types, attrs)
    for line in _lines(attrs):
        if not fits(whole(*line)):
            raise Error(
                f"got scale, offset and unit {line}, need numbers that are less than {LIMIT} times a common divisor"
            )


def _in_integers(types: Any, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the lines of both axes in integers, which the kernel computes exactly."""
    (scale_h, offset_h, unit_h), (scale_w, offset_w, unit_w) = (whole(*line) for line in _lines(attrs))
    return {"scale_h": scale_h, "scale_w": scale_w, "offset_h": offset_h, "offset_w": offset_w, "unit_h": unit_h,
            "unit_w": unit_w, "mode": attrs["mode"]}  # fmt: skip


def _source(size: int, scale: float, offset: float, unit: float) -> Array:
    return (np.arange(size) * scale + offset) / unit


_HALF = Fraction(1, 2)
_NEAREST: dict[str, Callable[[Fraction], int]] = {
    "floor": floor,
    "ceil": ceil,
    "round_prefer_floor": lambda v: ceil(v - _HALF),
    "round_prefer_ceil": lambda v: floor(v + _HALF),
}


def _picked(x: Array, axis: int, size: int, scale: float, offset: float, unit: float, mode: str) -> Array:
    """Returns the elements nearest to the coordinates, which are exact fractions."""
    at = [(i * Fraction(scale) + Fraction(offset)) / Fraction(unit) for i in range(size)]
    return np.take(x, [min(max(_NEAREST[mode](v), 0), x.shape[axis] - 1) for v in at], axis)


def _resize_nearest(x: Array, height: int, width: int, mode: str, layout: str, **lines: float) -> Array:
    x = to_nchw(x, layout)
    for axis, size, line in zip((2, 3), (height, width), _lines(lines), strict=True):
        x = _picked(x, axis, size, *line, mode)
    return from_nchw(x, layout)


def _resize_linear(x: Array, height: int, width: int, layout: str, **lines: float) -> Array:
    x = to_nchw(x, layout)
    for axis, size, line in zip((2, 3), (height, width), _lines(lines), strict=True):
        at = np.clip(_source(size, *line), 0, x.shape[axis] - 1)
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, x.shape[axis] - 1)
        weight = (at - low).reshape([-1 if i == axis else 1 for i in range(4)])
        x = np.take(x, low, axis) * (1 - weight) + np.take(x, high, axis) * weight
    return from_nchw(x, layout)


# ---- any axes and any kernel ----

_REACH = {"nearest": 0, "linear": 1, "cubic": 2}


def _resize_attrs(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes. Axes are non-negative, by default those after the channels. The default coordinates count
    from pixel centres."""
    shape, sizes = types[0].shape, attrs["sizes"]
    axes = tuple(axis_index(a, len(shape)) for a in attrs["axes"]) or tuple(range(2, len(shape)))
    if len(set(axes)) != len(axes) or len(sizes) != len(axes) or not axes or min(sizes) < 1 or 0 in shape:
        raise Error(
            f"got sizes {sizes} for the axes {axes} of {shape}, need a positive size for each axis, and no empty axis"
        )
    limited(max(sizes), np.dtype(np.float64))
    extents = tuple(shape[a] for a in axes)
    units = attrs["units"] or ((1.0,) * len(axes) if attrs["scales"] else tuple(map(float, sizes)))
    scales = attrs["scales"] or tuple(map(float, extents))
    offsets = attrs["offsets"] or tuple(0.5 * (s - u) for s, u in zip(scales, units, strict=False))
    widths = attrs["widths"] or (1.0,) * len(axes)
    if not len(scales) == len(offsets) == len(units) == len(widths) == len(axes) or not np.isfinite(widths).all():
        raise Error(
            f"got scales {scales}, offsets {offsets}, units {units} and widths {widths}, need a finite number for each"
            f" of {axes}"
        )
    for line in zip(scales, offsets, units, strict=True):
        whole(*line)
    if min(widths) < 1 or (attrs["mode"] == "nearest" and max(widths) > 1):
        raise Error(f"widths: got {widths} with mode {attrs['mode']}, need 1 or more, and 1 for nearest")
    if attrs["mode"] != "nearest":
        for axis, size, width in zip(axes, sizes, widths, strict=True):
            limited(max(shape[axis], _span(attrs["mode"], width)) * size, np.dtype(np.float64))
    return {**attrs, "axes": axes, "scales": scales, "offsets": offsets, "units": units, "widths": widths}


def _span(mode: str, width: float) -> int:
    return 2 * ceil(_REACH[mode] * width) + 2


def _resized(x: Shape, sizes: Shape, axes: tuple[int, ...], **_: Any) -> Shape:
    wanted = dict(zip(axes, sizes, strict=True))
    return tuple(wanted.get(i, d) for i, d in enumerate(x))


def _any_dtype(x: Any, mode: str, **_: Any) -> Any:
    return same_dtype(x) if mode == "nearest" else floating(x)


def _expand_resize(
    b: Builder, x: Value, sizes: Shape, axes: tuple[int, ...], mode: str, scales: Sequence[float], offsets: Sequence[float],
    units: Sequence[float], widths: Sequence[float], nearest_mode: str, cubic_coeff_a: float, exclude_outside: bool,
) -> Value:  # fmt: skip
    """Expands to an image op if possible, else each axis to a gather, or to a product with a constant matrix (source,
    output)."""
    lines = list(zip(scales, offsets, units, strict=True))
    image = len(x.shape) == 4 and min(axes) >= 2 and max(widths) == 1
    if image and (mode == "linear" or (mode == "nearest" and all(fits(whole(*line)) for line in lines))):
        by_axis = {a: (size, line) for a, size, line in zip(axes, sizes, lines, strict=True)}
        options: dict[str, Any] = {}
        for axis, side, letter in ((2, "height", "h"), (3, "width", "w")):
            options[side], line = by_axis.get(axis, (x.shape[axis], (1.0, 0.0, 1.0)))
            options |= {f"{name}_{letter}": v for name, v in zip(("scale", "offset", "unit"), line, strict=True)}
        return (
            b.resize_bilinear(x, **options)
            if mode == "linear"
            else b.resize_nearest_neighbor(x, mode=nearest_mode, **options)
        )
    last = len(x.shape) - 1
    for axis, size, line, width in zip(axes, sizes, lines, widths, strict=True):
        extent = x.shape[axis]
        if mode == "nearest":
            x = b.gather(x, b.const(nearest(whole(*line), size, extent, nearest_mode)), axis=axis)
            continue
        at = _source(size, *line)
        weights = _weights(at, extent, mode, width, cubic_coeff_a, exclude_outside)
        table = b.const(weights.astype(x.dtype.numpy))
        if last == 0:
            x = b.reshape(b.matmul(b.reshape(x, shape=(1, extent)), table), shape=(size,))
            continue
        perm = [i for i in range(last + 1) if i != axis] + [axis]
        y = b.matmul(b.transpose(x, perm=perm), table)
        x = b.transpose(y, perm=[perm.index(i) for i in range(last + 1)])
    return x


def _weights(at: Array, extent: int, mode: str, width: float, a: float, exclude: bool) -> Array:
    """Returns the interpolation matrix (source, output). Taps outside the source read its edge; with `exclude` they
    have no weight."""
    span = _span(mode, width) // 2
    taps = np.floor(at).astype(int) + np.arange(1 - span, span + 1).reshape(-1, 1)
    t = np.abs(at - taps) / width
    if mode == "linear":
        weights = np.maximum(1 - t, 0)
    else:
        near, far = ((a + 2) * t - (a + 3)) * t * t + 1, ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
        weights = np.where(t <= 1, near, np.where(t < 2, far, 0.0))
    if exclude:
        weights = np.where((taps >= 0) & (taps < extent), weights, 0.0)
    total = weights.sum(axis=0)
    result = np.zeros((extent, len(at)))
    columns = np.broadcast_to(np.arange(len(at)), taps.shape)
    np.add.at(result, (np.clip(taps, 0, extent - 1), columns), weights / np.where(total == 0, 1, total))
    return result


def _resize(
    x: Array, sizes: Shape, axes: tuple[int, ...], mode: str, scales: Sequence[float], offsets: Sequence[float],
    units: Sequence[float], widths: Sequence[float], nearest_mode: str, cubic_coeff_a: float, exclude_outside: bool,
) -> Array:  # fmt: skip
    for axis, size, scale, offset, unit, width in zip(axes, sizes, scales, offsets, units, widths, strict=True):
        if mode == "nearest":
            x = _picked(x, axis, size, scale, offset, unit, nearest_mode)
            continue
        source = np.moveaxis(x, axis, 0)
        lines = [
            _line(source, (i * scale + offset) / unit, mode, width, cubic_coeff_a, exclude_outside) for i in range(size)
        ]
        x = np.moveaxis(np.stack(lines), 0, axis)
    return x


def _line(x: Array, at: float, mode: str, width: float, a: float, exclude: bool) -> Array:
    """Returns one output along the first axis of x."""
    last = len(x) - 1
    kernel: Callable[[float], float] = _tent if mode == "linear" else lambda t: _cubic(t, a)
    reach = _REACH[mode] * width
    taps = range(ceil(at - reach), floor(at + reach) + 1)
    terms = [(kernel(abs(at - tap) / width), min(max(tap, 0), last)) for tap in taps if not exclude or 0 <= tap <= last]
    total = sum(w for w, _ in terms) or 1.0
    return sum((x[i] * (w / total) for w, i in terms), np.zeros_like(x[0]))


def _tent(t: float) -> float:
    return max(0.0, 1 - t)


def _cubic(t: float, a: float) -> float:
    """Returns Keys' cubic kernel at t."""
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0


# ---- upsampling by a factor ----


def _upsampled(x: Shape, scale_factor_height: float, scale_factor_width: float, **_: Any) -> Shape:
    if len(x) != 4 or not all(0 < factor < inf for factor in (scale_factor_height, scale_factor_width)):
        raise Error(
            f"got x {x} and the factors {scale_factor_height} and {scale_factor_width}, need (N, C, H, W) and positive"
            " finite ones"
        )
    out = (*x[:2], floor(x[2] * scale_factor_height), floor(x[3] * scale_factor_width))
    if 0 in out:
        raise Error(
            f"got x {x} and the factors {scale_factor_height} and {scale_factor_width}, need a result that is not empty"
        )
    return out


def _upsampling(
    extent: int, factor: float, align_corners: bool, half_pixel_centers: bool
) -> tuple[float, float, float]:
    """Returns (scale, offset, unit) of the source coordinates."""
    out = floor(extent * factor)
    if align_corners:
        return (extent - 1.0, 0.0, out - 1.0) if out > 1 else (0.0, 0.0, 1.0)
    return 1.0, 0.5 - 0.5 * factor if half_pixel_centers else 0.0, factor


def _one_way(types: Any, attrs: Mapping[str, Any]) -> None:
    if attrs["align_corners"] and attrs["half_pixel_centers"]:
        raise Error("got align_corners and half_pixel_centers, need one of them or neither")


def _expand_upsample(op: str) -> Callable[..., Any]:
    def expand(
        b: Builder, x: Value, scale_factor_height: float, scale_factor_width: float, align_corners: bool = False,
        half_pixel_centers: bool = False,
    ) -> Value:  # fmt: skip
        _, _, height, width = _upsampled(x.shape, scale_factor_height, scale_factor_width)
        factors = (scale_factor_height, scale_factor_width)
        options: dict[str, Any] = {}
        for letter, extent, factor in zip("hw", x.shape[2:], factors, strict=True):
            line = _upsampling(extent, factor, align_corners, half_pixel_centers)
            options |= {f"{name}_{letter}": v for name, v in zip(("scale", "offset", "unit"), line, strict=True)}
        return b.apply(op, x, height=height, width=width, **options)

    return expand


def _upsample_nearest(x: Array, scale_factor_height: float, scale_factor_width: float) -> Array:
    shape = _upsampled(x.shape, scale_factor_height, scale_factor_width)
    for axis, factor in ((2, scale_factor_height), (3, scale_factor_width)):
        x = _picked(x, axis, shape[axis], 1.0, 0.0, factor, "floor")
    return x


def _upsample_bilinear(
    x: Array, scale_factor_height: float, scale_factor_width: float, align_corners: bool, half_pixel_centers: bool
) -> Array:
    for axis, factor in ((2, scale_factor_height), (3, scale_factor_width)):
        extent = x.shape[axis]
        line = _upsampling(extent, factor, align_corners, half_pixel_centers)
        at = np.clip(_source(floor(extent * factor), *line), 0, extent - 1)
        x = _read_at(x, axis, at)
    return x


def _read_at(x: Array, axis: int, at: Array) -> Array:
    return np.apply_along_axis(lambda line: np.interp(at, np.arange(len(line)), line), axis, x)


_FACTORS: dict[str, Attr] = {"scale_factor_height": number(1.0), "scale_factor_width": number(1.0)}

OPS = (
    Op(
        name="resize_nearest_neighbor",
        doc="An image (N, C, H, W) resized to height x width. Output i reads the element nearest to (i * scale + "
            "offset) / unit, rounded by `mode` in exact arithmetic.", inputs=("x",),
        attrs={**_RESIZE, "mode": text("floor", tuple(ROUNDINGS)), "layout": LAYOUT}, shape=_resize_shape,
        dtype=same_dtype, check=(_on_short_lines,), kernel="resize_nearest", kernel_attrs=_in_integers, layout="spatial", moves=("x",), ref=_resize_nearest,
        cases=(Case(((1, 3, 4, 5),), {"height": 8, "width": 10, "scale_h": 0.5, "scale_w": 0.5}),
               Case(((1, 3, 4, 5),), {"height": 7, "width": 3, "scale_h": 4 / 7, "scale_w": 5 / 3, "offset_h": -0.2,
                                      "offset_w": 1 / 3, "mode": "round_prefer_floor"}),
               Case(((1, 2, 28, 3),), {"height": 4, "width": 9, "scale_h": 28, "scale_w": 1, "offset_w": -1, "unit_h": 4,
                                       "unit_w": 3, "mode": "round_prefer_ceil"})), grad=grads.resize,
    ),
    Op(
        name="resize_bilinear",
        doc="An image (N, C, H, W) resized to height x width. Output i is interpolated at the source coordinate (i * scale + offset) / unit.", inputs=("x",),
        attrs={**_RESIZE, "layout": LAYOUT}, shape=_resize_shape, dtype=floating, check=(_on_lines,), kernel="resize_linear",
        layout="spatial", ref=_resize_linear,
        cases=(Case(((1, 3, 4, 5),), {"height": 8, "width": 10, "scale_h": 0.5, "scale_w": 0.5, "offset_h": -0.25,
                                      "offset_w": -0.25}),), grad=grads.resize,
    ),
    Op(
        name="resize",
        doc="x with `axes` (by default all after the channels) resized to `sizes`. Output i reads the source around "
            "(i * scale + offset) / unit; without scales and offsets, pixels' centres correspond. Widths above 1 "
            "widen the kernel, against aliasing where an axis shrinks. Outside, the edge is read, or nothing with "
            "exclude_outside.",
        inputs=("x",),
        attrs={"sizes": integers(), "axes": integers(()), "mode": text("linear", tuple(_REACH)), "scales": numbers(()),
               "offsets": numbers(()), "units": numbers(()), "widths": numbers(()), "nearest_mode": text("round_prefer_floor", tuple(ROUNDINGS)),
               "cubic_coeff_a": number(-0.75), "exclude_outside": flag(False)},
        canonical=_resize_attrs, shape=_resized, dtype=_any_dtype, expand=_expand_resize, ref=_resize,
        cases=(
            Case(((1, 3, 4, 5),), {"sizes": (7, 3)}), Case(((2, 5),), {"sizes": 9, "axes": -1, "mode": "cubic"}),
            Case(((1, 2, 9),), {"sizes": 4, "widths": 2.25}),
            Case(((1, 2, 8, 7),), {"sizes": (3, 11), "mode": "cubic", "widths": (8 / 3, 1), "exclude_outside": True}),
            Case(((1, 2, 3, 4, 5),), {"sizes": (4, 4, 4), "mode": "nearest", "scales": (0.75, 1.0, 1.25), "offsets": (0, 0, 0),
                                      "nearest_mode": "floor"}),
            Case(((2, 3, 4, 4),), {"sizes": (2, 6), "axes": (0, 1)}),
            Case(((5,),), {"sizes": 8, "axes": 0}),
        ),
    ),
    Op(
        name="upsample_nearest_neighbor", doc="An image (N, C, H, W) enlarged: output i reads the source at floor(i / factor).",
        inputs=("x",), attrs=_FACTORS, shape=_upsampled, dtype=same_dtype, expand=_expand_upsample("resize_nearest_neighbor"),
        moves=("x",), ref=_upsample_nearest, cases=(Case(((1, 3, 4, 5),), {"scale_factor_height": 2, "scale_factor_width": 1.5}),),
    ),
    Op(
        name="upsample_bilinear",
        doc="An image (N, C, H, W) enlarged by interpolation. align_corners aligns the outermost elements of both images, "
            "and half_pixel_centers the centres of pixels. With neither, the upper left corners of pixels are aligned.",
        inputs=("x",), attrs={**_FACTORS, "align_corners": flag(True), "half_pixel_centers": flag(False)}, shape=_upsampled,
        dtype=floating, check=(_one_way,), expand=_expand_upsample("resize_bilinear"), ref=_upsample_bilinear,
        cases=(Case(((1, 3, 4, 5),), {"scale_factor_height": 2, "scale_factor_width": 3}),
               Case(((1, 2, 3, 4),), {"scale_factor_height": 1.5, "scale_factor_width": 2, "align_corners": False,
                                      "half_pixel_centers": True})),
    ),
)  # fmt: skip

"""Resizing: along each axis, output i reads the source around the coordinate i * scale + offset."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import TensorType
from hexane.ops.compose import limited
from hexane.ops.records.conv import LAYOUT, from_nchw, split_shape, to_nchw
from hexane.ops.spec import (
    Attr,
    Case,
    Op,
    Shape,
    axis_index,
    flag,
    floating,
    integer,
    integers,
    number,
    numbers,
    same_dtype,
    text,
)

Array = Any


_RESIZE: dict[str, Attr] = {
    "height": integer(), "width": integer(), "scale_h": number(), "scale_w": number(), "offset_h": number(0.0),
    "offset_w": number(0.0),
}  # fmt: skip


def _resize_shape(x: Shape, height: int, width: int, layout: str, **_: Any) -> Shape:
    if len(x) != 4 or height < 1 or width < 1 or 0 in x:
        raise Error(f"got the shape {x} for {height} x {width}, need a non-empty image of rank 4")
    batch, channels, _spatial = split_shape(x, layout)
    return (batch, height, width, channels) if layout == "nhwc" else (batch, channels, height, width)


def _source(size: int, out: int, scale: float, offset: float) -> Array:
    return np.arange(out) * scale + offset


_NEAREST: dict[str, Any] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda v: np.ceil(v - 0.5),
    "round_prefer_ceil": lambda v: np.floor(v + 0.5),
}


def _resize_nearest(
    x: Array, height: int, width: int, scale_h: float, scale_w: float, offset_h: float, offset_w: float, mode: str,
    layout: str,
) -> Array:  # fmt: skip
    x = to_nchw(x, layout)
    rows = np.clip(_NEAREST[mode](_source(x.shape[2], height, scale_h, offset_h)), 0, x.shape[2] - 1).astype(int)
    columns = np.clip(_NEAREST[mode](_source(x.shape[3], width, scale_w, offset_w)), 0, x.shape[3] - 1).astype(int)
    return from_nchw(x[:, :, rows][:, :, :, columns], layout)


def _resize_linear(
    x: Array, height: int, width: int, scale_h: float, scale_w: float, offset_h: float, offset_w: float, layout: str
) -> Array:
    x = to_nchw(x, layout)
    for axis, out, scale, offset in ((2, height, scale_h, offset_h), (3, width, scale_w, offset_w)):
        at = np.clip(_source(x.shape[axis], out, scale, offset), 0, x.shape[axis] - 1)
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, x.shape[axis] - 1)
        weight = (at - low).reshape([-1 if i == axis else 1 for i in range(4)])
        x = np.take(x, low, axis) * (1 - weight) + np.take(x, high, axis) * weight
    return from_nchw(x, layout)


# ---- any axes, any kernel ----

_REACH = {"nearest": 0, "linear": 1, "cubic": 2}


def _resize_attrs(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Axes counted from the front, those behind the channels unless named; coordinates of pixels' centres unless given."""
    shape, sizes = types[0].shape, attrs["sizes"]
    axes = tuple(axis_index(a, len(shape)) for a in attrs["axes"]) or tuple(range(2, len(shape)))
    if len(set(axes)) != len(axes) or len(sizes) != len(axes) or not axes or min(sizes) < 1 or 0 in shape:
        raise Error(
            f"got sizes {sizes} for the axes {axes} of {shape}, need a positive one for each axis, none of them empty"
        )
    limited(max(sizes), np.dtype(np.float64))
    scales = attrs["scales"] or tuple(shape[a] / s for a, s in zip(axes, sizes, strict=True))
    offsets = attrs["offsets"] or tuple(0.5 * s - 0.5 for s in scales)
    widths = attrs["widths"] or (1.0,) * len(axes)
    if (
        not len(scales) == len(offsets) == len(widths) == len(axes)
        or not np.isfinite((*scales, *offsets, *widths)).all()
    ):
        raise Error(
            f"got scales {scales}, offsets {offsets} and widths {widths}, need a finite number for each of {axes}"
        )
    if min(widths) < 1 or (attrs["mode"] == "nearest" and max(widths) > 1):
        raise Error(f"widths: got {widths} with mode {attrs['mode']}, need 1 or more, and 1 for nearest")
    if attrs["mode"] != "nearest":
        for axis, size, width in zip(axes, sizes, widths, strict=True):
            limited(max(shape[axis], _span(attrs["mode"], width)) * size, np.dtype(np.float64))
    return {**attrs, "axes": axes, "scales": scales, "offsets": offsets, "widths": widths}


def _span(mode: str, width: float) -> int:
    return 2 * ceil(_REACH[mode] * width) + 2


def _resized(x: Shape, sizes: Shape, axes: tuple[int, ...], **_: Any) -> Shape:
    wanted = dict(zip(axes, sizes, strict=True))
    return tuple(wanted.get(i, d) for i, d in enumerate(x))


def _any_dtype(x: Any, mode: str, **_: Any) -> Any:
    return same_dtype(x) if mode == "nearest" else floating(x)


def _expand_resize(
    b: Any, x: Any, sizes: Shape, axes: tuple[int, ...], mode: str, scales: Sequence[float], offsets: Sequence[float],
    widths: Sequence[float], nearest_mode: str, cubic_coeff_a: float, exclude_outside: bool,
) -> Any:  # fmt: skip
    """As an image op where it is one, else along each axis a gather, or a product with a constant matrix (source, output)."""
    image = len(x.shape) == 4 and min(axes) >= 2 and max(widths) == 1
    if image and mode != "cubic":
        found = {a: (size, *affine) for a, size, *affine in zip(axes, sizes, scales, offsets, strict=True)}
        (height, scale_h, offset_h), (width, scale_w, offset_w) = (found.get(a, (x.shape[a], 1.0, 0.0)) for a in (2, 3))
        options = {"height": height, "width": width, "scale_h": scale_h, "scale_w": scale_w, "offset_h": offset_h,
                   "offset_w": offset_w}  # fmt: skip
        return (
            b.resize_bilinear(x, **options)
            if mode == "linear"
            else b.resize_nearest_neighbor(x, mode=nearest_mode, **options)
        )
    last = len(x.shape) - 1
    for axis, size, scale, offset, width in zip(axes, sizes, scales, offsets, widths, strict=True):
        at, extent = _source(size, size, scale, offset), x.shape[axis]
        if mode == "nearest":
            x = b.gather(x, b.const(np.clip(_NEAREST[nearest_mode](at), 0, extent - 1).astype(np.int64)), axis=axis)
            continue
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
    """(source, output). Taps outside read the edge, or with `exclude` count nothing."""
    span = _span(mode, width) // 2
    taps = np.floor(at).astype(int) + np.arange(1 - span, span + 1).reshape(-1, 1)
    t = np.abs(at - taps) / width
    if mode == "linear":
        found = np.maximum(1 - t, 0)
    else:
        near, far = ((a + 2) * t - (a + 3)) * t * t + 1, ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
        found = np.where(t <= 1, near, np.where(t < 2, far, 0.0))
    if exclude:
        found = np.where((taps >= 0) & (taps < extent), found, 0.0)
    total = found.sum(axis=0)
    result = np.zeros((extent, len(at)))
    columns = np.broadcast_to(np.arange(len(at)), taps.shape)
    np.add.at(result, (np.clip(taps, 0, extent - 1), columns), found / np.where(total == 0, 1, total))
    return result


def _resize(
    x: Array, sizes: Shape, axes: tuple[int, ...], mode: str, scales: Sequence[float], offsets: Sequence[float],
    widths: Sequence[float], nearest_mode: str, cubic_coeff_a: float, exclude_outside: bool,
) -> Array:  # fmt: skip
    for axis, size, scale, offset, width in zip(axes, sizes, scales, offsets, widths, strict=True):
        source = np.moveaxis(x, axis, 0)
        lines = [
            _line(source, i * scale + offset, mode, width, nearest_mode, cubic_coeff_a, exclude_outside)
            for i in range(size)
        ]
        x = np.moveaxis(np.stack(lines), 0, axis)
    return x


def _line(x: Array, at: float, mode: str, width: float, rounding: str, a: float, exclude: bool) -> Array:
    """One output along the first axis of x."""
    last = len(x) - 1
    if mode == "nearest":
        return x[int(min(max(_NEAREST[rounding](at), 0), last))]
    kernel: Callable[[float], float] = _tent if mode == "linear" else lambda t: _cubic(t, a)
    reach = _REACH[mode] * width
    taps = range(ceil(at - reach), floor(at + reach) + 1)
    terms = [(kernel(abs(at - tap) / width), min(max(tap, 0), last)) for tap in taps if not exclude or 0 <= tap <= last]
    total = sum(w for w, _ in terms) or 1.0
    return sum((x[i] * (w / total) for w, i in terms), np.zeros_like(x[0]))


def _tent(t: float) -> float:
    return max(0.0, 1 - t)


def _cubic(t: float, a: float) -> float:
    """Keys' kernel."""
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0


# ---- by a factor ----


def _upsampled(x: Shape, scale_factor_height: float, scale_factor_width: float, **_: Any) -> Shape:
    if len(x) != 4 or min(scale_factor_height, scale_factor_width) <= 0:
        raise Error(
            f"got x {x} and the factors {scale_factor_height} and {scale_factor_width}, need (N, C, H, W) and positive ones"
        )
    out = (*x[:2], floor(x[2] * scale_factor_height), floor(x[3] * scale_factor_width))
    if 0 in out:
        raise Error(
            f"got x {x} and the factors {scale_factor_height} and {scale_factor_width}, need a result that is not empty"
        )
    return out


def _affine_map(extent: int, factor: float, align_corners: bool, half_pixel_centers: bool) -> tuple[float, float]:
    """(scale, offset)."""
    out = floor(extent * factor)
    if align_corners:
        return ((extent - 1) / (out - 1) if out > 1 else 0.0), 0.0
    return 1 / factor, 0.5 / factor - 0.5 if half_pixel_centers else 0.0


def _one_way(types: Any, attrs: Mapping[str, Any]) -> None:
    if attrs["align_corners"] and attrs["half_pixel_centers"]:
        raise Error("got align_corners and half_pixel_centers, need one of them or neither")


def _expand_upsample(op: str) -> Callable[..., Any]:
    def expand(
        b: Any, x: Any, scale_factor_height: float, scale_factor_width: float, align_corners: bool = False,
        half_pixel_centers: bool = False,
    ) -> Any:  # fmt: skip
        _, _, height, width = _upsampled(x.shape, scale_factor_height, scale_factor_width)
        maps = (_affine_map(d, f, align_corners, half_pixel_centers)
                for d, f in zip(x.shape[2:], (scale_factor_height, scale_factor_width), strict=True))  # fmt: skip
        (scale_h, offset_h), (scale_w, offset_w) = maps
        options = {"scale_h": scale_h, "scale_w": scale_w, "offset_h": offset_h, "offset_w": offset_w}
        return b.apply(op, x, height=height, width=width, **options)

    return expand


def _upsample_nearest(x: Array, scale_factor_height: float, scale_factor_width: float) -> Array:
    shape = _upsampled(x.shape, scale_factor_height, scale_factor_width)
    rows = [min(int(i / scale_factor_height), x.shape[2] - 1) for i in range(shape[2])]
    columns = [min(int(i / scale_factor_width), x.shape[3] - 1) for i in range(shape[3])]
    return x[:, :, rows][..., columns]


def _upsample_bilinear(
    x: Array, scale_factor_height: float, scale_factor_width: float, align_corners: bool, half_pixel_centers: bool
) -> Array:
    for axis, factor in ((2, scale_factor_height), (3, scale_factor_width)):
        extent = x.shape[axis]
        scale, offset = _affine_map(extent, factor, align_corners, half_pixel_centers)
        at = np.clip(np.arange(floor(extent * factor)) * scale + offset, 0, extent - 1)
        x = _read_at(x, axis, at)
    return x


def _read_at(x: Array, axis: int, at: Array) -> Array:
    return np.apply_along_axis(lambda line: np.interp(at, np.arange(len(line)), line), axis, x)


_FACTORS: dict[str, Attr] = {"scale_factor_height": number(1.0), "scale_factor_width": number(1.0)}

OPS = (
    Op(
        name="resize_nearest_neighbor",
        doc="An image (N, C, H, W) resized to height x width: output i reads the element nearest to i * scale + offset, rounded by `mode`.", inputs=("x",),
        attrs={**_RESIZE, "mode": text("floor", tuple(_NEAREST)), "layout": LAYOUT}, shape=_resize_shape,
        dtype=same_dtype, kernel="resize_nearest", layout="spatial", ref=_resize_nearest,
        cases=(Case(((1, 3, 4, 5),), {"height": 8, "width": 10, "scale_h": 0.5, "scale_w": 0.5}),
               Case(((1, 3, 4, 5),), {"height": 7, "width": 3, "scale_h": 4 / 7, "scale_w": 5 / 3, "offset_h": -0.2,
                                      "offset_w": 1 / 3, "mode": "round_prefer_floor"})),
    ),
    Op(
        name="resize_bilinear",
        doc="An image (N, C, H, W) resized to height x width: output i is interpolated at the source coordinate i * scale + offset.", inputs=("x",),
        attrs={**_RESIZE, "layout": LAYOUT}, shape=_resize_shape, dtype=floating, kernel="resize_linear",
        layout="spatial", ref=_resize_linear,
        cases=(Case(((1, 3, 4, 5),), {"height": 8, "width": 10, "scale_h": 0.5, "scale_w": 0.5, "offset_h": -0.25,
                                      "offset_w": -0.25}),),
    ),
    Op(
        name="resize",
        doc="x with `axes` (those behind the channels, unless named) resized to `sizes`: output i reads the source around i * scale + "
            "offset; without scales and offsets, pixels' centres correspond. widths above 1 widen the kernel, against aliasing where an "
            "axis shrinks. Outside, the edge is read, or nothing with exclude_outside.",
        inputs=("x",),
        attrs={"sizes": integers(), "axes": integers(()), "mode": text("linear", tuple(_REACH)), "scales": numbers(()),
               "offsets": numbers(()), "widths": numbers(()), "nearest_mode": text("round_prefer_floor", tuple(_NEAREST)),
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
        ref=_upsample_nearest, cases=(Case(((1, 3, 4, 5),), {"scale_factor_height": 2, "scale_factor_width": 1.5}),),
    ),
    Op(
        name="upsample_bilinear",
        doc="An image (N, C, H, W) enlarged by interpolation: the outermost elements correspond with align_corners, pixels' centres "
            "with half_pixel_centers, else pixels' upper left corners.",
        inputs=("x",), attrs={**_FACTORS, "align_corners": flag(True), "half_pixel_centers": flag(False)}, shape=_upsampled,
        dtype=floating, check=(_one_way,), expand=_expand_upsample("resize_bilinear"), ref=_upsample_bilinear,
        cases=(Case(((1, 3, 4, 5),), {"scale_factor_height": 2, "scale_factor_width": 3}),
               Case(((1, 2, 3, 4),), {"scale_factor_height": 1.5, "scale_factor_width": 2, "align_corners": False,
                                      "half_pixel_centers": True})),
    ),
)  # fmt: skip

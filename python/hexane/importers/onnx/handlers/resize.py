"""Resizing. On each axis, output i reads the source around an affine coordinate, which is computed in exact fractions.

If the model gives sizes, the ratios of extents are exact. If it gives scales and regions, these are floats.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.importers.onnx.node import Builder, OnnxNode, Result, axis_of
from hexane.importers.onnx.registry import onnx_op
from hexane.ops.compose import limited
from hexane.ops.lines import ROUNDINGS, floats, nearest, whole

_HALF = Fraction(1, 2)


@dataclass(frozen=True, slots=True)
class Axis:
    """A resized axis: its extents, and its source coordinates i * step + offset."""

    axis: int
    extent: int
    out: int
    scale: Fraction
    step: Fraction
    offset: Fraction
    crops: bool  # the extrapolation value replaces samples outside the source

    def nearest(self, mode: str) -> Array:
        places: Array = nearest(whole(self.step, self.offset), self.out, self.extent, mode)
        return places

    def shifts(self, n: OnnxNode) -> bool:
        """True if an axis of unchanged extent still reads other elements."""
        return bool((self.nearest(n.attrs["nearest_mode"]) != np.arange(self.out)).any())

    def inside(self) -> Array:
        scale, offset, unit = whole(self.step, self.offset)
        at = np.arange(self.out).astype(object) * scale + offset
        mask: Array = ((at >= 0) & (at <= (self.extent - 1) * unit)).astype(np.bool_)
        return mask

    @property
    def floats(self) -> tuple[float, float, float]:
        """Returns (scale, offset, unit) for the op resize, rounded to floats if they are not exact."""
        return floats(whole(self.step, self.offset)) or (float(self.step), float(self.offset), 1.0)

    @property
    def exact(self) -> bool:
        return floats(whole(self.step, self.offset)) is not None


@onnx_op(
    "Resize",
    shape_inputs=(1, 2, 3),
    ignores=(
        1,
        2,
        "cubic_coeff_a",
        "exclude_outside",
        "extrapolation_value",
        "keep_aspect_ratio_policy",
        "nearest_mode",
    ),
)
@onnx_op("Upsample", shape_inputs=(1,))
def resize(b: Builder, n: OnnxNode) -> Result:
    if n.version < 7:
        raise Error("got it as opset 6 has it, need opset 7 or newer")
    x = n.value(0)
    mode, rounding = n.attrs["mode"], n.attrs.get("nearest_mode", "floor")
    if rounding not in ROUNDINGS:
        raise Error(f"nearest_mode: got {rounding!r}, need one of {', '.join(ROUNDINGS)}")
    axes = _axes(n, x)
    if not axes:
        n.attrs.get("antialias")  # marks antialias as read: no axis shrinks
        return x
    if mode == "nearest":
        out = _nearest(b, x, axes, rounding, simple=n.version < 11)
    elif mode in ("linear", "cubic"):
        out = _interpolated(b, n, x, axes, mode)
    else:
        raise Error(f"mode: got {mode!r}, need nearest, linear or cubic")
    if any(axis.crops for axis in axes):
        inside = np.ones([1] * len(x.shape), np.bool_)
        for axis in axes:
            inside = inside & axis.inside().reshape([-1 if i == axis.axis else 1 for i in range(len(x.shape))])
        fill = np.array(n.attrs["extrapolation_value"], x.dtype.numpy)
        out = b.select(b.const(inside), out, b.const(fill))
    return out


def _axes(n: OnnxNode, x: Value) -> list[Axis]:
    """Returns the axes that change, by the scales or sizes."""
    rank = len(x.shape)
    if n.version < 11:  # Upsample, and Resize of opset 10
        scales = n.attrs["scales"] if "scales" in n.attrs else _floats(n, 1)
        chosen, coordinates = list(range(rank)), "asymmetric"
        sizes: tuple[int, ...] = ()
    else:
        chosen = [axis_of(a, rank) for a in n.attrs.get("axes") or range(rank)]
        scales = _floats(n, 2) if n.has(2) else ()
        sizes = n.ints(3) if n.has(3) else ()
        coordinates = n.attrs["coordinate_transformation_mode"]
        if bool(scales) == bool(sizes):
            raise Error("got both scales and sizes, or neither: need one of them")
    if len(scales or sizes) != len(chosen) or len(set(chosen)) != len(chosen):
        raise Error(f"got {len(scales or sizes)} scales or sizes for the axes {tuple(chosen)}, need one each")
    extents = [x.shape[a] for a in chosen]
    if 0 in extents:
        raise Error(f"got the shape {x.shape}, need no empty axis")
    if not sizes and min(scales) <= 0:
        raise Error(f"scales: got {tuple(scales)}, need positive numbers")
    if sizes:
        outs, exact = _fitted(n, sizes, extents)
    else:
        exact = [Fraction(s) for s in scales]
        outs = [_scaled(d, s) for d, s in zip(extents, exact, strict=True)]
    limited(max(outs), np.dtype(np.float32))  # limits the array of coordinates
    if min(outs) < 1:
        raise Error(f"got the output extents {tuple(outs)}, need positive ones")
    crops = coordinates == "tf_crop_and_resize"
    roi = _floats(n, 1) if crops else (0.0,) * len(chosen) + (1.0,) * len(chosen)
    if len(roi) != 2 * len(chosen):
        raise Error(f"roi: got {len(roi)} numbers, need {2 * len(chosen)}")
    if coordinates in ("align_corners", "pytorch_half_pixel", "tf_crop_and_resize"):
        for extent, out, scale in zip(extents, outs, exact, strict=True):
            if abs(extent * scale - out) > 1e-4:  # implementations disagree whether the extent is rounded first
                raise Error(f"got the scale {float(scale)} for an extent of {extent} with {coordinates}, need sizes")
    result = []
    for i, (axis, extent, out, scale) in enumerate(zip(chosen, extents, outs, exact, strict=True)):
        start, end = Fraction(roi[i]), Fraction(roi[len(chosen) + i])
        if out == extent and scale != 1:  # onnxruntime does not resample an image that keeps its extents
            raise Error(f"got the scale {float(scale)} for axis {axis}, which keeps its extent; need 1 or sizes")
        if crops and scale == 1 and (start != 0 or end != 1):  # onnxruntime does not resample an axis of scale 1
            raise Error(f"got a roi for axis {axis}, which keeps its extent; need one that changes")
        line = Axis(axis, extent, out, scale, *_coordinates(coordinates, extent, out, scale, start, end), crops)
        shifts = coordinates == "tf_half_pixel_for_nn" and n.attrs["mode"] == "nearest" and line.shifts(n)
        if out != extent or scale != 1 or shifts:
            result.append(line)
    return result


def _floats(n: OnnxNode, index: int) -> tuple[float, ...]:
    array = n.array(index)
    if array.dtype.kind != "f" or array.ndim != 1 or not np.isfinite(array).all():
        raise Error(f"input {index}: got {array.dtype}{list(array.shape)}, need a vector of finite numbers")
    return tuple(float(v) for v in array)


def _scaled(extent: int, scale: Fraction) -> int:
    """Returns floor(extent * scale). Raises Error if fp32 arithmetic gives another number, because implementations then
    disagree."""
    exact, single = floor(extent * scale), floor(np.float32(extent) * np.float32(scale))
    if exact != single:
        raise Error(
            f"got the scale {float(scale)} for an extent of {extent}, whose product rounds differently; need sizes"
        )
    return exact


def _fitted(n: OnnxNode, sizes: tuple[int, ...], extents: list[int]) -> tuple[list[int], list[Fraction]]:
    """Returns output extents and scales. The aspect ratio is kept if the policy says so."""
    if min(sizes) < 1:
        raise Error(f"sizes: got {sizes}, need positive integers")
    scales = [Fraction(s, d) for s, d in zip(sizes, extents, strict=True)]
    policy = n.attrs.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return list(sizes), scales
    if policy not in ("not_larger", "not_smaller"):
        raise Error(f"keep_aspect_ratio_policy: got {policy!r}, need stretch, not_larger or not_smaller")
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [floor(scale * d + _HALF) for d in extents], [scale] * len(extents)


def _coordinates(
    mode: str, extent: int, out: int, scale: Fraction, start: Fraction, end: Fraction
) -> tuple[Fraction, Fraction]:
    """Returns (step, offset) of the source coordinates."""
    nothing = Fraction(0)
    if mode == "asymmetric":
        return 1 / scale, nothing
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and out > 1):
        return 1 / scale, _HALF / scale - _HALF
    if mode == "pytorch_half_pixel" or (mode == "align_corners" and out == 1):
        return nothing, nothing
    if mode == "align_corners":
        return Fraction(extent - 1, out - 1), nothing
    if mode == "tf_half_pixel_for_nn":
        return 1 / scale, _HALF / scale
    if mode == "half_pixel_symmetric":  # keeps the image's centre in place, even if the extent is rounded
        return 1 / scale, _HALF / scale - _HALF + (extent - out / scale) / 2
    if mode == "tf_crop_and_resize":
        if out == 1:
            return nothing, (start + end) * (extent - 1) / 2
        return (end - start) * (extent - 1) / (out - 1), start * (extent - 1)
    raise Error(f"coordinate_transformation_mode: got {mode!r}, need one that ONNX defines")


def _nearest(b: Builder, x: Value, axes: list[Axis], mode: str, simple: bool) -> Result:
    for axis in axes:
        if simple and axis.scale < 1 and (axis.nearest("floor") != axis.nearest("ceil")).any():
            raise Error(f"got the scale {float(axis.scale)}, whose rounding this opset leaves open; need 1 / n")
    if all(axis.exact for axis in axes):
        return b.resize(x, mode="nearest", nearest_mode=mode, **_lines(axes))
    for axis in axes:
        x = b.gather(x, b.const(axis.nearest(mode)), axis=axis.axis)
    return x


def _lines(axes: list[Axis]) -> dict[str, Any]:
    scales, offsets, units = zip(*(axis.floats for axis in axes), strict=True)
    sizes = [axis.out for axis in axes]
    return {
        "sizes": sizes, "axes": [axis.axis for axis in axes], "scales": scales, "offsets": offsets, "units": units
    }  # fmt: skip


def _interpolated(b: Builder, n: OnnxNode, x: Value, axes: list[Axis], mode: str) -> Result:
    """Interpolates. antialias widens the kernel by the factor at which an axis shrinks."""
    widths = [float(max(1 / axis.scale, Fraction(1))) for axis in axes] if n.attrs.get("antialias", 0) else []
    options: dict[str, Any] = {}
    if mode == "cubic":
        options["cubic_coeff_a"] = n.attrs["cubic_coeff_a"]
    if mode == "cubic" or widths:
        options["exclude_outside"] = n.attrs["exclude_outside"]
    return b.resize(x, mode=mode, widths=widths, **_lines(axes), **options)

"""Resizing: along each axis, output i reads the source around an affine coordinate i * step + offset."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import floor
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.importers.onnx.node import Builder, OnnxNode, Result, axis_of
from hexane.ops.compose import limited

# Indices of the nearest elements.
_NEAREST: dict[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda v: np.ceil(v - 0.5),
    "round_prefer_ceil": lambda v: np.floor(v + 0.5),
}


_NUDGES = (-1e-4, 1e-4)  # more than fp32 may be off


@dataclass(frozen=True, slots=True)
class Axis:
    """One resized axis: its extents, and the affine map from output to source coordinates."""

    axis: int
    extent: int
    out: int
    scale: float
    step: float
    offset: float
    coordinates: Array  # fp32, one for each output: as precise as the peers, where halves decide
    crops: bool  # coordinates outside the source read the extrapolation value
    settled: bool  # peers agree how to compute the coordinates
    halves: Mapping[str, Array] | None = None  # by mode, the indices as fractions have them

    @property
    def exact(self) -> Array:
        """The coordinates in fp64."""
        return np.arange(self.out) * self.step + self.offset

    def nearest(self, mode: str) -> Array:
        def pick(coordinates: Array) -> Array:
            return np.clip(_NEAREST[mode](coordinates), 0, self.extent - 1).astype(np.int64)

        found = pick(self.coordinates.astype(np.float64))  # fp32 would round once more at halves
        # Peers agree on floor and ceil of most coordinates, and on halves that are exact.
        doubtful = np.full(self.out, not self.settled)
        if mode.startswith("round"):
            doubtful |= (self.exact != self.coordinates) | (self.exact * 4096 % 1 != 0)
        if (
            self.halves is not None and mode in self.halves
        ):  # as fractions they leave no doubt, where fp32 agrees with them
            doubtful &= np.clip(self.halves[mode], 0, self.extent - 1) != found
        if any(((pick(self.exact + nudge) != found) & doubtful).any() for nudge in _NUDGES):
            raise Error("got coordinates between two elements, where rounding decides; need other sizes")
        return found

    def inside(self) -> Array:
        def within(coordinates: Array) -> Array:
            return (coordinates >= 0) & (coordinates <= self.extent - 1)

        found = within(self.exact)
        # From the first element to the last, however it is computed.
        edges = np.isin(self.exact, (0, self.extent - 1)) & (self.offset == 0)
        edges &= (self.exact == 0) | (self.step * (self.out - 1) == self.extent - 1)
        if any(((within(self.exact + nudge) != found) & ~edges).any() for nudge in _NUDGES):
            raise Error("got coordinates on the border of the source, where rounding decides; need another roi")
        return found


def resize(b: Builder, n: OnnxNode) -> Result:
    x = n.value(0)
    mode = n.attrs["mode"]
    axes = _axes(n, x)
    if not axes:
        return x
    if mode == "nearest":
        out = _nearest(b, x, axes, n.attrs.get("nearest_mode", "floor"), simple=n.version < 11)
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
    """The axes that change, from scales or sizes."""
    rank = len(x.shape)
    if n.version < 11:  # Upsample, and the first Resize
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
    if sizes:
        outs, scales = _fitted(n, sizes, extents)
    else:
        outs = [_scaled(d, s) for d, s in zip(extents, scales, strict=True)]
    limited(max(outs), np.dtype(np.float32))  # its coordinates
    if min(outs) < 1:
        raise Error(f"got the output extents {tuple(outs)}, need positive ones")
    crops = coordinates == "tf_crop_and_resize"
    roi = _floats(n, 1) if crops else (0.0,) * len(chosen) + (1.0,) * len(chosen)
    if len(roi) != 2 * len(chosen):
        raise Error(f"roi: got {len(roi)} numbers, need {2 * len(chosen)}")
    if coordinates in ("align_corners", "pytorch_half_pixel", "tf_crop_and_resize"):
        for extent, out, scale in zip(extents, outs, scales, strict=True):
            if abs(extent * scale - out) > 1e-4:  # peers disagree whether the length is rounded first
                raise Error(f"got the scale {scale} for an extent of {extent} with {coordinates}, need sizes")
    settled = not crops and coordinates != "half_pixel_symmetric"
    result = []
    for i, (axis, extent, out, scale) in enumerate(zip(chosen, extents, outs, scales, strict=True)):
        whole = (roi[i], roi[len(chosen) + i]) == (0, 1)
        if out == extent and scale != 1:  # onnxruntime leaves such an image as it is
            raise Error(f"got the scale {scale} for axis {axis}, which keeps its extent; need 1 or sizes")
        if crops and scale == 1 and not whole:  # onnxruntime leaves such an axis as it is
            raise Error(f"got a roi for axis {axis}, which keeps its extent; need one that changes")
        if out != extent or scale != 1:
            step, offset, at = _coordinates(coordinates, extent, out, float(scale), roi[i], roi[len(chosen) + i])
            halves = _half_pixels(extent, out) if coordinates == "half_pixel" and scale == out / extent else None
            result.append(Axis(axis, extent, out, float(scale), step, offset, at, crops, settled, halves))
    return result


def _half_pixels(extent: int, out: int) -> Mapping[str, Array]:
    """The integers nearest to (i + 1/2) * extent / out - 1/2, by the rounding of halves."""
    twice = (2 * np.arange(out, dtype=np.int64) + 1) * extent
    return {"round_prefer_floor": -((2 * out - twice) // (2 * out)), "round_prefer_ceil": twice // (2 * out)}


def _floats(n: OnnxNode, index: int) -> tuple[float, ...]:
    array = n.array(index)
    if array.dtype.kind != "f" or array.ndim != 1 or not np.isfinite(array).all():
        raise Error(f"input {index}: got {array.dtype}{list(array.shape)}, need a vector of finite numbers")
    return tuple(float(v) for v in array)


def _scaled(extent: int, scale: float) -> int:
    """floor(extent * scale), refused where fp32 and fp64 do not agree on it: peers do not either."""
    exact, single = floor(extent * scale), floor(np.float32(extent) * np.float32(scale))
    if exact != single:
        raise Error(f"got the scale {scale} for an extent of {extent}, whose product rounds differently; need sizes")
    return exact


def _fitted(n: OnnxNode, sizes: tuple[int, ...], extents: list[int]) -> tuple[list[int], list[float]]:
    """Output extents and scales, the aspect ratio kept where the policy says so."""
    if min(sizes) < 1:
        raise Error(f"sizes: got {sizes}, need positive integers")
    scales = [s / d for s, d in zip(sizes, extents, strict=True)]
    policy = n.attrs.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return list(sizes), [float(np.float32(s)) for s in scales]
    if policy not in ("not_larger", "not_smaller"):
        raise Error(f"keep_aspect_ratio_policy: got {policy!r}, need stretch, not_larger or not_smaller")
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [floor(scale * d + 0.5) for d in extents], [scale] * len(extents)


def _coordinates(
    mode: str, extent: int, out: int, scale: float, start: float, end: float
) -> tuple[float, float, Array]:
    """(step, offset) in fp64, and the coordinates computed in fp32 in the order of the definition."""
    i, single, half = np.arange(out, dtype=np.float32), np.float32(scale), np.float32(0.5)
    centred = (1 / scale, 0.5 / scale - 0.5, (i + half) / single - half)
    if mode == "asymmetric":
        return 1 / scale, 0.0, i / single
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and out > 1):
        return centred
    if mode == "pytorch_half_pixel":
        return 0.0, 0.0, i
    if mode == "align_corners":
        if out == 1:
            return 0.0, 0.0, i
        return (extent - 1) / (out - 1), 0.0, i * np.float32(extent - 1) / np.float32(out - 1)
    if mode == "tf_half_pixel_for_nn":
        return 1 / scale, 0.5 / scale, (i + half) / single
    if mode == "half_pixel_symmetric":
        shift = extent / 2 * (1 - out / (scale * extent))
        return centred[0], centred[1] + shift, np.float32(shift) + centred[2]
    if mode == "tf_crop_and_resize":
        if out == 1:
            middle = 0.5 * (start + end) * (extent - 1)
            return 0.0, middle, np.full(1, middle, np.float32)
        step, offset = (end - start) * (extent - 1) / (out - 1), start * (extent - 1)
        span, last, gaps = np.float32(end) - np.float32(start), np.float32(extent - 1), np.float32(out - 1)
        return step, offset, np.float32(start) * last + i * span * last / gaps
    raise Error(f"coordinate_transformation_mode: got {mode!r}, need one that ONNX defines")


def _nearest(b: Builder, x: Value, axes: list[Axis], mode: str, simple: bool) -> Result:
    """As an image op where that has these indices, else as gathers."""
    if mode not in _NEAREST:
        raise Error(f"nearest_mode: got {mode!r}, need one of {', '.join(_NEAREST)}")
    for axis in axes:
        if simple and axis.scale < 1 and (axis.nearest("floor") != axis.nearest("ceil")).any():
            raise Error(f"got the scale {axis.scale}, whose rounding this opset leaves open; need 1 / n")
        derived = _NEAREST[mode](axis.exact)
        if len(x.shape) != 4 or (np.clip(derived, 0, axis.extent - 1) != axis.nearest(mode)).any():
            break
    else:
        if all(axis.axis >= 2 for axis in axes):
            return b.resize_nearest_neighbor(x, mode=mode, **_image(x, axes))
    for axis in axes:
        x = b.gather(x, b.const(axis.nearest(mode)), axis=axis.axis)
    return x


def _image(x: Value, axes: list[Axis]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "height": x.shape[2], "width": x.shape[3], "scale_h": 1.0, "scale_w": 1.0
    }  # fmt: skip
    for axis in axes:
        extent, letter = ("height", "h") if axis.axis == 2 else ("width", "w")
        result |= {extent: axis.out, f"scale_{letter}": axis.step, f"offset_{letter}": axis.offset}
    return result


def _interpolated(b: Builder, n: OnnxNode, x: Value, axes: list[Axis], mode: str) -> Result:
    """antialias widens the kernel by what shrinks."""
    widths = [max(1 / axis.scale, 1.0) for axis in axes] if n.attrs.get("antialias", 0) else []
    options: dict[str, Any] = {}
    if mode == "cubic":
        options["cubic_coeff_a"] = n.attrs["cubic_coeff_a"]
    if mode == "cubic" or widths:
        options["exclude_outside"] = n.attrs["exclude_outside"]
    return b.resize(
        x,
        sizes=[axis.out for axis in axes],
        axes=[axis.axis for axis in axes],
        mode=mode,
        scales=[axis.step for axis in axes],
        offsets=[axis.offset for axis in axes],
        widths=widths,
        **options,
    )


HANDLERS = {"Resize": resize, "Upsample": resize}

"""Resizing of images. MIL has names for the sampling positions of output i. The catalogue has the formula (i * scale +
offset) / unit.

UNALIGN_CORNERS        (i + 1/2) * in / out - 1/2     centres of pixels
STRICT_ALIGN_CORNERS   i * (in - 1) / (out - 1)       centres of the outermost pixels aligned
DEFAULT                i * in / out                   upper left corners of pixels
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import floor, isclose
from typing import Any

from hexane.errors import Error
from hexane.graph import Node, Value
from hexane.mil.forms.form import Form, MilCall
from hexane.ops.compose import Builder

Line = tuple[float, float, float]  # scale, offset, unit

_CENTRES, _CORNERS, _DEFAULT = "UNALIGN_CORNERS", "STRICT_ALIGN_CORNERS", "DEFAULT"
_MODES: Mapping[str, Callable[[int, int], Line]] = {
    _CENTRES: lambda extent, size: (extent, 0.5 * (extent - size), size),
    _CORNERS: lambda extent, size: (extent - 1, 0, max(size - 1, 1)),
    _DEFAULT: lambda extent, size: (extent, 0, size),
}


def in_mil_lines(node: Node) -> dict[str, Any] | None:
    """Returns the attributes of a resize in the form that reading MIL gives, or None if MIL lacks its positions."""
    x = node.inputs[0]
    assert x is not None
    attrs = node.attrs
    if attrs["layout"] != "nchw":
        return None
    sizes = (attrs["height"], attrs["width"])
    axes = list(zip(x.shape[2:], sizes, _lines(attrs), strict=True))
    if node.op == "resize_nearest_neighbor":
        if not all(_same_pixels(extent, size, line, attrs["mode"]) for extent, size, line in axes):
            return None
        return _attrs(x, *sizes, _DEFAULT) | {"mode": "floor"}
    for mode, line_of in _MODES.items():
        if all(_same_line(line, line_of(extent, size)) for extent, size, line in axes):
            return _attrs(x, *sizes, mode)
    return None


def _lines(attrs: Mapping[str, Any]) -> list[Line]:
    return [(attrs[f"scale_{a}"], attrs[f"offset_{a}"], attrs[f"unit_{a}"]) for a in "hw"]


def _same_line(line: Line, other: Line) -> bool:
    """True if two formulas (scale, offset, unit) give equal positions up to rounding."""
    (scale, offset, unit), (scale2, offset2, unit2) = line, other
    return isclose(scale / unit, scale2 / unit2, abs_tol=1e-9) and isclose(offset / unit, offset2 / unit2, abs_tol=1e-9)


def _same_pixels(extent: int, size: int, line: Line, mode: str) -> bool:
    """True if output i reads the pixel floor(i * extent / size), for every i."""
    scale, offset, unit = map(Fraction, line)
    return all(
        min(max(_ROUNDED[mode]((i * scale + offset) / unit), 0), extent - 1) == i * extent // size for i in range(size)
    )


_HALF = Fraction(1, 2)
_ROUNDED: Mapping[str, Callable[[Fraction], int]] = {
    "floor": floor,
    "ceil": lambda v: -floor(-v),
    "round_prefer_floor": lambda v: -floor(_HALF - v),
    "round_prefer_ceil": lambda v: floor(v + _HALF),
}


def _attrs(x: Value, height: int, width: int, mode: str) -> dict[str, Any]:
    result: dict[str, Any] = {"height": height, "width": width}
    for letter, extent, size in zip("hw", x.shape[2:], (height, width), strict=True):
        line = _MODES[mode](extent, size)
        result |= {f"{name}_{letter}": float(v) for name, v in zip(("scale", "offset", "unit"), line, strict=True)}
    return result


def _write(node: Node) -> MilCall | None:
    x, attrs = node.inputs[0], node.attrs
    assert x is not None
    own = in_mil_lines(node)
    if own is None or any(attrs[name] != value for name, value in own.items()):
        return None
    height, width = attrs["height"], attrs["width"]
    sizes = {"target_size_height": height, "target_size_width": width}
    if node.op == "resize_nearest_neighbor":
        if height % x.shape[2] == 0 and width % x.shape[3] == 0:
            factors = {"scale_factor_height": height // x.shape[2], "scale_factor_width": width // x.shape[3]}
            return MilCall("upsample_nearest_neighbor", {"x": x, **factors})
        return MilCall("resize_nearest_neighbor", {"x": x, **sizes})
    mode = next(m for m in _MODES if _attrs(x, height, width, m) == own)
    return MilCall("resize_bilinear", {"x": x, **sizes, "sampling_mode": mode})


def _read_nearest(b: Builder, x: Value, target_size_height: int, target_size_width: int) -> Value:
    _check(x, target_size_height, target_size_width)
    return b.resize_nearest_neighbor(x, **_attrs(x, target_size_height, target_size_width, _DEFAULT), mode="floor")


def _read_bilinear(b: Builder, x: Value, target_size_height: int, target_size_width: int, sampling_mode: str) -> Value:
    _check(x, target_size_height, target_size_width)
    if sampling_mode not in _MODES:
        raise Error(f"sampling_mode: got {sampling_mode!r}, need one of {', '.join(_MODES)}")
    return b.resize_bilinear(x, **_attrs(x, target_size_height, target_size_width, sampling_mode))


def _check(x: Value, height: int, width: int) -> None:
    if len(x.shape) != 4 or height < 1 or width < 1:
        raise Error(f"got x {x.type} and the size {height} x {width}, need (N, C, H, W) and a positive size")


def _scaled(x: Value, *factors: float) -> tuple[int, int]:
    if len(x.shape) != 4 or not all(0 < factor < 1 << 20 for factor in factors):
        raise Error(f"got x {x.type} and the factors {factors}, need (N, C, H, W) and positive ones")
    height, width = (floor(d * factor) for d, factor in zip(x.shape[2:], factors, strict=True))
    return height, width


def _read_upsample_nearest(b: Builder, x: Value, scale_factor_height: float, scale_factor_width: float) -> Value:
    return _read_nearest(b, x, *_scaled(x, scale_factor_height, scale_factor_width))


def _read_upsample_bilinear(
    b: Builder,
    x: Value,
    scale_factor_height: float,
    scale_factor_width: float,
    align_corners: bool,
    half_pixel_centers: bool | None,
) -> Value:
    """Reads an upsampling. Without align_corners, the centres of pixels are aligned unless half_pixel_centers is
    false."""
    mode = _CORNERS if align_corners else _DEFAULT if half_pixel_centers is False else _CENTRES
    return _read_bilinear(b, x, *_scaled(x, scale_factor_height, scale_factor_width), mode)


FORMS = (
    Form("resize_nearest_neighbor", "resize_nearest_neighbor", _write, _read_nearest),
    Form("resize_bilinear", "resize_bilinear", _write, _read_bilinear),
    Form("", "upsample_nearest_neighbor", None, _read_upsample_nearest),
    Form("", "upsample_bilinear", None, _read_upsample_bilinear),
)

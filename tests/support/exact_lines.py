"""The coordinates of ONNX Resize as exact fractions, and models that resize from every extent to every other."""

from collections.abc import Sequence
from fractions import Fraction
from math import floor, lcm
from typing import Any

import numpy as np
from onnx import helper

from onnx_models import model

HALF = Fraction(1, 2)
ROI = (0.125, 0.7999999523162842)  # fp32 numbers
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "align_corners", "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)  # fmt: skip


def coordinate(mode: str, extent: int, out: int, scale: Fraction, i: int) -> Fraction:
    """As ONNX writes it."""
    start, end = map(Fraction, ROI) if mode == "tf_crop_and_resize" else (0, 1)
    if mode == "half_pixel_symmetric":
        adjustment = out / (scale * extent)
        return Fraction(extent, 2) * (1 - adjustment) + (i + HALF) / scale - HALF
    if mode == "pytorch_half_pixel" and out == 1:
        return Fraction(0)
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (i + HALF) / scale - HALF
    if mode == "asymmetric":
        return i / scale
    if mode == "align_corners":
        return Fraction(i * (extent - 1), out - 1) if out > 1 else Fraction(0)
    if mode == "tf_half_pixel_for_nn":
        return (i + HALF) / scale
    if out == 1:
        return HALF * (start + end) * (extent - 1)
    return start * (extent - 1) + i * (end - start) * (extent - 1) / (out - 1)


def coordinates(mode: str, extent: int, out: int, scale: Fraction) -> tuple[Any, int]:
    """All of an axis: whole numerators and their denominator. Every mode is a line, which two points give."""
    first, second = (coordinate(mode, extent, out, scale, i) for i in (0, 1))
    below = lcm(first.denominator, second.denominator)
    begin, step = int(first * below), int((second - first) * below) if out > 1 else 0
    assert 4 * (abs(begin) + out * abs(step) + below) < 2**63
    return begin + step * np.arange(out), below


def scale_of(extent: int, out: int) -> float | None:
    """The fp32 scale between them, if it gives this extent whoever multiplies."""
    scale = np.float32(out) / np.float32(extent)
    same = floor(Fraction(float(scale)) * extent) == floor(np.float32(extent) * scale) == out
    return float(scale) if same and (extent == out) == (scale == 1) else None


def scales_of(mode: str, pairs: Sequence[tuple[int, int]], by_scales: bool) -> list[Fraction] | None:
    """The scales between (extent, out) of each axis. None where peers disagree on what they mean: such models are
    refused."""
    if mode == "tf_crop_and_resize" and any(extent == out for extent, out in pairs):
        return None
    if not by_scales:
        return [Fraction(out, extent) for extent, out in pairs]
    found = [scale_of(*pair) for pair in pairs]
    return None if None in found else [Fraction(v) for v in found if v is not None]


def resizes(
    x: Any, extents: Sequence[int], outs: Sequence[Sequence[int]], options: Sequence[dict[str, Any]], by_scales: bool
) -> tuple[Any, dict[str, tuple[Sequence[int], dict[str, Any], list[Fraction]]]]:
    """(model, results by name): x's last axes, whose extents these are, resized to each of outs with each of the
    options."""
    kept = x.ndim - len(extents)
    constants: dict[str, Any] = {}
    nodes, results = [], {}
    for case in options:
        mode = case["coordinate_transformation_mode"]
        constants["roi"] = np.float32([0] * kept + [ROI[0]] * len(extents) + [1] * kept + [ROI[1]] * len(extents))
        for out in outs:
            scales = scales_of(mode, list(zip(extents, out, strict=True)), by_scales)
            if scales is None:
                continue
            target = "_".join(map(str, out))
            constants[f"t{target}"] = (
                np.float32([1] * kept + scales) if by_scales else np.array([*x.shape[:kept], *out])
            )
            name = f"y{len(nodes)}"
            nodes.append(
                helper.make_node("Resize", ["x", "roi", *["", f"t{target}"][:: -1 if by_scales else 1]], [name], **case)
            )
            results[name] = out, case, scales
    return model(nodes, {"x": x}, list(results), constants, opset=19) if nodes else None, results

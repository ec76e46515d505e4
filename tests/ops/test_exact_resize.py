"""Resize against fractions: which element each output reads, for every coordinate mode and rounding.

The slow sweep takes every pair of extents up to 64, as sizes and as the fp32 scales between them.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from math import ceil, floor
from typing import Any

import numpy as np
import pytest
from onnx import helper

import hexane as hx
from hexane.importers.onnx import import_onnx
from hexane.ops import OPS
from hexane.passes.legalize.expand import expand
from hexane.targets import load_target
from kernels import run
from onnx_models import model

HALF = Fraction(1, 2)
ROI = (0.125, 0.7999999523162842)  # fp32 numbers
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "align_corners", "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)  # fmt: skip
ROUNDINGS: dict[str, Callable[[Fraction], int]] = {
    "floor": floor,
    "ceil": ceil,
    "round_prefer_floor": lambda v: ceil(v - HALF),
    "round_prefer_ceil": lambda v: floor(v + HALF),
}
SOME = (1, 2, 3, 4, 7, 10, 28, 49, 55, 58, 61, 62, 63, 64)


@cache
def coordinates(mode: str, extent: int, out: int, scale: Fraction) -> list[Fraction]:
    """As ONNX writes them."""
    start, end = map(Fraction, ROI) if mode == "tf_crop_and_resize" else (0, 1)

    def at(i: int) -> Fraction:
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

    return [at(i) for i in range(out)]


def indices(mode: str, rounding: str, extent: int, out: int, scale: Fraction) -> list[int]:
    """-1 where a region ends before."""
    found = []
    for v in coordinates(mode, extent, out, scale):
        outside = mode == "tf_crop_and_resize" and not 0 <= v <= extent - 1
        found.append(-1 if outside else min(max(ROUNDINGS[rounding](v), 0), extent - 1))
    return found


def scale_of(extent: int, out: int) -> float | None:
    """The fp32 scale between them, if it gives this extent whoever multiplies."""
    scale = np.float32(out) / np.float32(extent)
    same = floor(Fraction(float(scale)) * extent) == floor(np.float32(extent) * scale) == out
    return float(scale) if same and (extent == out) == (scale == 1) else None


def models(mode: str, extent: int, outs: Sequence[int], by_scales: bool, roundings: Sequence[str]) -> Any:
    """(model, image (1, 1, extent, 65 - extent), the outs and (rounding, scales) of each result): resized to (out, 65 - out)."""
    x = np.arange(1, extent * (65 - extent) + 1, dtype=np.float32).reshape(1, 1, extent, 65 - extent)
    constants: dict[str, Any] = {"roi": np.float32([0, 0, ROI[0], ROI[0], 1, 1, ROI[1], ROI[1]])}
    nodes, results = [], {}
    for out in outs:
        pairs = ((extent, out), (65 - extent, 65 - out))
        scales = [scale_of(*pair) for pair in pairs] if by_scales else [Fraction(o, d) for d, o in pairs]
        if None in scales or (mode == "tf_crop_and_resize" and extent == out):
            continue  # refused: peers do not agree on them
        constants[f"target{out}"] = np.float32([1, 1, *scales]) if by_scales else np.array([1, 1, out, 65 - out])
        for rounding in roundings:
            target = ["", f"target{out}"][:: -1 if by_scales else 1]
            attrs = {"mode": "nearest", "nearest_mode": rounding, "coordinate_transformation_mode": mode}
            nodes.append(helper.make_node("Resize", ["x", "roi", *target], [f"{rounding}_{out}"], **attrs))
            results[f"{rounding}_{out}"] = out, rounding, [Fraction(s) for s in scales]
    return model(nodes, {"x": x}, list(results), constants, opset=19) if nodes else None, x, results


def wanted(mode: str, x: Any, out: int, rounding: str, scales: Sequence[Fraction]) -> Any:
    pairs = zip(x.shape[2:], (out, 65 - out), scales, strict=True)
    rows, columns = (np.array(indices(mode, rounding, *pair)) for pair in pairs)
    return np.where((rows < 0)[:, None] | (columns < 0), 0, x[0, 0][rows][:, columns])


@pytest.mark.parametrize("by_scales", [False, True])
@pytest.mark.parametrize("mode", COORDINATES)
def test_nearest_reads_what_fractions_say(mode: str, by_scales: bool) -> None:
    for extent in (28, 49):
        proto, x, results = models(mode, extent, SOME, by_scales, list(ROUNDINGS))
        found = hx.compile(import_onnx(proto))(x)
        for name, (out, rounding, scales) in results.items():
            assert np.array_equal(found[name][0, 0], wanted(mode, x, out, rounding, scales)), (extent, name)


@pytest.mark.slow
@pytest.mark.parametrize("by_scales", [False, True])
@pytest.mark.parametrize("mode", COORDINATES)
def test_nearest_reads_what_fractions_say_for_every_extent(mode: str, by_scales: bool) -> None:
    """By the kernel itself, as the importer calls it: the other extents are those of the other axis."""
    for extent in range(1, 33):
        proto, x, results = models(mode, extent, range(1, 65), by_scales, ["floor"])
        graph = expand(import_onnx(proto), load_target("host"))
        for port in graph.outputs:
            out, _, scales = results[port.name]
            node, inside = port.value.node, np.ones((1, 1), np.bool_)
            if node.op == "select":
                inside, node = node.inputs[0].node.data[0, 0], node.inputs[1].node
            for rounding in ROUNDINGS:
                if node.op == "input":
                    image = x.reshape(port.value.shape)
                else:
                    image = np.empty((1, out, 65 - out, 1), np.float32)
                    attrs = OPS["resize_nearest_neighbor"].kernel_attrs(None, {**node.attrs, "mode": rounding})
                    run("resize_nearest", [x.reshape(1, *x.shape[2:], 1)], [image], attrs)
                found = np.where(inside, image.reshape(out, 65 - out), 0)
                assert np.array_equal(found, wanted(mode, x, out, rounding, scales)), (extent, out, rounding)


def test_floor_reads_the_element_a_whole_coordinate_names() -> None:
    x = np.arange(28, dtype=np.float32)
    attrs = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    for shape in ((28,), (1, 1, 28, 1)):
        sizes = np.array([4 if d == 28 else d for d in shape])
        nodes = [helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **attrs)]
        net = hx.compile(import_onnx(model(nodes, {"x": x.reshape(shape)}, ["y"], {"sizes": sizes})))
        assert net(x.reshape(shape)).ravel().tolist() == [0, 7, 14, 21]


@pytest.mark.parametrize("factor", [49, 1.1, 0.3, 2])
def test_upsampling_reads_what_the_factor_says(factor: float) -> None:
    """49 * (1 / 49) is below 1 in fp64."""
    x = np.arange(110, dtype=np.float32).reshape(1, 1, 1, 110)
    y = hx.upsample_nearest_neighbor(hx.input("x", x.shape), scale_factor_width=factor)
    wanted = [min(floor(i / Fraction(factor)), 109) for i in range(y.shape[3])]
    assert hx.compile(y)(x).ravel().tolist() == wanted

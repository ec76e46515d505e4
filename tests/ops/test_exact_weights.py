"""Resize by linear and cubic interpolation against fractions: what every element weighs in each output.

The slow sweep takes every pair of extents up to 64, as sizes and as the fp32 scales between them.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import hexane as hx
from exact_lines import COORDINATES, coordinates, resizes
from hexane.importers.onnx import import_onnx
from hexane.passes.legalize.expand import expand
from hexane.targets import load_target
from kernels import run
from turns import share

SOME = (1, 2, 3, 4, 7, 10, 28, 49, 61, 62, 63, 64)
CUBIC = -0.75
NEAR = 3e-7  # a weight is below 1 and rounded to fp32 a few times
FILL = 3.0
OTHERS = (  # kernels that a linear resize of an image does not run
    {"mode": "cubic"},
    {"mode": "cubic", "exclude_outside": 1},
    {"mode": "linear", "antialias": 1},
    {"mode": "cubic", "antialias": 1},
)


def kernel(mode: str, t: Any) -> Any:
    """As ONNX draws it, of distances."""
    if mode == "linear":
        return np.maximum(1 - t, 0)
    near, far = ((CUBIC + 2) * t - (CUBIC + 3)) * t * t + 1, ((CUBIC * t - 5 * CUBIC) * t + 8 * CUBIC) * t - 4 * CUBIC
    return np.where(t <= 1, near, np.where(t < 2, far, 0))


def weights(case: dict[str, Any], extent: int, out: int, scale: Fraction) -> Any:
    """(extent, out). Elements beyond the edge are the edge's, or nothing."""
    at, below = coordinates(case["coordinate_transformation_mode"], extent, out, scale)
    wider = float(max(1 / scale, 1)) if case.get("antialias") else 1.0
    reach = int(2 * wider) + 2
    taps = np.arange(-reach, extent + reach)[:, None]
    distances = np.abs(at - taps * below) / below  # one rounding
    found = kernel(case["mode"], distances / wider)
    if case.get("exclude_outside"):
        found *= (taps >= 0) & (taps < extent)
    result = np.zeros((extent, out))
    np.add.at(result, np.clip(taps[:, 0], 0, extent - 1), found / found.sum(0))
    return result


def inside(case: dict[str, Any], extent: int, out: int, scale: Fraction) -> Any:
    """Which outputs read x at all."""
    at, below = coordinates(case["coordinate_transformation_mode"], extent, out, scale)
    crops = case["coordinate_transformation_mode"] == "tf_crop_and_resize"
    return ((at >= 0) & (at <= (extent - 1) * below)) | (not crops)


def of_a_row(case: dict[str, Any], extent: int, outs: Sequence[int], by_scales: bool) -> Any:
    """(model, the identity, results): each row of it resized, which gives the weights."""
    options = [{**case, "coordinate_transformation_mode": mode, "extrapolation_value": FILL} for mode in COORDINATES]
    x = np.eye(extent, dtype=np.float32)
    proto, results = resizes(x, (extent,), [(out,) for out in outs], options, by_scales)
    return proto, x, results


@pytest.mark.parametrize("by_scales", [False, True])
@pytest.mark.parametrize("case", [{"mode": "linear"}, *OTHERS], ids=lambda case: "_".join(case) + "_" + case["mode"])
def test_elements_weigh_what_fractions_say(case: dict[str, Any], by_scales: bool) -> None:
    for extent in (1, 3, 28, 49):
        proto, x, results = of_a_row(case, extent, SOME, by_scales)
        found = hx.compile(import_onnx(proto))(x)
        for name, ((out,), options, (scale,)) in results.items():
            of = options, extent, out, scale
            # An axis that keeps its extent stays as it is, though tf_half_pixel_for_nn would shift it: so does onnxruntime.
            want = x if out == extent else np.where(inside(*of), weights(*of), FILL)
            np.testing.assert_allclose(found[name], want, atol=NEAR, err_msg=f"{extent} to {out}: {options}")


def of_an_image(mode: str, coordinate: str, extent: int, by_scales: bool) -> Any:
    """(model, image, results). Channel c of (1, 65, extent, 65 - extent) is 1 in row c, or else in column c -
    extent."""
    rows, columns = np.eye(65, extent), np.eye(65, 65 - extent, -extent)
    x = (rows[:, :, None] + columns[:, None, :]).astype(np.float32)[None]
    options = [{"mode": mode, "coordinate_transformation_mode": coordinate}]
    proto, results = resizes(x, x.shape[2:], [(out, 65 - out) for out in range(1, 65)], options, by_scales)
    return proto, x, results


@pytest.mark.slow
@pytest.mark.parametrize("by_scales", [False, True])
@pytest.mark.parametrize("coordinate", COORDINATES)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_elements_weigh_what_fractions_say_for_every_extent(mode: str, coordinate: str, by_scales: bool) -> None:
    """By the kernel itself where there is one, else in the matrices that images are multiplied by."""
    for extent in share(range(1, 33)):
        proto, x, results = of_an_image(mode, coordinate, extent, by_scales)
        graph = expand(import_onnx(proto), load_target("host"))
        for port in graph.outputs:
            outs, case, scales = results[port.name]
            axes = list(zip(x.shape[2:], outs, scales, strict=True))
            node = port.value.node
            if node.op == "select":
                rows, columns = (inside(case, *axis) for axis in axes)
                assert np.array_equal(node.inputs[0].node.data[0, 0], rows[:, None] & columns), (extent, outs)
                node = node.inputs[1].node
            if node.op == "input":
                assert outs == x.shape[2:]
                continue
            for found, axis in zip(tables_of(node, x, outs), axes, strict=True):
                np.testing.assert_allclose(found, weights(case, *axis), atol=NEAR, err_msg=f"{extent} to {outs}")


def tables_of(node: Any, x: Any, outs: Sequence[int]) -> list[Any]:
    """(extent, out) of the rows and of the columns."""
    if node.op == "resize_bilinear":
        image = np.empty((1, *outs, 65), np.float32)
        attrs = {k: v for k, v in node.attrs.items() if k[:-1] in ("scale_", "offset_", "unit_")}
        run("resize_linear", [np.ascontiguousarray(x.transpose(0, 2, 3, 1))], [image], attrs)
        extent = x.shape[2]
        rows, columns = image[0, ..., :extent], image[0, ..., extent:]
        return [rows[:, 0].T, columns[0].T]
    found: list[Any] = []
    while node.op != "input":
        if node.op == "matmul":
            found.insert(0, node.inputs[1].node.data)
        node = node.inputs[0].node
    return found

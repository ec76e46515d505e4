"""Ops that read between elements, against whole numbers: which points of a region lie outside, what points of a grid
read."""

from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.importers.onnx import import_onnx
from onnx_models import model, node
from turns import share

UNIT = 1 << 40  # numbers are multiples of its inverse here
EXTENTS = [(1, 2, 3, 28, 49), pytest.param(share(range(1, 65)), marks=pytest.mark.slow)]


def in_units(v: Any) -> Any:
    """fp32 numbers as Python's integers."""
    found = np.ravel(v).astype(np.float64) * UNIT  # a power of two: exact
    assert (found == np.rint(found)).all()
    return np.array([int(n) for n in found.tolist()], object).reshape(np.shape(v))


def regions(extent: int, parts: int, scale: float) -> Any:
    """(R, 2) begins and ends of which one of the points lies at an edge that counts, or next to it. Twice `parts`
    parts."""
    found = []
    for edge, size, k in product((-1.0, float(extent)), (0.125, 1.0, 3.0), range(parts)):
        begin = edge - (2 * k + 1) * size
        found += [(begin, begin + 2 * parts * size), (edge + (2 * k + 1) * size, edge + (2 * k + 1 - 2 * parts) * size)]
    exact = (np.array(found) / scale).astype(np.float32)
    ulp = np.spacing(np.maximum(np.abs(exact[:, 1]), np.float32(0.01)))
    near = [np.stack([exact[:, 0], exact[:, 1] + by], 1) for by in (-ulp, ulp)]
    return np.concatenate([exact, *near])


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.0625, 0.7])
@pytest.mark.parametrize("extents", EXTENTS)
def test_points_of_regions_are_outside_where_whole_numbers_say(extents: Any, scale: float, half: bool) -> None:
    """An image of ones: the mean of a bin says how many of its points are inside."""
    scale = float(np.float32(scale))
    attrs = {"spatial_scale": scale, "coordinate_transformation_mode": "half_pixel" if half else "output_half_pixel"}
    for extent, out, samples in product(extents, (1, 3, 7), (1, 2, 3)):
        parts = out * samples
        lines = regions(extent, parts, scale) + np.float32(0.5 / scale if half else 0)
        other = np.tile(np.float32([2, 2.125]), (len(lines), 1))
        rois = np.stack([lines[:, 0], other[:, 0], lines[:, 1], other[:, 1]], 1)
        x = np.ones((1, 1, 5, extent), np.float32)
        options = {**attrs, "output_height": 1, "output_width": out, "sampling_ratio": samples}
        feeds = {"x": x, "r": rois, "b": np.zeros(len(rois), np.int64)}
        found = hx.compile(import_onnx(model([node("RoiAlign", "x r b", "y", **options)], feeds, ["y"])))(
            *feeds.values()
        )

        begin, end = (in_units(lines[:, i]) * int(Fraction(scale) * 2**30) for i in (0, 1))
        one = UNIT << 30
        length = end - begin if half else np.maximum(end - begin, one)
        at = begin[:, None] * 2 * parts + length[:, None] * (2 * np.arange(parts) + 1) - (one * parts if half else 0)
        inside = (at >= -one * 2 * parts) & (at <= extent * one * 2 * parts)
        want = inside.reshape(len(lines), out, samples).mean(2)
        np.testing.assert_allclose(
            found[:, 0, 0], want.astype(np.float32), atol=1e-6, err_msg=f"{extent} {out} {samples}"
        )


def test_points_of_the_transform_read_the_nearest_as_fractions_say() -> None:
    """Halves to even: with this scale they are many."""
    for extent, out, corners in product(range(1, 13), range(1, 13), (False, True)):
        image = np.arange(1, extent + 1, dtype=np.float32)
        thetas = np.float32([[1, 0, 0], [-1, 0, 0], [0.5, 0, 0], [2, 0, 0], [1, 0, 0.25]])
        x, theta = (hx.input(n, shape) for n, shape in (("x", (5, 1, 1, extent)), ("t", (5, 2, 3))))
        options = {"output_height": 1, "output_width": out, "mode": "nearest", "align_corners": corners}
        rows = np.stack([thetas, np.tile(np.float32([0, 1, 0]), (5, 1))], 1)
        images = np.tile(image, (5, 1)).reshape(5, 1, 1, extent)
        found = hx.compile(hx.affine(x, theta, padding_mode="zeros", **options))(images, rows)
        for got, (factor, _, shift) in zip(found[:, 0, 0], thetas.tolist(), strict=True):
            want = []
            for i in range(out):
                at = Fraction(2 * i + 1 - out, max(out - 1, 1) if corners else out)
                at = at * Fraction(factor) + Fraction(shift)
                index = round((at + 1) / 2 * (extent - 1) if corners else ((at + 1) * extent - 1) / 2)
                want.append(index + 1 if 0 <= index < extent else 0)
            assert got.tolist() == want, (extent, out, corners, factor)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("extents", EXTENTS)
def test_the_grid_of_a_transform_is_what_fractions_say(extents: Any, corners: int) -> None:
    """Of theta as it is: each coordinate is at most two roundings away."""
    for extent in extents:
        theta = np.float32([[[1, 0, 0], [0, 1, 0]]])
        proto = model([node("AffineGrid", "t s", "y", align_corners=corners)], {"t": theta}, ["y"],
                      {"s": np.array([1, 1, 3, extent])}, opset=20)  # fmt: skip
        below = max(extent - 1, 1) if corners else extent
        want = [float(Fraction(2 * i + 1 - extent, below)) for i in range(extent)]
        found = hx.compile(import_onnx(proto))(theta)
        np.testing.assert_allclose(found[0, 0, :, 0], want, rtol=0, atol=2.0**-23)


def tap_weights(at: float, extent: int, cubic: bool) -> dict[int, float]:
    """By index; the caller says what lies outside."""
    found = {}
    for i in range(int(np.floor(at)) - 1, int(np.floor(at)) + 3):
        t = abs(at - i)
        if not cubic:
            found[i] = max(1 - t, 0)
        else:
            found[i] = (
                (1.25 * t - 2.25) * t * t + 1 if t <= 1 else (-0.75 * (((t - 5) * t + 8) * t - 4) if t < 2 else 0)
            )
    return found


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("extents", EXTENTS)
def test_points_of_a_grid_weigh_elements_as_fractions_say(extents: Any, mode: str, corners: int) -> None:
    """Zeros outside: what rounding of the point costs is all that may differ."""
    for extent in extents:
        points = np.concatenate([np.linspace(-1.5, 1.5, 97), (2 * np.arange(extent) + 1) / extent - 1]).astype(
            np.float32
        )
        x = np.eye(extent, dtype=np.float32).reshape(1, extent, 1, extent)
        grid = np.stack([points, np.zeros_like(points)], -1)[None, None]
        proto = model(
            [node("GridSample", "x g", "y", mode=mode, align_corners=corners)], {"x": x, "g": grid}, ["y"], opset=20
        )
        found = hx.compile(import_onnx(proto))(x, grid)[0, :, 0]
        want = np.zeros((extent, len(points)))
        for column, v in enumerate(map(Fraction, points.tolist())):
            at = float((v + 1) / 2 * (extent - 1) if corners else ((v + 1) * extent - 1) / 2)
            for i, weight in tap_weights(at, extent, mode == "cubic").items():
                if 0 <= i < extent:
                    want[i, column] = weight
        np.testing.assert_allclose(found, want, rtol=0, atol=2e-7 * (extent + 2), err_msg=str(extent))

"""Ops that read between elements, against whole numbers: which points of a region lie outside, what points of a grid read."""

from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.importers.onnx import import_onnx
from onnx_models import model, node

UNIT = 1 << 40  # numbers are multiples of its inverse here
EXTENTS = [(1, 2, 3, 28, 49), pytest.param(range(1, 65), marks=pytest.mark.slow)]


def in_units(v: Any) -> Any:
    """fp32 numbers as Python's integers."""
    found = [Fraction(n) * UNIT for n in np.ravel(v).tolist()]
    assert all(n.denominator == 1 for n in found)
    return np.array([int(n) for n in found], object).reshape(np.shape(v))


def regions(extent: int, parts: int, scale: float) -> Any:
    """(R, 2) begins and ends of which one of the points lies at an edge that counts, or next to it. Twice `parts` parts."""
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

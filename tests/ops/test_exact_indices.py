"""Ops that compute indices, against integers and fractions: windows, slices, ranges, ties, points of a grid."""

from fractions import Fraction
from itertools import product
from math import ceil
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.importers.onnx import import_onnx
from onnx_models import model, node

EXTENTS = [range(1, 10, 4), pytest.param(range(1, 21), marks=pytest.mark.slow)]


def windows(extent: int, kernel: int, stride: int, begin: int, end: int, ceil_mode: int) -> list[list[int]]:
    """The inputs that each output reads. In ceil_mode a last window reads the rest, if it begins before the end."""
    found = []
    for first in range(-begin, extent + end, stride):
        whole = first + kernel <= extent + end
        left = first - stride + kernel < extent + end
        if whole or (ceil_mode and left and first < extent):
            found.append([i for i in range(first, first + kernel) if 0 <= i < extent])
        if not whole:
            break
    return found


@pytest.mark.parametrize("extents", EXTENTS)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pools_read_the_windows_that_integers_say(op: str, extents: range) -> None:
    for extent in extents:
        x = (np.arange(extent, dtype=np.float32) * 7 % 11 + 1).reshape(1, 1, extent)
        nodes, wanted = [], {}
        for kernel, stride, begin, end, ceil_mode in product((1, 2, 3, 5), (1, 2, 3, 4), (0, 1, 2), (0, 1, 2), (0, 1)):
            found = windows(extent, kernel, stride, begin, end, ceil_mode)
            if max(begin, end) >= kernel or extent + begin + end < kernel or not all(found):
                continue
            name = f"y{len(nodes)}"
            attrs = {"kernel_shape": [kernel], "strides": [stride], "pads": [begin, end], "ceil_mode": ceil_mode}
            nodes.append(node(op, "x", name, **attrs))
            reduced = max if op == "MaxPool" else lambda v: sum(v) / len(v)
            wanted[name] = [reduced([float(x[0, 0, i]) for i in window]) for window in found], attrs
        got = hx.compile(import_onnx(model(nodes, {"x": x}, list(wanted), opset=19)))(x)
        for name, (values, attrs) in wanted.items():
            assert got[name].shape == (1, 1, len(values)), (extent, attrs)
            np.testing.assert_allclose(got[name].ravel(), values, rtol=1e-6, err_msg=f"{extent} {attrs}")


@pytest.mark.parametrize("extents", EXTENTS)
def test_slices_read_what_python_says(extents: range) -> None:
    for extent in extents:
        x, constants, nodes, wanted = np.arange(extent, dtype=np.float32), {}, [], {}
        for start, stop, step in product((-30, -3, -1, 0, 2, 30), (-30, -3, -1, 0, 2, 30), (-3, -2, -1, 1, 2, 3)):
            name = f"y{len(nodes)}"
            constants |= {f"{name}{k}": np.array([v]) for k, v in (("a", start), ("b", stop), ("c", 0), ("d", step))}
            nodes.append(node("Slice", f"x {name}a {name}b {name}c {name}d", name))
            # Backwards, ONNX moves a start before the first element to it, and a stop there to behind it.
            first, last = (max(start, -extent), None if stop < -extent else stop) if step < 0 else (start, stop)
            wanted[name] = x[slice(first, last, step)]
        got = hx.compile(import_onnx(model(nodes, {"x": x}, list(wanted), constants)))(x)
        for name, array in wanted.items():
            np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ranges_have_the_number_of_elements_that_fractions_say(dtype: Any) -> None:
    numbers = [dtype(v) for v in (0, 0.1, 0.3, 0.7, 1, 1.1, 10, -0.9, 1e-7)]
    for start, limit, delta in product(numbers, numbers, (dtype(0.1), dtype(-0.1), dtype(0.3), dtype(1 / 3), dtype(2))):
        proto = model([node("Range", "a b c", "y")], {}, ["y"], {"a": start, "b": limit, "c": delta})
        exact = (Fraction(float(limit)) - Fraction(float(start))) / Fraction(float(delta))
        value = import_onnx(proto).outputs[0].value
        assert value.shape == (max(ceil(exact), 0),), (start, limit, delta)


@pytest.mark.parametrize("extents", [(33,), pytest.param(range(1, 65), marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "int32"])
@pytest.mark.parametrize("largest", [0, 1])
def test_equal_elements_come_in_their_order(dtype: str, largest: int, extents: Any) -> None:
    """For every k."""
    for extent in extents:
        x = np.random.default_rng(5).integers(0, 4, (20, extent)).astype(dtype)
        numbers = {f"k{k}": np.array([k]) for k in range(1, extent + 1)}
        nodes = [node("TopK", f"x {k}", f"v{k} i{k}", largest=largest) for k in numbers]
        proto = model(nodes, {"x": x}, [f"i{k}" for k in numbers], numbers, opset=13)
        order = np.argsort(-x if largest else x, axis=1, kind="stable")
        got = hx.compile(import_onnx(proto))(x)
        for name, (k,) in numbers.items():
            found = got[f"i{name}"] if len(numbers) > 1 else got
            np.testing.assert_array_equal(found, order[:, :k])


@pytest.mark.parametrize("depth", [1, 2, 5, 64])
@pytest.mark.parametrize("kind", [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)] + ["float32"])
def test_indices_of_every_dtype_are_hot_where_integers_say(kind: str, depth: int) -> None:
    """The largest unsigned ones are not negative. Fractions are cut off."""
    dtype = np.dtype(kind)
    if dtype.kind == "f":
        indices = np.arange(-4 * depth, 4 * depth, dtype=dtype) / 2
    else:
        limits = np.iinfo(dtype)
        ends = [limits.min, limits.max, limits.max - 1, limits.max - depth + 1]
        some = [v for v in range(-2 * depth, 2 * depth) if limits.min <= v <= limits.max]
        indices = np.array(ends + some, dtype)
    constants = {"d": np.array(depth), "v": np.float32([0, 1])}
    proto = model([node("OneHot", "i d v", "y")], {"i": indices}, ["y"], constants)
    want = np.zeros((len(indices), depth), np.float32)
    for row, v in enumerate(indices.tolist()):
        if -depth <= int(v) < depth:
            want[row, int(v) % depth] = 1
    np.testing.assert_array_equal(hx.compile(import_onnx(proto))(indices), want)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("extents", [(3, 28), pytest.param(range(1, 65), marks=pytest.mark.slow)])
def test_points_of_a_grid_read_the_nearest_as_fractions_say(extents: Any, corners: int) -> None:
    """Halves to even, of fp32 coordinates as they are."""
    for extent in extents:
        points = np.linspace(-1, 1, 257, dtype=np.float32)
        near = (
            (2 * np.arange(extent + 1) + 1 - extent) / max(extent - 1, 1)
            if corners
            else 2 * np.arange(extent + 1) / extent - 1
        )
        points = np.concatenate([points, near.astype(np.float32)])
        grid = np.stack([points, np.zeros_like(points)], -1)[None, None]
        x = np.arange(1, extent + 1, dtype=np.float32).reshape(1, 1, 1, extent)
        attrs = {"mode": "nearest", "padding_mode": "zeros", "align_corners": corners}
        got = hx.compile(import_onnx(model([node("GridSample", "x g", "y", **attrs)], {"x": x, "g": grid}, ["y"])))(
            x, grid
        )
        wanted = []
        for v in map(Fraction, points.tolist()):
            at = round((v + 1) / 2 * (extent - 1) if corners else ((v + 1) * extent - 1) / 2)
            wanted.append(at + 1 if 0 <= at < extent else 0)
        np.testing.assert_array_equal(got.ravel(), wanted, err_msg=str(extent))


def test_a_constant_of_no_axes_is_padded_by_nothing() -> None:
    y = hx.pad(hx.const(np.float32(2)), begin=(), end=()) + hx.input("x", (2,))
    np.testing.assert_array_equal(hx.compile(y)(np.float32([1, 3])), np.float32([3, 5]))

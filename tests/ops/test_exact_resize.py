"""Resize against fractions: which element each output reads, for every coordinate mode and rounding.

The slow sweep takes every pair of extents up to 64, as sizes and as the fp32 scales between them.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import pytest
from onnx import helper

import hexane as hx
from exact_lines import COORDINATES, coordinates, resizes, scale_of
from hexane.importers.onnx import import_onnx
from hexane.ops import OPS
from hexane.ops.lines import nearest, whole
from hexane.passes.legalize.expand import expand
from hexane.targets import load_target
from kernels import run
from onnx_models import model
from turns import share

# Of n / d in whole numbers.
ROUNDINGS: dict[str, Callable[[Any, int], Any]] = {
    "floor": lambda n, d: n // d,
    "ceil": lambda n, d: -(-n // d),
    "round_prefer_floor": lambda n, d: -((d - 2 * n) // (2 * d)),
    "round_prefer_ceil": lambda n, d: (2 * n + d) // (2 * d),
}
SOME = (1, 2, 3, 4, 7, 10, 28, 49, 55, 58, 61, 62, 63, 64)


def indices(mode: str, rounding: str, extent: int, out: int, scale: Fraction) -> Any:
    """-1 where a region ends before."""
    at, below = coordinates(mode, extent, out, scale)
    found = np.clip(ROUNDINGS[rounding](at, below), 0, extent - 1)
    outside = (at < 0) | (at > (extent - 1) * below)
    return np.where(outside, -1, found) if mode == "tf_crop_and_resize" else found


def models(mode: str, extent: int, outs: Sequence[tuple[int, int]], by_scales: bool) -> Any:
    """(model, image (1, 1, extent, 65 - extent), results): resized to each of outs by each rounding."""
    x = np.arange(1, extent * (65 - extent) + 1, dtype=np.float32).reshape(1, 1, extent, 65 - extent)
    options = [{"mode": "nearest", "nearest_mode": r, "coordinate_transformation_mode": mode} for r in ROUNDINGS]
    proto, results = resizes(x, (extent, 65 - extent), outs, options, by_scales)
    return proto, x, results


def wanted(mode: str, x: Any, outs: Sequence[int], rounding: str, scales: Sequence[Fraction]) -> Any:
    pairs = zip(x.shape[2:], outs, scales, strict=True)
    rows, columns = (indices(mode, rounding, *pair) for pair in pairs)
    return np.where((rows < 0)[:, None] | (columns < 0), 0, x[0, 0][rows][:, columns])


@pytest.mark.parametrize("by_scales", [False, True])
@pytest.mark.parametrize("mode", COORDINATES)
def test_nearest_reads_what_fractions_say(mode: str, by_scales: bool) -> None:
    for extent in (28, 49):
        one_kept = [(extent, 10), (10, 65 - extent)]
        proto, x, results = models(mode, extent, [*((out, 65 - out) for out in SOME), *one_kept], by_scales)
        found = hx.compile(import_onnx(proto))(x)
        for name, (outs, case, scales) in results.items():
            want = wanted(mode, x, outs, case["nearest_mode"], scales)
            assert np.array_equal(found[name][0, 0], want), (extent, outs, case)


@pytest.mark.slow
@pytest.mark.parametrize("by_scales", [False, True])
@pytest.mark.parametrize("mode", COORDINATES)
def test_nearest_reads_what_fractions_say_for_every_extent(mode: str, by_scales: bool) -> None:
    """By the kernel itself, and by the indices of a gather. Extents above 32 are those of the other axis."""
    for extent in share(range(1, 33)):
        proto, x, results = models(mode, extent, [(out, 65 - out) for out in range(1, 65)], by_scales)
        graph = expand(import_onnx(proto), load_target("host"))
        for port in graph.outputs:
            outs, case, scales = results[port.name]
            want = wanted(mode, x, outs, case["nearest_mode"], scales)
            node, inside = port.value.node, np.ones((1, 1), np.bool_)
            if node.op == "select":
                inside, node = node.inputs[0].node.data[0, 0], node.inputs[1].node
            images = [x[0, 0]] if node.op == "input" else by_kernel_and_gather(node.attrs, x, outs)
            for image in images:
                assert np.array_equal(np.where(inside, image, 0), want), (extent, outs, case)


def by_kernel_and_gather(attrs: Any, x: Any, outs: Sequence[int]) -> list[Any]:
    """Both ways in which resize_nearest_neighbor can run."""
    image = np.empty((1, *outs, 1), np.float32)
    packed = OPS["resize_nearest_neighbor"].kernel_attrs(None, attrs)
    run("resize_nearest", [x.reshape(1, *x.shape[2:], 1)], [image], packed)
    lines = [whole(*(attrs[f"{name}_{axis}"] for name in ("scale", "offset", "unit"))) for axis in "hw"]
    rows, columns = (nearest(*of, attrs["mode"]) for of in zip(lines, outs, x.shape[2:], strict=True))
    return [image[0, ..., 0], x[0, 0][rows][:, columns]]


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


@pytest.mark.parametrize("opset", [7, 9])
@pytest.mark.parametrize("extents", [(1, 7, 28, 49), pytest.param(share(range(1, 65)), marks=pytest.mark.slow)])
def test_upsample_reads_what_its_scale_says(extents: Sequence[int], opset: int) -> None:
    for extent in extents:
        x = np.arange(extent, dtype=np.float32).reshape(1, 1, 1, extent)
        scales = {f"s{out}": (out, scale_of(extent, out)) for out in range(extent + 1, 65)}
        wanted, nodes, constants = {}, [], {}
        for name, (out, scale) in scales.items():
            if scale is None:
                continue  # refused: peers do not agree on the extent
            given = np.float32([1, 1, 1, scale])
            constants |= {name: given} if opset == 9 else {}
            attrs = {} if opset == 9 else {"scales": given.tolist()}
            nodes.append(
                helper.make_node("Upsample", ["x", name] if opset == 9 else ["x"], [f"y{out}"], mode="nearest", **attrs)
            )
            wanted[f"y{out}"] = [min(floor(i / Fraction(scale)), extent - 1) for i in range(out)]
        if nodes:
            found = hx.compile(import_onnx(model(nodes, {"x": x}, list(wanted), constants, opset=opset)))(x)
            for name, want in wanted.items():
                got = found[name] if len(wanted) > 1 else found
                assert got.ravel().tolist() == want, (extent, name)

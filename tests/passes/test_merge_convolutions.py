"""Sums of convolutions over one tensor become one convolution: random geometries, and networks with such blocks."""

from typing import Any

import numpy as np
import pytest

import hexane as hx
from compare import assert_close
from hexane.lowering.kept_constants import KeptConstants, constants_kept
from hexane.ops.reference import run_reference
from hexane.passes.simplify import merge_convolutions as merge_module
from hexane.passes.simplify.merge_convolutions import merge_convolutions
from hexane.targets import load_target

HOST = load_target("host")


def given_to(graph: hx.Graph) -> dict[str, np.ndarray]:
    (port,) = graph.inputs
    return {"x": np.random.default_rng(5).standard_normal(port.shape).astype(np.float32)}


def random_sum(seed: int) -> hx.Graph:
    """Two to five terms over one image, some with other geometries."""
    rng = np.random.default_rng(seed)

    def any_of(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    axes, groups, per_group = int(any_of(1, 2)), int(any_of(1, 1, 2, 4)), int(any_of(1, 2))
    channels = groups * per_group
    layout, stride, dilation = any_of("nchw", "nhwc"), int(any_of(1, 1, 2)), int(any_of(1, 1, 2))
    extents = tuple(int(n) for n in rng.integers(9, 12, axes))
    shape = (2, channels, *extents) if layout == "nchw" else (2, *extents, channels)
    x = hx.input("x", shape)

    def numbers(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 10.0 ** rng.uniform(-2, 2)).astype(np.float32)

    def conv() -> hx.Tensor:
        sizes = [int(any_of(1, 2, 3, 5)) for _ in range(axes)]
        # All results have the extents of the image over the stride, where the pads of the kernel allow it.
        pads = []
        for k in sizes:
            room = dilation * (k - 1)
            begin = int(any_of(room // 2, room // 2, rng.integers(0, room + 1)))
            pads += [begin, room - begin]
        if axes == 1 and len(pads) == 2 and pads[0] == pads[1]:
            pads = pads[:1]
        bias = numbers(channels) if any_of(True, False) else None
        attrs: dict[str, Any] = {"strides": stride, "dilations": dilation, "pad": tuple(pads), "groups": groups}
        return hx.conv(x, numbers(channels, per_group, *sizes), bias, layout=layout, **attrs)

    def norm() -> hx.Tensor:
        variance = rng.uniform(0.1, 1e5, channels).astype(np.float32)
        axis = 1 if layout == "nchw" else axes + 1
        return hx.batch_norm(x, numbers(channels), variance, numbers(channels), numbers(channels), axis=axis)

    def number() -> hx.Tensor:
        if any_of(True, False):
            return hx.const(numbers())
        return hx.const(numbers(*((channels, *[1] * axes) if layout == "nchw" else (channels,))))

    terms = [conv()]
    makers = [conv, conv, number, *([norm, lambda: x] if stride == 1 else [])]
    for _ in range(int(rng.integers(1, 5))):
        terms.append(any_of(*makers)())
    order = rng.permutation(len(terms))
    y = terms[order[0]]
    for i in order[1:]:
        y = y + terms[i] if any_of(True, False) else terms[i] + y
    return hx.graph({"y": hx.relu(y)})


@pytest.mark.parametrize("seed", range(200))
def test_random_sums_keep_their_values(seed: int) -> None:
    before = random_sum(seed)
    after = merge_convolutions(before, HOST)
    given = given_to(before)
    want, got = run_reference(before, given), run_reference(after, given)
    size = float(np.abs(want["y"]).max()) or 1.0
    assert_close(got["y"] / size, want["y"] / size)


def test_most_random_sums_get_fewer_convolutions() -> None:
    counts = [
        [sum(n.op == "conv" for n in g.nodes) for g in (graph, merge_convolutions(graph, HOST))]
        for graph in map(random_sum, range(200))
    ]
    assert sum(after < before for before, after in counts) >= 60


def rep_vgg(rng: np.random.Generator, blocks: int, channels: int = 8) -> hx.Graph:
    """Blocks of RepVGG as they are trained: 3x3, 1x1 and the input, each with a batch norm."""

    def numbers(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype(np.float32)

    def normed(x: hx.Tensor) -> hx.Tensor:
        mean, variance = rng.uniform(-1, 1, channels), rng.uniform(0.5, 2, channels)
        gamma, beta = rng.uniform(0.3, 0.6, channels), rng.uniform(-0.5, 0.5, channels)
        return hx.batch_norm(x, *[a.astype(np.float32) for a in (mean, variance, gamma, beta)], axis=1)

    x = hx.input("x", (1, channels, 12, 12))
    for _ in range(blocks):
        large = normed(hx.conv(x, numbers(channels, channels, 3, 3), pad=1))
        x = hx.relu(large + normed(hx.conv(x, numbers(channels, channels, 1, 1))) + normed(x))
    return hx.graph({"y": x})


def test_a_network_of_rep_vgg_has_one_convolution_a_block() -> None:
    graph = rep_vgg(np.random.default_rng(0), 4)
    net = hx.compile(graph, target="host")
    assert str(net.program).count("= conv(") == 4
    assert "batch_norm" not in str(net.program)
    given = given_to(graph)
    assert_close(net(**given), run_reference(graph, given)["y"])


@pytest.mark.parametrize("chip", ["M1", "M5"])
def test_on_chips_too(chip: str) -> None:
    graph = rep_vgg(np.random.default_rng(1), 3)
    assert len(list(hx.explain(graph, target=chip).rows())) == 3
    given = given_to(graph)
    want = run_reference(graph, given)["y"]
    got = hx.compile(graph, target=chip)(**given)
    assert np.linalg.norm(got - want) <= 3e-3 * np.linalg.norm(want)


def test_constants_are_computed_once_for_all_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    sums: list[object] = []

    def counted(*given: Any) -> Any:
        sums.append(given)
        return added(*given)

    added = merge_module._added
    monkeypatch.setattr(merge_module, "_added", counted)
    rng = np.random.default_rng(2)
    weights = [rng.standard_normal((4, 4, k, k)).astype(np.float32) for k in (3, 1, 3, 1, 3, 1)]
    scale, shift, mean = rng.standard_normal((3, 4)).astype(np.float32)

    def graph(width: int) -> hx.Graph:
        x = hx.input("x", (1, 4, 8, width))
        y = hx.conv(x, constants[0], pad=1)
        for weight in constants[1:]:
            y = y + hx.conv(x, weight, pad=weight.shape[2] // 2)
        return hx.graph({"y": y + hx.batch_norm(x, *norm, axis=1) + constant})

    constants = [hx.const(weight) for weight in weights]
    norm = [hx.const(array) for array in (mean, mean * mean + 1, scale, shift)]
    constant = hx.const(np.float32(3))
    counts = []
    with constants_kept(KeptConstants()):
        for width in (8, 9, 8, 21):
            before = graph(width)
            after = merge_convolutions(before, HOST)
            assert sum(n.op == "conv" for n in after.nodes) == 1
            given = given_to(before)
            assert_close(run_reference(after, given)["y"], run_reference(before, given)["y"])
            counts.append(len(sums))
    assert counts == [7] * 4


@pytest.mark.parametrize("change", ["place", "epsilon", "weight"])
def test_constants_of_other_sums_are_not_taken(change: str) -> None:
    rng = np.random.default_rng(3)
    large, small, other = (hx.const(rng.standard_normal((4, 4, k, k)).astype(np.float32)) for k in (3, 2, 2))
    norm = [hx.const(rng.uniform(0.1, 1, 4).astype(np.float32)) for _ in range(4)]

    def graph(changed: bool) -> hx.Graph:
        x = hx.input("x", (1, 4, 8, 8))
        weight = other if changed and change == "weight" else small
        pad = (0, 1, 0, 1) if changed and change == "place" else (1, 0, 1, 0)
        epsilon = 0.5 if changed and change == "epsilon" else 1e-5
        y = hx.conv(x, large, pad=1) + hx.batch_norm(x, *norm, axis=1, epsilon=epsilon)
        return hx.graph({"y": y + hx.conv(x, weight, pad=pad)})

    with constants_kept(KeptConstants()):
        for changed in (False, True):
            before = graph(changed)
            after = merge_convolutions(before, HOST)
            assert sum(n.op == "conv" for n in after.nodes) == 1
            given = given_to(before)
            assert_close(run_reference(after, given)["y"], run_reference(before, given)["y"])


@pytest.mark.parametrize("groups", [1, 16])
def test_bf16_keeps_the_precision_of_batch_norms(groups: int) -> None:
    """The image differs from the mean by a few units of bf16's precision. The convolutions hardly count."""
    rng = np.random.default_rng(4)
    x = hx.input("x", (1, 16, 8, 8))
    weights = [1e-4 * rng.standard_normal((16, 16 // groups, k, k)).astype(np.float32) for k in (3, 1)]
    mean, one = np.full(16, 1000, np.float32), np.ones(16, np.float32)
    y = hx.batch_norm(x, mean, one, one, axis=1)
    for weight in weights:
        y = hx.conv(x, weight, pad=weight.shape[2] // 2, groups=groups) + y
    graph = hx.graph({"y": y})
    given = {"x": (1000 + rng.standard_normal(x.shape)).astype(np.float32)}
    want = run_reference(graph, given)["y"]
    got = hx.compile(graph, target="host", dtype="bf16")(**given)
    assert np.abs(got - want).max() <= 0.02


@pytest.mark.parametrize(("mean", "merged"), [(3.0, 1), (1000.0, 0)])
def test_in_fp16_a_norm_with_a_far_mean_stays_apart(mean: float, merged: int) -> None:
    """Its product and its bias would nearly cancel."""
    rng = np.random.default_rng(3)
    x = hx.input("x", (1, 4, 6, 6))
    ones = np.ones(4, np.float32)
    normed = hx.batch_norm(x, mean * ones, ones, ones, ones)
    y = normed + hx.conv(x, (1e-3 * rng.standard_normal((4, 4, 3, 3))).astype(np.float32), pad=1)
    graph = hx.graph({"y": y})
    net = hx.compile(graph, target="M1")
    image = np.float16(mean + rng.standard_normal((1, 4, 6, 6))).astype(np.float32)
    want = run_reference(graph, {"x": image})["y"]
    assert np.abs(net(image) - want).max() <= 0.02 * max(np.abs(want).max(), 1)
    assert sum(row.op == "batch_norm" for row in merge_convolutions(graph, load_target("M1")).nodes) == 1 - merged

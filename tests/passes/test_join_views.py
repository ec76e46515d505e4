"""Windows of an image, tensors of six axes between reshapes, stay on the engine of chips that take five."""

from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.ops.reference import run_reference
from hexane.passes.retarget.view_chains import folded
from hexane.passes.retarget.views import join_views
from hexane.pipeline import divide
from hexane.targets.query import load_chip

WINDOW = (1, 8, 7, 8, 7, 6)


def windows(x: Any) -> Any:
    """(1, 56, 56, 6) as 64 windows of 49 pixels, and back."""
    parts = hx.transpose(hx.reshape(x, shape=WINDOW), perm=(0, 1, 3, 2, 4, 5))
    y = hx.relu(hx.reshape(parts, shape=(64, 49, 6)))
    back = hx.transpose(hx.reshape(y, shape=(1, 8, 8, 7, 7, 6)), perm=(0, 1, 3, 2, 4, 5))
    return hx.reshape(back, shape=(1, 56, 56, 6))


@pytest.mark.parametrize("chip", ["h13", "h15", "h17s"])
def test_windows_are_one_segment_and_compute_the_same(chip: str) -> None:
    """They were five, of which the host had three."""
    graph = hx.graph(hx.relu(windows(hx.input("x", (1, 56, 56, 6)))))
    _, segments = divide(graph, load_chip(chip))
    assert [s.device for s in segments] == ["ane"]
    assert hx.preflight(graph, chip).ok
    feed = np.random.default_rng(0).standard_normal((1, 56, 56, 6)).astype(np.float16).astype(np.float32)
    got = hx.compile(graph, target=chip, threads=1)(feed)
    np.testing.assert_array_equal(got, run_reference(graph, {"x": feed})["relu"].astype(np.float16))


def rounded(x: hx.Tensor) -> hx.Tensor:
    """Through int8 and back, as models with QDQ have it around every op."""
    return hx.dequantize(hx.quantize(x, np.float32(0.125), np.int8(3), dtype="int8"), np.float32(0.125), np.int8(3))


def quantised_windows(x: hx.Tensor) -> hx.Tensor:
    parts = rounded(hx.reshape(rounded(x), shape=WINDOW))
    return hx.reshape(rounded(hx.transpose(parts, perm=(0, 1, 3, 2, 4, 5))), shape=(64, 49, 6))


@pytest.mark.parametrize("chip", ["h13", "h15", "h17s"])
def test_windows_between_roundings_are_one_segment_and_compute_the_same(chip: str) -> None:
    graph = hx.graph({"y": hx.relu(quantised_windows(hx.input("x", (1, 56, 56, 6))))})
    assert [s.device for s in divide(graph, load_chip(chip))[1]] == ["ane"]
    assert hx.preflight(graph, chip).ok
    feed = np.random.default_rng(2).standard_normal((1, 56, 56, 6)).astype(np.float16).astype(np.float32)
    got = hx.compile(graph, target=chip, threads=1)(feed)
    np.testing.assert_array_equal(got, run_reference(graph, {"x": feed})["y"].astype(np.float16))


def test_a_rounding_with_a_scale_for_each_index_is_left() -> None:
    """On the axes in front of the view there is no axis of these scales."""
    x = hx.reshape(hx.input("x", (1, 8, 8, 6)), shape=(1, 2, 4, 2, 4, 6))
    scales = np.float32([0.5, 0.25])
    graph = hx.graph({"y": hx.dequantize(hx.quantize(x, scales, axis=1, dtype="int8"), scales, axis=1)})
    joined = join_views(graph, load_chip("h13"))
    assert [n.types[0].rank for n in joined.nodes if n.op == "quantize"] == [6]
    feed = np.random.default_rng(3).standard_normal((1, 8, 8, 6)).astype(np.float32)
    np.testing.assert_array_equal(*(run_reference(g, {"x": feed})["y"] for g in (graph, joined)))


def test_what_computes_on_six_axes_is_left() -> None:
    x = hx.reshape(hx.input("x", (1, 56, 56, 6)), shape=WINDOW)
    graph = hx.graph(hx.softmax(hx.transpose(x, perm=(0, 1, 3, 2, 4, 5)), axis=4))
    joined = join_views(graph, load_chip("h13"))
    assert any(t.rank == 6 for node in joined.nodes for t in node.types)
    feed = np.random.default_rng(1).standard_normal((1, 56, 56, 6)).astype(np.float32)
    np.testing.assert_array_equal(*(next(iter(run_reference(g, {"x": feed}).values())) for g in (graph, joined)))


def test_a_graph_of_few_axes_is_itself() -> None:
    graph = hx.graph(hx.transpose(hx.input("x", (1, 2, 3, 4)), perm=(0, 2, 1, 3)))
    assert join_views(graph, load_chip("h13")) is graph


@pytest.mark.parametrize("seed", range(40))
def test_a_transpose_on_fewer_axes_moves_the_same_elements(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 4, 6))
    perm = tuple(int(i) for i in rng.permutation(6))
    x = np.arange(np.prod(shape)).reshape(shape)
    found = folded(shape, perm)
    if found is not None:
        few, order = found
        np.testing.assert_array_equal(x.reshape(few).transpose(order).ravel(), x.transpose(perm).ravel())
        assert len(few) < 6


def test_a_reshape_that_stays_keeps_its_verdict() -> None:
    """Chips before family A13 have a reshape as a flatten alone, next to windows as anywhere."""
    x = hx.input("x", (1, 56, 56, 6))
    graph = hx.graph([windows(x), hx.relu(hx.reshape(hx.relu(x), shape=(8, 49, 48)))])
    entries = [e for e in hx.preflight(graph, "h12").entries if e.node.types[0].shape == (8, 49, 48)]
    assert entries[0].verdict.reject == "cannot be lowered as Flatten on ANE"
    assert not entries[0].verdict.form


@pytest.mark.parametrize("chip", ["h13", "h16g"])
def test_windows_through_one_long_row_stay_on_the_engine(chip: str) -> None:
    """A grid partition of 8 x 8 tokens, as coremltools writes a transpose of six axes (MaxViT)."""
    x, w = hx.input("x", (1, 56, 56, 64)), np.eye(64, dtype=np.float32)
    y = hx.relu(x)
    chain = ((1, 1, 1, 200704), (1, 7, 8, 3584), (8, 49, 8, 64), (64, 1, 7, 448), (448, 1, 7, 64), (3136, 1, 64, 1))
    for shape in chain:
        y = hx.transpose(hx.reshape(y, shape=shape), perm=(0, 2, 1, 3))
    graph = hx.graph(hx.matmul(hx.reshape(y, shape=(64, 7, 7, 64)), w))
    assert not hx.preflight(graph, chip).host
    feed = np.random.default_rng(0).integers(-9, 9, (1, 56, 56, 64)).astype(np.float32)
    want = np.maximum(feed, 0).reshape(7, 8, 7, 8, 64).transpose(1, 3, 0, 2, 4).reshape(64, 7, 7, 64)
    assert np.array_equal(np.asarray(hx.compile(graph, target=chip, threads=1)(feed)), want)

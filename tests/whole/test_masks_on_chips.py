"""Transformers whose masks are far below fp16 stay in one segment of the engine and give what the host gives, rows
whose keys are all hidden too."""

import functools

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Graph
from hexane.lowering.masks import HIDDEN
from hexane.passes.retarget.clamp_masks import clamp_masks
from hexane.pipeline import divide
from hexane.targets.query import load_chip
from hexane.validate.wide_values import wide_readers
from masked import LEAST, MASKED, PADDINGS, TOKENS, WIDTH

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "error::RuntimeWarning")
X = np.random.default_rng(0).standard_normal((1, TOKENS, WIDTH)).astype(np.float32)
OFF = {"ieee": 0.01, "engine": 0.03}  # of numbers near 1: roundings to fp16, and the engine's tables


@functools.cache
def on_the_host(name: str) -> hx.Model:
    return hx.compile(MASKED[name]())


@pytest.mark.parametrize("chip", ["h13", "h15", "h17s"])
@pytest.mark.parametrize("name", MASKED)
def test_a_masked_transformer_is_one_segment_behind_its_casts(name: str, chip: str) -> None:
    segments = divide(MASKED[name](), load_chip(chip))[1]
    assert [s.device for s in segments] == ["host", "ane"]  # the host makes floats of integers
    host = {node.op for node in segments[0].nodes}
    assert host <= {"cast", "reshape", "equal", "select", "sub", "mul", "not"}


def close(name: str, chip: str, numerics: str, padding: str) -> None:
    model = hx.compile(MASKED[name](), target=chip, numerics=numerics)
    counts = PADDINGS[padding]
    result = np.asarray(model(x=X, counts=counts))
    assert np.isfinite(result).all()
    np.testing.assert_allclose(result, np.asarray(on_the_host(name)(x=X, counts=counts)), atol=OFF[numerics], rtol=0)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("name", MASKED)
def test_hidden_rows_are_as_on_the_host(name: str, padding: str) -> None:
    close(name, "h13", "ieee", padding)


@pytest.mark.slow
@pytest.mark.parametrize("numerics", OFF)
@pytest.mark.parametrize("chip", ["h12", "h13", "h15", "h17s"])
@pytest.mark.parametrize("name", MASKED)
def test_hidden_rows_are_as_on_the_host_on_every_chip(name: str, chip: str, numerics: str) -> None:
    for padding in PADDINGS:
        close(name, chip, numerics, padding)


def masked(with_cast: bool) -> Graph:
    scores, hidden = hx.input("scores", (2, 8)), hx.input("hidden", (2, 8), "bool")
    outputs = {"y": hx.softmax(hx.select(hidden, np.float32(LEAST), scores))}
    if with_cast:
        outputs["other"] = hx.cast(hx.input("n", (3,), "int32"), dtype="fp32")
    return hx.graph(outputs)


@pytest.mark.parametrize("with_cast", [False, True])
def test_an_unrelated_cast_does_not_change_a_verdict(with_cast: bool) -> None:
    graph = masked(with_cast)
    assert not wide_readers(graph.nodes, lambda node: node.op != "cast")
    inputs = {"scores": np.zeros((2, 8), np.float32), "hidden": np.array([[True] * 8, [False] * 8])}
    net = hx.compile(graph, target="h13", numerics="ieee")
    y = net(**inputs, **({"n": np.zeros(3, np.int32)} if with_cast else {}))
    np.testing.assert_array_equal(np.asarray(y["y"] if with_cast else y), np.full((2, 8), 0.125, np.float32))


def test_a_constant_that_is_clamped_is_not_wide() -> None:
    x = hx.cast(hx.input("n", (2, 8), "uint8"), dtype="fp32")
    graph = hx.graph(hx.select(x > 3.0, x, np.float32(LEAST)))
    assert not wide_readers(graph.nodes, lambda node: True)


def test_a_truth_that_was_an_integer_is_not_wide() -> None:
    """As converters of transformers write a mask: truths pass through int8, since Core ML gathers no bool."""
    shown = hx.cast(hx.gather(hx.cast(hx.input("m", (1, 8), "bool"), dtype="int8"), np.arange(8), axis=1), dtype="bool")
    scores = hx.input("scores", (2, 8)) + (1 - hx.cast(shown, dtype="fp32")) * np.float32(-30000)
    graph = hx.graph(hx.softmax(scores))
    assert not wide_readers(graph.nodes, lambda node: True)
    net, mask = hx.compile(graph, target="M4"), np.arange(8)[None] < 5
    y = np.asarray(net(m=mask, scores=np.full((2, 8), 20, np.float32)))
    np.testing.assert_allclose(y, np.repeat(mask / 5, 2, 0), atol=2e-3)


def test_a_wide_product_is_the_hosts() -> None:
    x = hx.cast(hx.input("n", (2, 8), "uint8"), dtype="fp32")
    graph = hx.graph(hx.relu(x * np.float32(300)))
    assert {n.op for n in graph.nodes if id(n) in wide_readers(graph.nodes, lambda node: True)} == {"mul", "relu"}
    net, n = hx.compile(graph, target="h13"), np.full((2, 8), 255, np.uint8)
    np.testing.assert_array_equal(np.asarray(net(n=n)), np.full((2, 8), 76500, np.float32))


def test_masks_are_clamped_where_they_reach_a_softmax_alone() -> None:
    x, hidden = hx.input("x", (2, 8)), hx.input("hidden", (2, 8), "bool")
    least = np.float32(LEAST)
    graph = clamp_masks(hx.graph({"y": hx.softmax(hx.select(hidden, least, x)), "z": hx.maximum(x, least)}))
    numbers = {
        n.op: [float(v.node.data) for v in n.inputs if v is not None and v.node.data is not None] for n in graph.nodes
    }
    assert numbers["select"] == [-HIDDEN]
    assert numbers["maximum"] == [LEAST]


def test_infinities_of_a_mask_stay() -> None:
    mask = np.where(np.eye(8, dtype=bool), 0, -np.inf).astype(np.float32)
    graph = hx.graph(hx.softmax(hx.input("x", (8, 8)) + mask))
    assert clamp_masks(graph) is graph or clamp_masks(graph).nodes == graph.nodes


def test_a_score_is_clipped_where_one_mask_is_added_alone() -> None:
    x, counts = hx.input("x", (8, 8)), hx.cast(hx.input("n", (8,), "int32"), dtype="fp32")
    mask = (1.0 - counts) * LEAST
    causal = np.where(np.tri(8, dtype=bool), 0, LEAST).astype(np.float32)
    once = clamp_masks(hx.graph(hx.softmax(x + mask)))
    twice = clamp_masks(hx.graph(hx.softmax(x + mask + causal)))  # -infinity on the host, too
    assert [sum(n.op == "clip" for n in g.nodes) for g in (once, twice)] == [1, 0]


def attention(hidden: float, written_out: bool) -> Graph:
    query, key, value = (hx.input(name, (1, 2, 5, 8)) for name in ("query", "key", "value"))
    shown = hx.input("shown", (1, 1, 5, 5), "bool")
    if not written_out:
        return hx.graph(hx.scaled_dot_product_attention(query, key, value, shown, hidden=hidden))
    scores = hx.matmul(query, key, transpose_y=True) * 8**-0.5
    return hx.graph(hx.softmax(hx.select(shown, scores, np.float32(hidden))) @ value)


@pytest.mark.parametrize("written_out", [False, True], ids=["an op", "written out"])
@pytest.mark.parametrize("hidden", [-1e5, LEAST])
@pytest.mark.parametrize("numerics", OFF)
@pytest.mark.parametrize("chip", ["h11", "h13", "h17s"])
def test_attention_that_hides_a_whole_row_is_finite(chip: str, numerics: str, hidden: float, written_out: bool) -> None:
    graph, rng = attention(hidden, written_out), np.random.default_rng(4)
    inputs = {name: rng.standard_normal((1, 2, 5, 8)).astype(np.float32) for name in ("query", "key", "value")}
    shown = np.ones((1, 1, 5, 5), np.bool_)
    shown[..., 2, :] = shown[..., 4] = False
    want = np.asarray(hx.compile(graph)(**inputs, shown=shown))
    got = np.asarray(hx.compile(graph, target=chip, numerics=numerics)(**inputs, shown=shown))
    np.testing.assert_allclose(got, want, atol=OFF[numerics], rtol=0)

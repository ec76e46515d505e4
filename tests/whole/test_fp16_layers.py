"""fp16 programs step by step: each, fed the program's own values, is within 1 ulp of fp64 rounded once (or, where the
terms of a product cancel, within what fp32 accumulators hold).

`pytest tests/whole/test_fp16_layers.py --seed N` runs the graphs of one seed again.
"""

from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from compare import assert_close, assert_within_ulps
from hexane.graph import Array, Graph
from hexane.ops import OPS, apply, evaluate
from hexane.program import Step
from random_graphs import random_graph
from traced import expected, traced
from turns import share

ACCUMULATOR = 2.0**-22  # of its terms: where they cancel, what fp32 leaves can be more than an ulp of fp16


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    only = metafunc.config.getoption("--seed")
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(100) if only is None else [only])
    elif "first" in metafunc.fixturenames:
        metafunc.parametrize("first", range(1000, 6000, 250) if only is None else [])


def without_cancelled(step: Step, inputs: list[Array | None], got: Array, want: Array) -> Array:
    """`got`, with what is wanted where it is a product, a weighted sum, a scale and shift or a distance from a mean,
    whose terms cancel down to what an fp32 accumulator is off by."""
    node = step.node
    if step.kernel in ("conv", "conv_transpose", "matmul"):
        bare = apply(OPS[node.op], node.inputs[:3], {**node.attrs, "epilogue": ()})[0].node
        terms = evaluate(bare, [None if x is None else np.abs(x) for x in inputs[:3]])[0].astype(np.float64)
    elif step.kernel == "scaled_dot_product_attention":
        query, key, value, mask = inputs
        terms = evaluate(node, [query, key, np.abs(value), mask])[0].astype(np.float64)  # type: ignore[arg-type]
        scores = np.abs(query).astype(float) @ np.abs(key).astype(float).swapaxes(-1, -2)  # type: ignore[arg-type, union-attr]
        terms *= 1 + abs(node.attrs["scale"]) * scores.max(initial=0)  # an error in a score is one of its weight
    elif step.kernel == "batch_norm":
        x, mean, variance, *affine = inputs
        signless = [np.abs(x), -np.abs(mean), variance, *[None if v is None else np.abs(v) for v in affine]]  # type: ignore[arg-type]
        terms = evaluate(node, signless)[0].astype(np.float64)
    elif step.kernel in ("layer_norm", "instance_norm"):
        x = np.asarray(inputs[0], np.float64)
        terms = np.abs(x).max(initial=0) * np.ptp(want.astype(np.float64)) / max(np.ptp(x), 1e-30) if x.size else x
    else:
        return got
    with np.errstate(invalid="ignore"):
        off = np.abs(got.astype(np.float64) - want)
    return np.where(off <= ACCUMULATOR * terms, want, got)


def check(graph: Graph, feeds: dict[str, Array], dtype: str = "") -> None:
    net = hx.compile(graph, dtype=dtype, threads=1)
    for i, (step, inputs, outputs) in enumerate(traced(net, feeds)):
        print(i, step.kernel, step.node.where, step.node.attrs)
        pairs = list(zip(outputs, expected(step, inputs), strict=True))
        if step.kernel == "recurrent" and not step.node.attrs["sequence"]:
            del pairs[0]  # the states of all steps, which nobody reads: it stays as it was
        for got, want in pairs:
            if want.dtype == np.float32:  # a part of a layer
                assert_close(got, want)
            else:
                assert_within_ulps(without_cancelled(step, inputs, got, want), want, 1)


def check_seed(kind: str, seed: int) -> None:
    graph, feeds = random_graph(seed, kind)
    print(f"{kind}, --seed {seed}\n{graph}")
    check(graph, feeds, "fp16")


@pytest.mark.parametrize("kind", ["fp16", "fp32"])
def test_each_step_of_a_random_graph_is_rounded_once(kind: str, seed: int) -> None:
    check_seed(kind, seed)


@pytest.mark.slow
def test_each_step_of_five_thousand_random_graphs_is_rounded_once(first: int) -> None:
    for seed in share(range(first, first + 250)):
        check_seed(("fp16", "fp32")[seed % 2], seed)


def scores(mask: float) -> hx.Tensor:
    keep = hx.cast(hx.input("keep", (3,), "bool"), dtype="fp32")
    return hx.softmax(hx.input("x", (3,)) + (1.0 - keep) * mask)


@pytest.mark.parametrize("mask", [-3.4e38, -1e9, -65519.0, -10000.0])
def test_a_mask_that_fp16_does_not_hold_still_masks(mask: float) -> None:
    net = hx.compile(scores(mask), dtype="fp16", threads=1)
    out = net(keep=np.array([True, False, True]), x=np.float32([1, 50, 1]))
    np.testing.assert_array_equal(out, np.float32([0.5, 0, 0.5]))


@pytest.mark.parametrize("limit", [lambda x: hx.maximum(x, 1e-12), lambda x: hx.clip(x, alpha=1e-12)])
def test_an_epsilon_that_fp16_does_not_hold_still_keeps_zeros_apart(limit: Callable[[hx.Tensor], hx.Tensor]) -> None:
    x = hx.input("x", (2, 3))
    net = hx.compile(x / limit(hx.reduce_l2_norm(x, axes=(1,))), dtype="fp16", threads=1)
    out = net(np.float32([[0, 0, 0], [3, 0, 4]]))
    np.testing.assert_allclose(out, np.float32([[0, 0, 0], [0.6, 0, 0.8]]), atol=1e-3)


def test_infinities_and_nan_among_constants_stay_what_they_are() -> None:
    values = np.float32([np.inf, -np.inf, np.nan, 1e30, -70000])
    out = hx.compile(hx.input("x", (5,)) + values, dtype="fp16", threads=1)(np.zeros(5, np.float32))
    np.testing.assert_array_equal(out, np.float32([np.inf, -np.inf, np.nan, 65504, -65504]))


def test_one_hot_is_fp16_between_the_ports() -> None:
    graph = hx.graph(hx.one_hot(hx.input("i", (3,), "int32"), depth=4) * 2.0)
    check(graph, {"i": np.array([0, 3, -1], np.int32)}, "fp16")


def test_what_is_not_float_stays_as_it_is() -> None:
    i, b = hx.input("i", (4,), "int32"), hx.state("seen", (4,), "int32", init=np.array([1, 2, 3, 70000], np.int32))
    net = hx.compile([hx.cast(i, dtype="fp32") * 0.5, i + b], dtype="fp16", threads=1)
    out = net(np.array([1, 2, 3, 70000], np.int32))
    np.testing.assert_array_equal(out["add"], [2, 4, 6, 140000])
    np.testing.assert_array_equal(out["mul"], np.float32([0.5, 1, 1.5, np.inf]))

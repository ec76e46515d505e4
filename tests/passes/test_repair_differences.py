"""Differences, averages and small rows, on chips."""

import numpy as np
import pytest

import hexane as hx
from hexane.build import graph
from hexane.passes.repair import repair
from hexane.targets import load_target
from repair_cases import (
    LAST,
    Array,
    Build,
    Case,
    assert_decided,
    assert_holds,
    assert_same_function,
    mean,
    normal,
    rms,
)

WIDE = np.random.default_rng(7).uniform(-60000, 60000, (4, 256)).astype(np.float16).astype(np.float32)
HIGH = np.clip(normal(3000, 45000), 33000, 60000)
TRIANGLE = (np.triu(np.ones((256, 256))) / np.arange(1, 257)).astype(np.float32)
SMALL, TINY = normal(3e-5), np.float32(1e-5)


def low(x: hx.Tensor) -> hx.Tensor:
    return hx.reduce_min(x, **LAST)


def span(x: hx.Tensor) -> hx.Tensor:
    return hx.reduce_max(x, **LAST) - low(x)


def between_ends(x: Array) -> Array:
    least, most = x.min(1, keepdims=True), x.max(1, keepdims=True)
    return (x - least) / (most - least)


def deviation(x: Array) -> Array:
    return x - x.mean(1, keepdims=True)


DIFFERENCES = {
    "between its ends": Case(lambda x: (x - low(x)) / (span(x) + 1e-5), WIDE, between_ends),
    "between its ends, limited": Case(lambda x: (x - low(x)) / hx.maximum(span(x), 1e-5), WIDE, between_ends),
    "between its ends, by a reciprocal": Case(lambda x: (x - low(x)) * (1.0 / (span(x) + 1e-5)), WIDE, between_ends),
    "over its span": Case(
        lambda x: x / span(x), WIDE, lambda x: x / (x.max(1, keepdims=True) - x.min(1, keepdims=True))
    ),
    "over the mean deviation": Case(
        lambda x: (x - mean(x)) / (mean(hx.abs(x - mean(x))) + 1e-5),
        np.where(normal(1) > 1, 60000, -60000).astype(np.float32),
        lambda x: deviation(x) / abs(deviation(x)).mean(1, keepdims=True),
    ),
    "a difference times a factor": Case(lambda x: (x - x[::-1]) * 1e-3, WIDE, lambda x: (x - x[::-1]) * 1e-3, "engine"),
    "a difference over a number": Case(lambda x: (x - x[::-1]) / 255.0, WIDE, lambda x: (x - x[::-1]) / 255),
    "half a sum": Case(lambda x: (x + x[::-1]) / 2.0, HIGH, lambda x: (x + x[::-1]) / 2, "engine"),
    "a mixture of three": Case(
        lambda x: (x * hx.sigmoid(x[:, ::-1]) + x[::-1] * 0.9 + x[:, ::-1] * hx.sigmoid(x)) / 40000.0,
        HIGH,
        lambda x: (x * 1.0 + x[::-1] * 0.9 + x[:, ::-1]) / 40000,
        "engine",
    ),
    "the mean of four": Case(
        lambda x: ((x + x[::-1]) - (-x[:, ::-1] - x[::-1, ::-1])) * 0.25,
        HIGH,
        lambda x: (x + x[::-1] + x[:, ::-1] + x[::-1, ::-1]) / 4,
        "engine",
    ),
    "the size of a difference": Case(
        lambda x: hx.reshape(hx.abs(x - x[::-1]), shape=(2, 512)) * 0.125,
        WIDE,
        lambda x: abs(x - x[::-1]).reshape(2, 512) / 8,
        "engine",
    ),
}
AVERAGES = {
    "a running mean by matmul": Case(lambda x: hx.matmul(x, TRIANGLE), HIGH, lambda x: x @ TRIANGLE, "engine"),
    "a running mean by linear": Case(lambda x: hx.linear(x, TRIANGLE.T.copy()), HIGH, lambda x: x @ TRIANGLE, "engine"),
    "a running mean of rows": Case(
        lambda x: hx.matmul(TRIANGLE, x, transpose_x=True), HIGH.T.copy(), lambda x: TRIANGLE.T @ x, "engine"
    ),
}
ROWS = {
    "rms_norm without an epsilon": Case(lambda x: x / hx.sqrt(mean(x * x)), SMALL, lambda x: rms(x, 0), "engine"),
    "rms_norm with a tiny one": Case(lambda x: x * hx.rsqrt(mean(x * x) + 1e-12), SMALL, lambda x: rms(x, 1e-12)),
    "over an L2 norm": Case(
        lambda x: x / hx.reduce_l2_norm(x, **LAST),
        SMALL,
        lambda x: x / np.linalg.norm(x, axis=1, keepdims=True),
        "engine",
    ),
    "an L2 norm": Case(
        lambda x: hx.reduce_l2_norm(x, **LAST),
        SMALL,
        lambda x: np.linalg.norm(x, axis=1, keepdims=True),
        "engine",
    ),
    "a root of two squares": Case(
        lambda x: hx.sqrt(x * x + x[::-1] * x[::-1]), SMALL, lambda x: np.sqrt(x * x + x[::-1] ** 2)
    ),
    "layer_norm of a product": Case(
        lambda x: hx.layer_norm(x * TINY, axes=(1,), epsilon=1e-12),
        normal(1),
        lambda x: deviation(x) / np.sqrt(x.var(1, keepdims=True) + 1e-12 / float(TINY) ** 2),
    ),
    "F.normalize of a product": Case(
        lambda x: x * TINY / hx.maximum(hx.reduce_l2_norm(x * TINY, **LAST), 1e-12),
        normal(1),
        lambda x: x / np.linalg.norm(x, axis=1, keepdims=True),
        "engine",
    ),
}
CASES = DIFFERENCES | AVERAGES | ROWS


@pytest.mark.parametrize("name", CASES)
def test_a_form_holds_on_every_chip_and_the_risky_one_does_not(name: str) -> None:
    assert_holds(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_a_form_is_the_same_function(name: str) -> None:
    assert_same_function(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_each_change_is_a_decision_and_a_second_run_changes_nothing(name: str) -> None:
    assert_decided(CASES[name])


@pytest.mark.parametrize(
    "build",
    [
        lambda x: (x - 127.5) / 127.5,
        lambda x: (hx.sigmoid(x) - hx.tanh(x)) / 2.0,
        lambda x: x - x[::-1],
        lambda x: (x + x[::-1]) * 0.75,
        lambda x: (x * 0.5 - x[::-1] * 0.25) / 4.0,
        lambda x: (x - low(x)) / (hx.reduce_max(x[::-1], **LAST) + x),
        lambda x: hx.matmul(hx.sigmoid(x), TRIANGLE),
        lambda x: hx.matmul(x, TRIANGLE * np.float32(0.5)),
        lambda x: hx.layer_norm(x * 0.5, axes=(1,)),
        lambda x: hx.layer_norm(x * 1e-5, axes=(1,), epsilon=1e-5),
    ],
)
def test_what_holds_stays_as_it_is(build: Build) -> None:
    """Bounded operands, constants, and what no factor brings back."""
    model = graph(build(hx.input("x", (4, 256))))
    assert repair(model, load_target("h13")).nodes == model.nodes


def test_a_sum_that_is_read_elsewhere_is_not_computed_twice() -> None:
    x = hx.input("x", (4, 256))
    total = x + x[::-1]
    model = graph({"half": total / 2.0, "sum": total})
    assert repair(model, load_target("h13")).nodes == model.nodes


@pytest.mark.parametrize("size", [1e-3, 1e-4])
@pytest.mark.parametrize("numerics", ["engine", "ieee"])
def test_ordinary_rows_next_to_small_ones_stay_as_right(size: float, numerics: str) -> None:
    """The factor is each row's own."""
    numbers = normal(1)
    numbers[1] *= np.float32(size)
    x = hx.input("x", numbers.shape)
    got = np.asarray(hx.compile(x / hx.reduce_l2_norm(x, **LAST), target="h13", numerics=numerics)(numbers))
    want = numbers.astype(np.float64) / np.linalg.norm(numbers.astype(np.float64), axis=1, keepdims=True)
    assert (np.linalg.norm(got - want, axis=1) < 2e-3).all()

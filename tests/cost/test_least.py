"""The least latency: never above an estimate, and near it where products are most of it."""

import operator
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import reduce
from math import fsum
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.cost.parameters import measured
from hexane.graph import Graph
from hexane.targets.query import load_chip


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def convolutions() -> Graph:
    x = hx.input("x", (1, 64, 56, 56))
    for i in range(8):
        x = hx.relu(hx.conv(x, weights(64, 64, 3, 3) * (1 + i / 8), pad=1))
    return hx.graph(x)


def with_host() -> Graph:
    x = hx.conv(hx.input("x", (1, 64, 28, 28)), weights(64, 64, 1, 1))
    return hx.graph(hx.conv(hx.tan(x), weights(32, 64, 3, 3)))


def attention() -> Graph:
    x = hx.input("x", (1, 4, 64, 32), "fp16")
    return hx.graph(hx.scaled_dot_product_attention(x, x, x))


def strided() -> Graph:
    return hx.graph(
        hx.max_pool(
            hx.conv(hx.input("x", (1, 3, 224, 224)), weights(64, 3, 7, 7), strides=(2, 2), pad=3), kernel_sizes=(3, 3)
        )
    )


def products() -> Graph:
    x = hx.input("x", (4, 128, 256))
    return hx.graph(hx.softmax(hx.matmul(hx.matmul(x, weights(256, 512)), weights(512, 64)), axis=-1))


def dense() -> Graph:
    x = hx.input("x", (64, 256))
    return hx.graph(hx.linear(hx.relu(hx.linear(x, weights(1024, 256), weights(1024))), weights(256, 1024)))


def transposed() -> Graph:
    return hx.graph(hx.conv_transpose(hx.input("x", (1, 16, 14, 14)), weights(16, 8, 2, 2), strides=(2, 2)))


def network() -> Graph:
    """Of layers that take less in a network than alone, on some products."""
    x = hx.input("x", (1, 64, 56, 56))
    for i in range(6):
        x = hx.conv(x, weights(256 if i % 2 == 0 else 64, x.shape[1], 1, 1) * (1 + i / 8))
    return hx.graph(hx.conv(hx.softmax(x, axis=1), weights(64, 64, 3, 3), pad=1))


@pytest.mark.parametrize("chip", [*measured(), "A14", "M6"])
@pytest.mark.parametrize("build", [convolutions, with_host, attention, strided, products, dense, transposed, network])
def test_the_least_is_never_above_the_estimate(build: Callable[[], Graph], chip: str) -> None:
    graph = build()
    least, found = hx.preflight(graph, chip).latency, hx.estimate(graph, chip)
    assert least is not None
    assert least.submissions == found.submissions
    assert least.floor_us == pytest.approx(found.floor_us)
    assert least.copies_us <= found.copies_us * 1.0001
    assert least.us <= found.latency_us * 1.0001
    assert (least.measured_on, least.extrapolated) == (found.measured_on, found.extrapolated)


def test_the_least_is_near_the_estimate_of_convolutions() -> None:
    least = hx.preflight(convolutions(), "M1").latency
    assert least is not None
    assert least.us > 0.8 * hx.estimate(convolutions(), "M1").latency_us


def test_a_dense_layer_counts_as_the_product_that_it_is() -> None:
    x, weight = hx.input("x", (64, 256)), weights(1024, 256)
    dense, product = (hx.preflight(hx.graph(y), "M1").latency for y in (hx.linear(x, weight), hx.matmul(x, weight.T)))
    assert dense is not None
    assert product is not None
    assert dense.products_us == product.products_us > 0


def test_a_verdict_does_not_depend_on_how_python_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since Python 3.12 `sum` compensates for the rounding of floats."""
    made = [np.random.default_rng(n).standard_normal((1, 28, n), np.float32) for n in (6, 7)]
    graph = hx.graph(hx.lstm(hx.input("x", (5, 1, 6)), *made)[0])
    found = []
    for add in (lambda items, start=0: reduce(operator.add, items, start), lambda items, start=0: _exact(items, start)):
        monkeypatch.setattr("builtins.sum", add)
        found.append((hx.preflight(graph, "M1").to_json(), hx.estimate(graph, "M1").latency_us))
    assert found[0] == found[1]


def _exact(items: Iterable[Any], start: Any) -> Any:
    items = list(items)
    return fsum(items) + start if any(isinstance(item, float) for item in items) else reduce(operator.add, items, start)


def test_check_says_the_least_and_json_has_its_parts() -> None:
    report = hx.preflight(convolutions(), "M1")
    assert report.latency is not None
    assert f"estimate at least: {report.latency.us:.0f} us" in str(report)
    assert report.record()["latency"]["products_us"] == report.latency.products_us


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("M1", "by rates of M1;"),
        ("h13", "by rates of M1;"),
        ("A14", "by rates of M1; no latency of A14 is known;"),
        ("M1,A14", "by rates of M1; no latency of A14 is known;"),
        ("iPhone 12,M1", "by rates of M1; no latency of iPhone 12 is known;"),
        ("A14,iPhone 12", "by rates of M1; no latency of A14, iPhone 12 is known;"),
        ("h11", "by rates of M1; no latency of h11 is known;"),
    ],
)
def test_check_names_the_chips_without_a_known_latency(asked: str, said: str) -> None:
    chips = [load_chip(name) for name in asked.split(",")]
    chip = replace(chips[0], asked=", ".join(chip.asked for chip in chips))
    line = hx.preflight(convolutions(), chip).latency_line
    assert line.endswith(f"{said} a real call may be faster (p10 of `hexane estimate`)")


def test_a_network_without_a_part_on_the_engine_has_none() -> None:
    report = hx.preflight(hx.graph(hx.tan(hx.input("x", (1, 8)))), "M1")
    assert report.latency is None
    assert "latency" not in str(report)
    assert report.record()["latency"] is None

"""The order of a program's steps: how little it keeps live, and that results do not depend on it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from hexane.errors import Error
from hexane.importers.onnx import import_onnx
from hexane.pipeline import lower
from hexane.stages.bufferize.order import peak_bytes, schedule
from hexane.targets import load_target
from random_graphs import random_graph

HOST = load_target("host")


@pytest.mark.parametrize("seed", range(20))
def test_results_do_not_depend_on_the_order(seed: int) -> None:
    graph, feeds = random_graph(seed, "fp32")
    usual, optimal = (hx.compile(graph, threads=1, schedule=kind) for kind in ("", "optimal"))
    np.testing.assert_equal(optimal(feeds), usual(feeds))


@pytest.mark.parametrize("seed", range(20))
def test_the_optimal_order_is_never_worse(seed: int) -> None:
    graph = lower(random_graph(seed, "fp32")[0], HOST)
    usual, optimal = schedule(graph), schedule(graph, "optimal")
    assert sorted(map(id, usual)) == sorted(map(id, optimal))
    assert peak_bytes(graph, optimal) <= peak_bytes(graph, usual)


def test_readers_of_a_state_stay_before_its_update() -> None:
    state = hx.state("s", (4,))
    x = hx.input("x", [4])
    update = hx.write_state(state, state + x, np.int32(0))
    model = hx.compile(hx.exp(state) + x, updates=[update], schedule="optimal")
    for call in range(3):
        got = model(np.ones(4, np.float32))
        np.testing.assert_allclose(got, np.full(4, np.exp(call) + 1), rtol=1e-6)


def test_an_order_of_another_name_is_refused() -> None:
    with pytest.raises(Error, match="schedule: got 'fast', need 'optimal'"):
        hx.compile(hx.exp(hx.input("x", [2])), schedule="fast")


def test_randwire_needs_a_tenth_less(model_file: Callable[[str], Path]) -> None:
    graph = lower(import_onnx(model_file("randwire")), HOST)
    assert peak_bytes(graph, schedule(graph)) == 4 * 245_760
    assert peak_bytes(graph, schedule(graph, "optimal")) == 4 * 221_184

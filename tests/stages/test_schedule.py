"""The order of a program's steps: how little it keeps live, and that results do not depend on it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from hexane.build import Tensor
from hexane.errors import Error
from hexane.importers.onnx import import_onnx
from hexane.ops import OPS, apply
from hexane.ops.records.program import PROGRAM, Layout, layout_text, type_text
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


def late_program(x: hx.Tensor, *, late: bool) -> hx.Tensor:
    """A program of one input, whose result is like it."""
    layout = layout_text(Layout((4,), 4 * x.type.size))
    attrs = {"index": 0, "types": [type_text(x.type)], "layouts": [layout, layout], "late": late}
    return Tensor(apply(OPS[PROGRAM], [x.value], attrs, ())[0])


@pytest.mark.parametrize("late", [True, False])
def test_a_late_program_begins_at_once_and_its_readers_come_last(late: bool) -> None:
    """A chain of three gradients, each of them summed by a program: the backward pass goes on meanwhile."""
    x = hx.input("x", (8,))
    chain = [x]
    for _ in range(3):
        chain.append(hx.exp(chain[-1]))
    sums = [late_program(one, late=late) for one in chain[1:]]
    updates = {f"w{i}": hx.relu(one) for i, one in enumerate(sums)}
    order = [node.op for node in schedule(hx.graph(updates)) if node.op != "input"]
    if late:
        assert order == ["exp", PROGRAM, "exp", PROGRAM, "exp", PROGRAM, "relu", "relu", "relu"]
    else:
        assert order != ["exp", PROGRAM, "exp", PROGRAM, "exp", PROGRAM, "relu", "relu", "relu"]

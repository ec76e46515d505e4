"""Programs whose memory is overwritten between runs, as soon as nothing reads it again: the bits of whole tensors."""

import ctypes
from typing import Any

import numpy as np
import pytest
from tests.stages.test_stream import inverted_residual, quantized_images, random_branches, random_chain

import hexane as hx
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.pipeline import compile_graph
from hexane.program import Program
from hexane.runtime.c99 import C99Model
from hexane.stages.stream.rows import StepRows
from hexane.stages.stream.spill import Spilled, Spills, TooLarge
from hexane.stages.stream.stream import Streams, arena_bytes
from hexane.targets import load_target
from poisoned import run_poisoned
from turns import share

HOST = load_target("host")
NOT_CUT = "reduce_sum"  # the C99 runtime computes sums of floats as a whole, and refuses plans that have them in loops


def programs(whole: Program, holds_ports: bool, budgets: int) -> list[Program]:
    """Streamed and in stages, at so many budgets each."""
    found = []
    streams = Streams(whole, "", holds_ports)
    for budget in np.linspace(arena_bytes(streams.stream(1)), arena_bytes(whole), budgets).astype(int).tolist():
        found.append(streams.stream(1, budget))
    spills = Spills(whole, "", holds_ports)
    least = spills.at(0)
    first = least.bytes if isinstance(least, TooLarge) else least.fast
    for budget in np.linspace(first, max(first, arena_bytes(whole)), budgets).astype(int).tolist():
        one = spills.at(budget)
        assert isinstance(one, Spilled)
        found.append(one.program)
    return found


def assert_same_bits(c99: ctypes.CDLL, graph: hx.Graph, holds_ports: bool, budgets: int) -> None:
    whole = compile_graph(graph, HOST)
    rng = np.random.default_rng(3)
    feeds: dict[str, Any] = {p.name: rng.standard_normal(p.view.type.shape).astype(np.float32) for p in whole.inputs}
    want = C99Model(bytes(_core.plan_write(emit_plan(whole))), c99)(feeds)
    for program in programs(whole, holds_ports, budgets):
        if any(step.cut is not None and step.kernel == NOT_CUT for step in program.steps):
            continue
        got = run_poisoned(program, c99, feeds)
        assert all(got[name].tobytes() == want[name].tobytes() for name in want)


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_random_graphs_have_the_same_bits(c99: ctypes.CDLL, first: int):
    for seed in range(first, first + 10):
        graph = (random_chain if seed % 3 == 0 else random_branches)(10_000 + seed)
        assert_same_bits(c99, graph, seed % 2 == 0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 50))
def test_1000_random_graphs_at_5_budgets_have_the_same_bits(c99: ctypes.CDLL, first: int):
    for seed in share(range(first, first + 50)):
        graph = (random_chain if seed % 3 == 0 else random_branches)(10_000 + seed)
        assert_same_bits(c99, graph, seed % 2 == 0, 5)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_quantized_images_have_the_same_bits(c99: ctypes.CDLL, stride: int):
    for holds_ports in (False, True):
        assert_same_bits(c99, quantized_images(stride), holds_ports, 4)


@pytest.mark.parametrize("strategy", ["stream", "stages"])
def test_a_row_that_is_gone_too_early_shows(c99: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, strategy: str):
    """Where windows are believed to need one row less, that row is overwritten."""
    whole = compile_graph(inverted_residual(), HOST)
    program = Streams(whole, "").stream(1)
    if strategy == "stages":
        found = Spills(whole, "").at(arena_bytes(whole) // 4)
        assert isinstance(found, Spilled)
        program = found.program
    rng = np.random.default_rng(3)
    feeds = {p.name: rng.standard_normal(p.view.type.shape).astype(np.float32) for p in whole.inputs}
    want = run_poisoned(program, c99, feeds)["y"]
    needs = StepRows.needs

    def less(rows: StepRows, i: int) -> Any:
        first, behind = needs(rows, i)
        return np.where(behind - first > 2, first + 1, first), behind

    monkeypatch.setattr(StepRows, "needs", less)
    assert (run_poisoned(program, c99, feeds)["y"] != want).any()

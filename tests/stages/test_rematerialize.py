"""Values that are computed again in place of being kept have the same bits."""

from typing import Any

import numpy as np
import pytest

import hexane as hx
from again import computed_again
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.graph import Array, Graph
from hexane.program import Program
from hexane.stages.stream.stream import arena_bytes
from random_graphs import random_graph


def run(program: Program, feeds: dict[str, Array]) -> Any:
    return hx.Model(_core.Program(emit_plan(program), 1, None), program)(feeds)


def named(graph: Graph) -> Graph:
    return hx.graph({f"y{i}": hx.Tensor(port.value) for i, port in enumerate(graph.outputs)})


@pytest.mark.parametrize("kind", ["fp32", "quantized"])
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_graphs(first: int, kind: str) -> None:
    count = 0
    for seed in range(first, first + 10):
        graph, feeds = random_graph(seed, kind, steps=14)
        found = computed_again(named(graph))
        want = hx.compile(named(graph), threads=1)(feeds) if found else {}
        for program in found:
            np.testing.assert_equal(run(program, feeds), want, err_msg=f"seed {seed}")
            count += 1
    assert count > 0


def test_a_value_is_computed_from_what_is_kept() -> None:
    """Of a chain that is read in the other direction all but the first values are computed again."""
    y = hx.input("x", (1000,))
    chain = [y := hx.tanh(y) for _ in range(6)]
    for value in reversed(chain):
        y = y * value
    graph = hx.graph({"y": y})
    whole = hx.compile(graph, threads=1)
    assert isinstance(whole, hx.Model)
    least = min(computed_again(graph), key=arena_bytes)
    assert arena_bytes(least) <= whole.memory["arena"] // 2
    x = np.linspace(-1, 1, 1000, dtype=np.float32)
    np.testing.assert_array_equal(run(least, {"x": x}), whole(x))
    assert {d.verdict for d in least.decisions if d.stage == "rematerialize"} >= {"computed 2 times"}


def test_no_copy_reads_a_state_that_is_overwritten() -> None:
    s = hx.state("s", init=np.arange(1000, dtype=np.float32))
    first = hx.exp(s * 0.001)
    new = hx.write_state(s, hx.input("x", (1000,)), np.array(0))
    y = new
    for _ in range(3):
        y = hx.tanh(y) + hx.relu(y)
    graph = hx.graph({"y": y * first}, [new])
    x = np.linspace(-1, 1, 1000, dtype=np.float32)
    want = hx.compile(graph, threads=1)(x)
    for program in computed_again(graph):
        np.testing.assert_array_equal(run(program, {"x": x}), want)

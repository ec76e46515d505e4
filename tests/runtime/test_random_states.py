"""Random programs that write states in any order and read any version of them: three calls give what the reference
gives."""

import numpy as np
import pytest

import hexane as hx
from again import computed_again
from compare import assert_close
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.graph import Array, Graph
from hexane.ops.reference import run_reference


def program(rng: np.random.Generator) -> Graph:
    """Matrices of 4 x 4, two states of which the newest version is written now and then."""

    def normal(*shape: int) -> Array:
        return rng.uniform(-1, 1, shape).astype(np.float32)

    newest = {name: hx.state(name, init=normal(4, 4)) for name in ("s", "t")}
    pool = [hx.input("x", (4, 4)), *newest.values()]
    updates = []
    for _ in range(12):
        a, b = (pool[int(rng.integers(len(pool)))] for _ in range(2))
        match int(rng.integers(9)):
            case 0 | 1:
                name = "st"[int(rng.integers(2))]
                rows = int(rng.integers(1, 5))
                at = hx.const(np.array(rng.integers(0, 5 - rows), np.int32))
                newest[name] = hx.write_state(newest[name], a[4 - rows :], at)
                updates.append(newest[name])
                pool.append(newest[name])
            case 2:
                pool.append(hx.tanh(a @ b + pool[int(rng.integers(len(pool)))]))
            case 3:
                pool.append(hx.tanh(a + b))
            case 4:
                pool.append(hx.transpose(a))
            case 5:
                pool.append(hx.concat(a[:2], b[2:], axis=0))
            case 6:
                pool.append(a * 1.0)
            case 7:
                pool.append(hx.reshape(hx.reshape(a, shape=(16,)), shape=(4, 4)))
            case 8:
                pool.append(hx.relu(a) - b[0])
    outputs = [pool[int(rng.integers(len(pool)))] for _ in range(3)]
    return hx.graph([pool[-1], *outputs], updates)


@pytest.mark.parametrize("seed", [*range(100), 148])
def test_states_hold_what_the_reference_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = program(rng)
    print(f"seed {seed}\n{graph}")
    net, states = hx.compile(graph, threads=1), {}
    for _ in range(3):
        feeds = {name: rng.uniform(-1, 1, (4, 4)).astype(np.float32) for name in graph.input_names()}
        want, got = run_reference(graph, feeds, states), net(feeds)
        for name, array in want.items():
            assert_close(got[name], array)
    for name, array in states.items():
        assert_close(net.read_state(name), array)


@pytest.mark.parametrize("seed", range(0, 100, 5))
def test_values_that_are_computed_again_read_the_same_states(seed: int) -> None:
    graph = program(np.random.default_rng(seed))
    for made in computed_again(graph):
        rng = np.random.default_rng(seed)
        whole, less = hx.compile(graph, threads=1), hx.Model(_core.Program(emit_plan(made), 1, None), made)
        for _ in range(3):
            feeds = {name: rng.uniform(-1, 1, (4, 4)).astype(np.float32) for name in graph.input_names()}
            np.testing.assert_equal(less(feeds), whole(feeds))
        for name in whole.state_names:
            np.testing.assert_array_equal(less.read_state(name), whole.read_state(name))

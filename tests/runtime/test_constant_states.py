"""States that no step writes are constants between calls: what kernels pack of them is packed once, and anew when they
change."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hexane as hx

WEIGHT = np.random.default_rng(0).integers(-3, 4, (64, 48)).astype(np.float32)
KERNEL = np.random.default_rng(1).integers(-3, 4, (8, 4, 3, 3)).astype(np.float32)
ROWS, IMAGE = np.ones((32, 64), np.float32), np.ones((1, 4, 9, 9), np.float32)

Leaf = Callable[[str, np.ndarray], Any]


def product(leaf: Leaf) -> hx.Graph:
    return hx.graph(hx.input("x", ROWS.shape) @ leaf("w", WEIGHT))


def convolution(leaf: Leaf) -> hx.Graph:
    return hx.graph(hx.conv(hx.input("x", IMAGE.shape), leaf("w", KERNEL)))


def parts(leaf: Leaf) -> hx.Graph:
    """Two products of parts of one weight."""
    x, w = hx.input("x", ROWS.shape), leaf("w", WEIGHT)
    return hx.graph(hx.concat([x @ w[:, 16:], x @ w[:, :16]], axis=1))


def state(name: str, array: np.ndarray) -> Any:
    return hx.state(name, init=array)


CASES = {
    "product": (product, WEIGHT, ROWS),
    "convolution": (convolution, KERNEL, IMAGE),
    "parts": (parts, WEIGHT, ROWS),
}


@pytest.mark.parametrize("case", CASES)
def test_a_state_that_nothing_writes_is_packed_when_the_model_is_made(case: str) -> None:
    make, _, _ = CASES[case]
    as_state, as_param = (hx.compile(make(leaf), threads=1) for leaf in (state, hx.param))
    assert as_state.memory["scratch"] == as_param.memory["scratch"]


def test_a_state_that_a_step_writes_is_packed_in_each_call() -> None:
    w = state("w", WEIGHT)
    y = hx.input("x", ROWS.shape) @ w
    net = hx.compile(y, updates=[hx.write_state(w, w * 2.0, np.int32(0))], threads=1)
    assert net.memory["scratch"] >= WEIGHT.nbytes
    for factor in (1, 2, 4):
        assert np.array_equal(net(ROWS), ROWS @ (factor * WEIGHT))


def test_a_write_to_one_part_of_a_state_counts_for_the_others() -> None:
    w, at = state("w", WEIGHT), hx.input("at", (), "int32")
    after = hx.write_state(w, hx.input("row", (1, 48)), at)
    net = hx.compile(hx.input("x", ROWS.shape) @ after, threads=1)
    want = WEIGHT.copy()
    for row in range(3):
        want[row] = row
        assert np.array_equal(net({"x": ROWS, "row": want[row : row + 1], "at": np.int32(row)}), ROWS @ want)


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_results_follow_what_is_written_to_a_state(case: str, bound: bool) -> None:
    make, array, x = CASES[case]
    net, param = hx.compile(make(state), threads=1), hx.compile(make(hx.param), threads=1)
    call = net.bind(x=x) if bound else None

    def result() -> np.ndarray:
        if call is None:
            return np.asarray(net(x))
        call()
        return np.asarray(next(iter(call.outputs.values())))

    for values in (array, -array, array + 1, array):
        net.write_state("w", values)
        param.update(w=values)
        assert np.array_equal(result(), param(x))
        assert np.array_equal(net.read_state("w"), values)
    net.write_state("w", 2 * array)
    net.reset_state()
    param.update(w=array)
    assert np.array_equal(result(), param(x))


def test_a_state_that_is_a_weight_and_one_that_is_written_stay_apart() -> None:
    x, at = hx.input("x", (4, 16)), hx.input("at", (), "int32")
    rng = np.random.default_rng(2)
    first, second = (rng.integers(-3, 4, (16, 16)).astype(np.float32) for _ in range(2))
    a, b = state("a", first), state("b", second)
    net = hx.compile({"y": x @ a, "z": x @ hx.write_state(b, x[:1], at)}, threads=1)
    data = rng.integers(-3, 4, (4, 16)).astype(np.float32)
    for step in range(3):
        second[step] = data[0]
        out = net(data, np.int32(step))
        assert np.array_equal(out["y"], data @ first)
        assert np.array_equal(out["z"], data @ second)
    net.write_state("b", first)
    assert np.array_equal(net(data, np.int32(0))["y"], data @ first)

"""Functions of one model: equal weights are in memory once, states of one name are one state."""

import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from hexane.emit.coreai.write import save_graph

WEIGHT = (np.random.default_rng(1).standard_normal((512, 512)) / 22).astype(np.float32)


def total(rows: int, name: str = "total", size: int = 4) -> hx.Graph:
    """Adds its rows to a state and gives the sum."""
    state = hx.state(name, (1, size))
    added = hx.reduce_sum(hx.input("x", (rows, size)), axes=(0,))
    return hx.graph({"y": hx.write_state(state, state + added, 0)})


def ones(rows: int) -> np.ndarray:
    return np.ones((rows, 4), np.float32)


def test_functions_share_their_state() -> None:
    net = hx.compile_functions({"many": total(8), "one": total(1)})
    assert net.functions == ("many", "one")
    assert np.asarray(net["many"](ones(8))).tolist() == [[8] * 4]
    assert np.asarray(net.function("one")(ones(1))).tolist() == [[9] * 4]
    assert np.asarray(net["many"](ones(8))).tolist() == [[17] * 4]
    assert net["one"].read_state("total").tolist() == [[17] * 4]
    net["one"].write_state("total", np.zeros((1, 4), np.float32))
    assert np.asarray(net["many"](ones(8))).tolist() == [[8] * 4]
    net.reset_state()
    assert np.asarray(net["one"](ones(1))).tolist() == [[1] * 4]


@pytest.mark.parametrize("target", ["h13", "h17s"])
def test_functions_of_a_chip_share_their_state(target: str) -> None:
    net = hx.compile_functions({"many": total(8), "one": total(1)}, target=target)
    net["many"](ones(8))
    assert np.asarray(net["one"](ones(1))).tolist() == [[9] * 4]


def test_equal_weights_are_in_memory_once() -> None:
    def product(rows: int) -> hx.Tensor:
        return hx.relu(hx.linear(hx.input("x", (rows, 512)), WEIGHT))

    net = hx.compile_functions({"a": product(1), "b": product(64)})
    x = np.random.default_rng(2).standard_normal((64, 512)).astype(np.float32)
    np.testing.assert_allclose(net["a"](x[:1]), np.asarray(net["b"](x))[:1], rtol=1e-4, atol=1e-5)
    assert net["b"]._core.unshared_bytes < WEIGHT.nbytes


def test_states_that_do_not_fit_are_refused() -> None:
    with pytest.raises(hx.Error, match="got states that differ from the other function"):
        hx.compile_functions({"a": total(1), "b": total(1, size=6)})
    both = hx.state("total", (1, 4)), hx.state("other", (1, 4))
    x = hx.input("x", (1, 4))
    graph = hx.graph({f"y{i}": hx.write_state(s, s + x, 0) for i, s in enumerate(both)})
    with pytest.raises(hx.Error, match="got the state 'total' but not all of its function"):
        hx.compile_functions({"a": total(1), "b": graph})
    with pytest.raises(hx.Error, match="got the function 'c', need one of a"):
        hx.compile_functions({"a": total(1)}).function("c")


def test_states_of_other_names_are_their_own() -> None:
    net = hx.compile_functions({"a": total(1), "b": total(1, name="other")})
    assert isinstance(net, Mapping)
    net["a"](ones(1))
    assert np.asarray(net["b"](ones(1))).tolist() == [[1] * 4]


def test_a_file_of_several_functions(tmp_path: Path) -> None:
    save_graph(
        {"double": hx.graph(hx.input("x", (3,)) * 2), "triple": hx.graph(hx.input("x", (3,)) * 3)},
        tmp_path / "n.aimodel",
    )
    net = hx.compile_functions(tmp_path / "n.aimodel")
    assert {name: np.asarray(f(np.ones(3, np.float32))).tolist() for name, f in net.items()} == {
        "double": [2, 2, 2],
        "triple": [3, 3, 3],
    }


def test_calls_from_several_threads_change_one_state_in_turn() -> None:
    net = hx.compile_functions({"many": total(8), "one": total(1)})

    def call(name: str) -> None:
        for _ in range(200):
            net[name](ones(8 if name == "many" else 1))

    threads = [threading.Thread(target=call, args=(name,)) for name in ("many", "one", "many", "one")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert net["one"].read_state("total").tolist() == [[400 * 8 + 400] * 4]


def test_a_context_does_not_share_with_its_own_model() -> None:
    net = hx.compile(total(1))
    assert isinstance(net, hx.Model)
    with pytest.raises(hx.Error, match="got a context of the same plan"):
        net.context()._core.share_states(net._core)


def test_a_context_of_functions_has_one_state_of_its_own() -> None:
    net = hx.compile_functions({"many": total(8), "one": total(1)})
    caller = net.context()
    assert np.asarray(net["many"](ones(8))).tolist() == [[8] * 4]
    assert np.asarray(caller["many"](ones(8))).tolist() == [[8] * 4]
    assert np.asarray(caller["one"](ones(1))).tolist() == [[9] * 4]
    assert np.asarray(net["one"](ones(1))).tolist() == [[9] * 4]
    net.add("four", total(4))  # later than the context
    assert np.asarray(caller["four"](ones(4))).tolist() == [[13] * 4]
    assert list(caller) == ["many", "one", "four"]
    caller.reset_state()
    assert np.asarray(caller["one"](ones(1))).tolist() == [[1] * 4]
    caller.close()
    with pytest.raises(hx.Error, match="got a context that is closed"):
        caller["one"]
    assert np.asarray(net["one"](ones(1))).tolist() == [[10] * 4]


def test_contexts_of_functions_share_the_weights() -> None:
    def step(rows: int) -> hx.Graph:
        state = hx.state("kept", (1, 512))
        y = hx.linear(hx.input("x", (rows, 512)), WEIGHT)
        return hx.graph({"y": hx.write_state(state, hx.reduce_sum(y, axes=(0,)) + state, 0)})

    net = hx.compile_functions({"a": step(1), "b": step(64)})
    caller = net.context()
    x = np.random.default_rng(2).standard_normal((64, 512)).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(net["b"](x)), np.asarray(caller["b"](x)))
    assert sum(caller[name].memory[space] for name in caller for space in caller[name].memory) < WEIGHT.nbytes

"""Calls of one model from several threads run at the same time, with the bits of one caller."""

import threading
from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from hexane.options import Options, cores

Build = Callable[[], hx.Tensor]


def weights(*shape: int) -> np.ndarray:
    return (np.random.default_rng(7).standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def network(rows: int = 64, width: int = 384, layers: int = 8) -> hx.Tensor:
    h = hx.input("x", (rows, width))
    for _ in range(layers):
        h = hx.gelu(hx.linear(h, weights(width, width)))
    return h


def at_once(call: Callable[[int], None], threads: int) -> None:
    """Each thread its number, all together; the first error is raised."""
    start, errors = threading.Barrier(threads), []

    def run(number: int) -> None:
        start.wait()
        try:
            call(number)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(i,)) for i in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("target", ["host", "h13"])
@pytest.mark.parametrize("contexts", [1, 2, 5])
def test_all_callers_get_the_same_bits(target: str, contexts: int) -> None:
    net = hx.compile(network(layers=3), target=target, contexts=contexts, threads=2)
    assert isinstance(net, hx.Model)
    inputs = [np.random.default_rng(i).standard_normal((64, 384)).astype(np.float32) for i in range(6)]
    want = [np.asarray(net(x)).copy() for x in inputs]

    def call(number: int) -> None:
        for _ in range(10):
            np.testing.assert_array_equal(net(inputs[number]), want[number])

    at_once(call, 6)
    assert 1 <= net._core.callers <= contexts


def test_contexts_are_made_when_calls_meet() -> None:
    net = hx.compile(network(rows=256), contexts=3, threads=1)
    assert isinstance(net, hx.Model)
    x = np.ones((256, 384), np.float32)
    net(x)
    assert net._core.callers == 1
    at_once(lambda number: [net(x) for _ in range(20)] and None, 8)
    assert 2 <= net._core.callers <= 3


def test_calls_of_a_model_with_a_state_are_counted_one_by_one() -> None:
    state = hx.state("total", (1,))
    new = hx.write_state(state, state + hx.input("x", (1,)), 0)
    net = hx.compile(hx.graph({"y": new}), contexts=8)
    assert isinstance(net, hx.Model)
    at_once(lambda number: [net(np.ones(1, np.float32)) for _ in range(50)] and None, 4)
    assert net.read_state("total").tolist() == [200]
    assert net._core.callers == 1


def test_params_are_replaced_for_all_callers() -> None:
    graph = hx.graph(hx.linear(hx.input("x", (64, 384)), hx.param("w", weights(384, 384))))
    net = hx.compile(graph, contexts=4)
    assert isinstance(net, hx.Model)
    x = np.ones((64, 384), np.float32)
    before = np.asarray(net(x)).copy()
    at_once(lambda number: [net(x) for _ in range(20)] and None, 4)
    net.update(w=2 * weights(384, 384))

    def call(number: int) -> None:
        for _ in range(10):
            np.testing.assert_allclose(net(x), 2 * before, rtol=1e-5)

    at_once(call, 4)


def test_a_profile_counts_every_call() -> None:
    net = hx.compile(network(), contexts=4)
    assert isinstance(net, hx.Model)
    x = np.ones((64, 384), np.float32)
    net.profile()
    at_once(lambda number: [net(x) for _ in range(5)] and None, 4)
    assert {step["calls"] for step in net.steps} == {20}


def test_an_error_of_one_call_leaves_the_others() -> None:
    net = hx.compile(network(), contexts=2)
    x = np.ones((64, 384), np.float32)

    def call(number: int) -> None:
        for _ in range(10):
            if number:
                net(x)
            else:
                with pytest.raises(hx.InputError):
                    net(x[:3])

    at_once(call, 4)


@pytest.mark.parametrize("given", [0, 257, 1.5, True])
def test_another_number_of_contexts_is_refused(given: object) -> None:
    with pytest.raises(hx.Error, match=r"\[compile\] contexts: got .*, need an integer in 1\.\.256"):
        Options(contexts=given)  # type: ignore[arg-type]


def test_threads_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEXANE_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert Options().num_threads == 3
    monkeypatch.setenv("HEXANE_THREADS", "5")
    assert Options().num_threads == 5
    assert Options(threads=2).num_threads == 2
    monkeypatch.setenv("HEXANE_THREADS", "many")
    with pytest.raises(hx.Error, match=r"HEXANE_THREADS: got 'many', need an integer in 1\.\.256"):
        _ = Options().num_threads
    monkeypatch.delenv("HEXANE_THREADS")
    monkeypatch.setenv("OMP_NUM_THREADS", "dynamic")
    assert Options().num_threads == cores()

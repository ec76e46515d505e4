"""Processes that fork while other threads use models: the child goes on with what was whole at that moment."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import hexane as hx

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

SIZE = 400


@contextmanager
def meanwhile(act: Callable[[], Any]) -> Iterator[None]:
    """Does it over and over in another thread."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            act()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        time.sleep(0.05)
        yield
    finally:
        stop.set()
        thread.join()


def child_says(check: Callable[[], bool]) -> bool:
    """The results of a forked child. A child that hangs is ended and counts as wrong."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if check() else 1)
        except BaseException:
            os._exit(2)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.002)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


def network(threads: int) -> hx.Model:
    """A program of a few milliseconds, shared by threads. Its state holds the same number everywhere."""
    x = hx.input("x", (SIZE, SIZE))
    kept = hx.state("kept", (SIZE, SIZE))
    y = hx.clip(x @ hx.param("w", np.eye(SIZE, dtype=np.float32)), alpha=-100, beta=100)
    z = hx.clip((kept + y) @ np.eye(SIZE, dtype=np.float32), alpha=-100, beta=100)
    return hx.compile({"z": z}, updates=[hx.write_state(kept, y, np.int32(0))], threads=threads)


ONES = np.ones((SIZE, SIZE), np.float32)


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("form", ["call", "bound", "update", "state"])
def test_a_child_forked_during_a_call_runs_the_model(threads: int, form: str) -> None:
    net = network(threads)
    bound = net.bind(x=ONES.copy())
    acts = {
        "call": lambda: net(ONES * 2),
        "bound": bound,
        "update": lambda: net.update(w=np.eye(SIZE, dtype=np.float32)),
        "state": lambda: net.write_state("kept", ONES),
    }

    def check() -> bool:
        kept = net.read_state("kept")
        net(ONES)
        again = net(ONES)
        bound()
        return bool((kept == kept[0, 0]).all() and (again == 2).all() and (bound.outputs["z"] == 2).all())

    with meanwhile(acts[form]):
        for _ in range(15):
            assert child_says(check)


def test_a_child_compiles_and_loads_models_while_its_parent_does(tmp_path: Any) -> None:
    def build() -> hx.Model:
        x = hx.input("x", (3, 4))
        net = hx.compile(hx.relu(x) @ np.eye(4, dtype=np.float32), threads=2)
        net.save(tmp_path / f"{os.getpid()}.hxp")
        return hx.load(tmp_path / f"{os.getpid()}.hxp")

    x = np.ones((3, 4), np.float32)
    with meanwhile(build):
        for _ in range(20):
            assert child_says(lambda: bool((build()(x) == x).all()))


def test_a_fork_does_not_wait_for_a_tracer_that_waits_for_python() -> None:
    net = network(1)

    def trace() -> None:
        net._core.trace([ONES], lambda step, outputs: None)

    with meanwhile(trace):
        for _ in range(15):
            assert child_says(lambda: net(ONES).shape == ONES.shape)


def test_a_tracer_may_fork_itself() -> None:
    net = network(1)
    seen: list[bool] = []

    def after(step: int, outputs: object) -> None:
        child = os.fork()
        if child == 0:
            os._exit(0)
        seen.append(os.waitpid(child, 0)[1] == 0)

    net._core.trace([ONES], after)
    assert seen
    assert all(seen)
    assert net(ONES).shape == ONES.shape


def test_a_child_forked_while_an_update_waits_for_contexts_runs_them() -> None:
    net = network(2)
    contexts = [net.context() for _ in range(3)]

    def update_and_drop() -> None:
        net.update(w=np.eye(SIZE, dtype=np.float32))
        net.context().close()

    def check() -> bool:
        net.update(w=2 * np.eye(SIZE, dtype=np.float32))
        for context in (*contexts, net.context()):
            context.reset_state()
            context(ONES)
        return all(bool((context.read_state("kept") == 2).all()) for context in contexts)

    with meanwhile(lambda: contexts[0](ONES)), meanwhile(lambda: contexts[1](ONES)), meanwhile(update_and_drop):
        for _ in range(8):
            assert child_says(check)

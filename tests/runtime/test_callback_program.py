"""Programs that are functions of this process: they run while other steps do, and their errors are those of the call."""

import gc
import os
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.build import Tensor
from hexane.graph import Array
from hexane.ops import OPS, apply
from hexane.ops.records.program import PROGRAM, Layout, layout_text, type_text
from hexane.runtime.compile_graphs import compile_with_programs
from hexane.runtime.model import Model

SIZE, BYTES = 24, 128  # elements of fp32, and bytes of a surface
Work = Callable[[Array, Array], None]


def program(work: Work) -> "_core.MadeProgram":
    port: _core.DevicePort = {
        "name": "x", "dtype": "fp32", "shape": (1, 1, 1, SIZE), "strides": (4 * SIZE, 4 * SIZE, 4 * SIZE, 4),
        "bytes": 4 * SIZE,
    }  # fmt: skip

    def bind(given: Array, made: Array) -> Callable[[], None]:
        assert given.shape == made.shape == (BYTES,)
        assert (given.flags.writeable, made.flags.writeable) == (False, True)
        x, y = given.view(np.float32)[:SIZE], made.view(np.float32)[:SIZE]
        return lambda: work(x, y)

    return _core.callback_program([port], [{**port, "name": "y"}], bind), ["x"], ["y"], 0


def network(work: Work) -> Model:
    """y: what the program makes of relu(x); z: something that is computed meanwhile."""
    x = hx.input("x", (SIZE,))
    layout = layout_text(Layout((4,), BYTES))
    attrs = {"index": 0, "types": [type_text(x.type)], "layouts": [layout, layout]}
    y = Tensor(apply(OPS[PROGRAM], [hx.relu(x).value], attrs, ())[0])
    return compile_with_programs(hx.graph({"y": y, "z": hx.exp(x * 0.5), "last": y + x}), [program(work)])


def double(x: Array, y: Array) -> None:
    np.multiply(x, 2, out=y)


def test_it_is_called_in_every_run() -> None:
    net = network(double)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)
        found = net(x)
        np.testing.assert_array_equal(found["y"], 2 * np.maximum(x, 0))
        np.testing.assert_array_equal(found["last"], 2 * np.maximum(x, 0) + x)
        np.testing.assert_allclose(found["z"], np.exp(x * 0.5), rtol=1e-6)


def test_other_steps_run_meanwhile() -> None:
    steps = network(double).steps
    (at,) = [i for i, step in enumerate(steps) if step["kernel"] == "program"]
    assert steps[at]["waited"] > at + 1


def test_what_it_raises_is_the_error_of_the_call() -> None:
    def fails(x: Array, y: Array) -> None:
        if x[0] > 0:
            raise ValueError("nobody answers")
        double(x, y)

    net = network(fails)
    with pytest.raises(hx.Error, match="nobody answers"):
        net(np.ones(SIZE, np.float32))
    assert net(np.full(SIZE, -1, np.float32))["last"][0] == -1


def test_another_thread_may_fork_meanwhile() -> None:
    """A fork waits for runs, but not for one that waits for Python's lock, which the fork holds."""
    codes: list[int] = []

    def fork() -> None:
        if (child := os.fork()) == 0:
            os._exit(3)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    def work(x: Array, y: Array) -> None:
        thread = threading.Thread(target=fork, daemon=True)
        thread.start()
        thread.join(30)
        double(x, y)

    network(work)(np.ones(SIZE, np.float32))
    assert codes == [3]


def test_a_program_is_not_saved(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(hx.Error, match="functions of this process"):
        network(double).save(tmp_path_factory.mktemp("plan") / "net.hxp")


def test_the_function_goes_with_the_model() -> None:
    def work(x: Array, y: Array) -> None:
        double(x, y)

    gone = weakref.ref(work)
    net = network(work)
    net(np.ones(SIZE, np.float32))
    del net, work
    gc.collect()
    assert gone() is None

"""A process whose budget of compiles is spent has another one compile, and loads what the system then keeps."""

import ctypes as c
import os
import shutil
import signal
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from engines import stand_in_engine
from hexane import _core
from hexane.graph import Array
from hexane.runtime.compile_worker import CompileWorker
from hexane.runtime.kept_programs import compiled_program
from hexane.runtime.worker_process import WorkerProcess
from stand_in import FRAMEWORK, LIBRARY, forget_programs, kept_programs, programs_folder

BUDGET = 8
SUPPORT = Path(__file__).parents[1] / "support"
X = (np.arange(3 * 8 * 7).reshape(1, 3, 8, 7) % 5).astype(np.float32)


def program(before: str = "") -> str:
    """What the worker runs: with the stand-in, after some other lines."""
    lines = f"""
        import sys
        sys.path.insert(0, {str(SUPPORT)!r})
        import hexane.runtime.engine
        from engines import stand_in_engine
        from hexane.runtime.compile_worker_main import main
        engine = stand_in_engine()
        hexane.runtime.engine.find_engine = lambda chip: (engine, "")
        """
    return textwrap.dedent(lines) + before + "\nmain()"


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Callable[..., _core.Device]:
    """limited(n) is a device of which this process may still compile n programs."""

    def make(left: int, load_limit: int = 0) -> _core.Device:
        engine = stand_in_engine()
        monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _: (engine, ""))
        while engine.counters["compiled"] < BUDGET:  # what a worker may compile, too
            compiled(99, cache=False)
        forget_programs()
        now = engine.counters["compiled"] + engine.counters["compiles_in_loads"]
        setup = _core.AneSetup(
            library=str(LIBRARY),
            framework=str(FRAMEWORK),
            compile_limit=now + left,
            load_limit=load_limit,
            load_retry_ms=1,
        )
        device = _core.ane_device(setup)
        monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _: (device, ""))
        return device

    return make


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompileWorker]:
    made = CompileWorker(program())
    monkeypatch.setitem(compiled_program.__kwdefaults__, "worker", made)
    yield made
    made.close()
    for folder in programs_folder().glob("programs*"):  # of a worker that was killed
        shutil.rmtree(folder)


def process_of(worker: CompileWorker) -> "subprocess.Popen[bytes]":
    assert worker._worker is not None
    return worker._worker.process


def set_stand_in(**values: int) -> None:
    for name, value in values.items():
        c.CDLL(str(FRAMEWORK)).fake_ane_set(name.encode(), c.c_int64(value))


def weights(i: int) -> Array:
    return (np.arange(4 * 3 * 3 * 3).reshape(4, 3, 3, 3) % 3 - 1 + i).astype(np.float32)


def compiled(i: int, *, cache: bool = True) -> hx.Model:
    """The i-th network on the device, whose results are right."""
    graph = hx.graph({"y": hx.relu(hx.conv(hx.input("x", (1, 3, 8, 7)), weights(i), pad=1))})
    net, cpu = (
        hx.compile(graph, target="h13", device=hx.Device("ane", cache=cache)),
        hx.compile(graph, target="h13", device="cpu"),
    )
    np.testing.assert_array_equal(net(X), cpu(X))  # type: ignore[operator]
    assert isinstance(net, hx.Model)
    return net


def test_the_worker_takes_over_when_the_budget_is_spent(
    limited: Callable[..., _core.Device], worker: CompileWorker
) -> None:
    device = limited(2)
    models = [compiled(i) for i in range(5)]
    counters = device.counters
    assert counters["compiled"] + counters["compiles_in_loads"] == counters["compile_limit"]
    assert counters["loaded"] == len(models)
    assert len(kept_programs()) == 5


def test_a_worker_whose_own_budget_is_spent_is_replaced(
    limited: Callable[..., _core.Device], worker: CompileWorker
) -> None:
    limited(0)
    compiled(0)
    first = process_of(worker)
    worker._left = 0
    compiled(1)
    assert first.pid != process_of(worker).pid
    assert first.poll() == 0


def test_a_system_that_loads_only_its_own_is_named(limited: Callable[..., _core.Device], worker: CompileWorker) -> None:
    """Here the worker signs otherwise."""
    limited(0)
    worker.program = program(
        f"import ctypes; ctypes.CDLL({str(FRAMEWORK)!r}).fake_ane_set(b'identity', ctypes.c_int64(1))"
    )
    with pytest.raises(
        hx.DeviceError, match="this system does not load a program that another process compiled; start"
    ):
        compiled(0)


def test_what_the_worker_cannot_compile_is_an_error_with_its_parts(
    limited: Callable[..., _core.Device], worker: CompileWorker
) -> None:
    limited(0)
    fails = f"import ctypes; ctypes.CDLL({str(FRAMEWORK)!r}).fake_ane_set(b'compile_limit', ctypes.c_int64(0))"
    worker.program = program(fails)
    with pytest.raises(hx.DeviceError, match=r"says nothing \(in the process that compiles for this one\)") as error:
        compiled(0)
    assert (error.value.stage, error.value.code) == ("compile", 0)
    assert kept_programs() == []


@pytest.mark.parametrize(
    "lines",
    [pytest.param("import os; os._exit(3)", marks=pytest.mark.slow), "print('noise', flush=True); sys.exit(3)"],
)
def test_a_worker_that_ends_is_named_and_replaced(
    limited: Callable[..., _core.Device], worker: CompileWorker, lines: str
) -> None:
    limited(0)
    worker.program = program(lines)
    with pytest.raises(hx.DeviceError, match="the process that compiles for this one ended with 3"):
        compiled(0)
    worker.program = program("print('noise of a library')")
    compiled(0)


@pytest.mark.slow
def test_a_killed_worker_is_replaced(limited: Callable[..., _core.Device], worker: CompileWorker) -> None:
    limited(0)
    compiled(0)
    os.kill(process_of(worker).pid, signal.SIGKILL)
    with pytest.raises(hx.DeviceError, match="ended with -9"):
        compiled(1)
    compiled(1)


def test_too_many_loaded_programs_are_no_fault_of_the_cache(
    limited: Callable[..., _core.Device], worker: CompileWorker
) -> None:
    compiled_before = stand_in_engine().counters["loaded"]
    device = limited(5, load_limit=compiled_before + 1)
    kept = compiled(0)
    del kept
    first = compiled(1)
    with pytest.raises(hx.DeviceError, match="programs loaded, as many as the engine takes"):
        compiled(0)
    del first
    before = device.counters["compiled"]
    compiled(0)
    assert device.counters["compiled"] == before


@pytest.mark.slow
def test_a_worker_whose_answer_was_interrupted_is_not_asked_again(
    limited: Callable[..., _core.Device], worker: CompileWorker
) -> None:
    """The next caller got the old answer."""
    limited(0)
    compiled(0)
    first = process_of(worker)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkerProcess, "_answer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compiled(1)
    assert first.returncode == -signal.SIGKILL
    compiled(2)


@pytest.mark.slow
@pytest.mark.parametrize("lines", ["import time; time.sleep(60)", "stall"], ids=["reads nothing", "driver stalls"])
def test_a_worker_that_does_not_answer_is_given_up(
    limited: Callable[..., _core.Device], worker: CompileWorker, lines: str
) -> None:
    limited(0)
    stall = f"import ctypes; ctypes.CDLL({str(FRAMEWORK)!r}).fake_ane_set(b'stall_ms', ctypes.c_int64(60000))"
    worker.program = program(stall if lines == "stall" else lines)
    worker.limit = 0.5
    with pytest.raises(hx.DeviceError, match=r"the process that compiles for this one gave no answer within 0.5 s"):
        compiled(0)
    worker.program, worker.limit = program(), None
    compiled(0)


def test_a_worker_whose_driver_hangs_is_replaced(limited: Callable[..., _core.Device], worker: CompileWorker) -> None:
    """Its answer says so, but the next program would meet the same driver in the same process."""
    limited(0)
    worker.program = program(
        f"""
from hexane import _core
engine = _core.ane_device(_core.AneSetup(library={str(LIBRARY)!r}, framework={str(FRAMEWORK)!r}, compile_limit=0,
                                         load_limit=0, load_retry_ms=1, build_limit_ms=300))
import ctypes; ctypes.CDLL({str(FRAMEWORK)!r}).fake_ane_set(b'hang_compile_ms', ctypes.c_int64(60000))
"""
    )
    with pytest.raises(hx.DeviceError, match=r"has not come back within 0.3 s.*\(in the process that") as error:
        compiled(0)
    assert error.value.code == _core.NO_ANSWER
    worker.program = program()
    compiled(0)


CONFIG = hx.train.LlamaConfig(vocab=61, dim=32, hidden=48, layers=2, heads=4, kv_heads=2, seq=16)


def trained(folder: Path) -> tuple[dict[str, Array], list[float], float]:
    """The states after 4 batches on the device, their losses, and an evaluation."""
    model = hx.train.llama(CONFIG, seed=1)
    made = hx.train.Trainer(
        model.loss, list(model.params.values()), hx.train.adamw(1e-2), folder=folder, programs=True,
        options=hx.Options(target="h13"), threads=1, loss_scale=256.0,
    )  # fmt: skip
    assert made.net.is_on_engine
    rows = np.random.default_rng(0).integers(0, CONFIG.vocab, (4, 1, CONFIG.seq + 1)).astype(np.int32)
    batches = [{"tokens": row[:, :-1], "labels": row[:, 1:]} for row in rows]
    losses = [one["loss"] for one in made.fit(batches, len(batches), progress=False)]
    states = {name: made.net.read_state(name) for name in made.net.state_names}
    return states, losses, made.evaluate(batches)["loss"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
def test_a_training_needs_more_compiles_than_three_processes_may_do(
    limited: Callable[..., _core.Device],
    worker: CompileWorker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its weights are those of a training without a limit, bit for bit."""
    limited(1 << 20)
    states, losses, evaluated = trained(tmp_path / "free")
    device = limited(1)  # and nothing is kept from before
    ready, workers = worker._ready, set()

    def of_two(_: int) -> WorkerProcess:
        made = ready(2)
        workers.add(made.process.pid)
        return made

    monkeypatch.setattr(worker, "_ready", of_two)
    again, same_losses, same_evaluation = trained(tmp_path / "limited")
    assert device.counters["compiled"] + device.counters["compiles_in_loads"] == device.counters["compile_limit"]
    assert len(workers) >= 3
    assert (same_losses, same_evaluation) == (losses, evaluated)
    assert states.keys() == again.keys()
    for name, array in states.items():
        assert again[name].tobytes() == array.tobytes(), name

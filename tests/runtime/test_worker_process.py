"""Workers that hang, end, answer nonsense or are interrupted: each request gets its own answer or an error, within its
limit."""

import gc
import linecache
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from hexane.errors import DeviceError
from hexane.runtime import compile_worker, worker_process
from hexane.runtime.compile_worker import CompileWorker

pytestmark = pytest.mark.usefixtures("young")

# Refuses each program with its own text, after what the text says: "sleep 2".
ECHO = """
import json, os, sys, time
def answer(line):
    os.write(int(sys.argv[1]), line)
{before}
while line := sys.stdin.buffer.readline():
    request = json.loads(line)
    for size in request["weights"].values():
        sys.stdin.buffer.read(size)
    if request["text"].startswith("sleep"):
        time.sleep(float(request["text"].split()[1]))
    given = {{"number": request["number"], "error": request["text"], "stage": "compile", "code": 0, "hint": ""}}
    answer(json.dumps(given).encode() + b"\\n")
    {after}
"""
HANG = "sleep 60"
LIMIT = 1.0


def echo(before: str = "", after: str = "pass", limit: float = 20) -> CompileWorker:
    return CompileWorker(ECHO.format(before=before, after=after), limit)


@pytest.fixture
def worker() -> Iterator[CompileWorker]:
    made = echo()
    yield made
    made.close()


def answer(worker: CompileWorker, text: str, weights: bytes = b"weights") -> str:
    """What the worker says of the program."""
    with pytest.raises(DeviceError) as error:
        worker.compile("h13", text, {"w": weights}, 21, 1000)
    return str(error.value).removesuffix(" (in the process that compiles for this one)")


def descriptors_before() -> set[str]:
    """Those that are open when a test begins; what earlier tests left to the collector is none of its affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    return descriptors()


def descriptors() -> set[str]:
    gc.collect()
    return set(os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd"))


def process_of(worker: CompileWorker) -> "subprocess.Popen[bytes]":
    assert worker._worker is not None
    return worker._worker.process


class Interrupt:
    """Raises KeyboardInterrupt in front of the n-th line that runs of the two modules."""

    FILES = (compile_worker.__file__, worker_process.__file__)

    def __init__(self, n: int) -> None:
        self.left, self.done = n, False
        self.inside: set[tuple[FrameType, int]] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> "Interrupt | None":
        if frame.f_code.co_filename not in self.FILES:
            return None
        if event == "line" and not self._leaves_with(frame):
            self.left -= 1
            if self.left == 0:
                self.done = True
                raise KeyboardInterrupt
        return self

    def _leaves_with(self, frame: FrameType) -> bool:
        """Python takes no signal between the block of a `with` statement and its end, for which it runs that line
        again."""
        place = frame, frame.f_lineno
        again = place in self.inside
        self.inside.add(place)
        return again and linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip().startswith("with ")


@pytest.mark.parametrize("apart", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_request_leaves_its_answer_to_nobody(worker: CompileWorker, apart: int) -> None:
    """Wherever it is interrupted, in the first request of a worker and in a later one."""
    for first in (True, False):
        for n in range(1, 200, apart):
            if first:
                worker.close()
            else:
                answer(worker, "idle")
            interrupt = Interrupt(n)
            sys.settrace(interrupt)
            try:
                answer(worker, f"interrupted {n}")
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            assert answer(worker, f"next {n}") == f"next {n}"
            if not interrupt.done:
                break
        assert 20 < n < 200


def test_a_late_answer_is_no_answer_to_the_next_request() -> None:
    worker = echo(after='time.sleep(0.1); answer(json.dumps(given).encode() + b"\\n")')
    assert answer(worker, "one") == "one"
    assert "need one line of JSON with the number 2" in answer(worker, "two")
    assert answer(worker, "three") == "three"
    worker.close()


@pytest.mark.parametrize("line", [b"words\n", b"[1]\n", b"{}\n", b'{"number": 0}\n', b'{"number": "1"}\n', b"\xff\n"])
def test_an_answer_to_no_request_is_an_error_and_the_worker_is_replaced(line: bytes) -> None:
    worker = echo(before=f"answer({line!r}); time.sleep(60)")
    assert f"gave the answer {line!r}, need one line of JSON with the number 1" in answer(worker, "one")
    assert worker._worker is not None
    worker.program = ECHO.format(before="", after="pass")
    assert answer(worker, "two") == "two"
    worker.close()


def test_a_worker_that_does_not_answer_is_replaced() -> None:
    """Nothing of it is left: no process, no pipe."""
    before = descriptors_before()
    worker = echo(limit=LIMIT)
    for _ in range(3):
        assert answer(worker, "one") == "one"
        process = process_of(worker)
        started = time.monotonic()
        assert (
            answer(worker, HANG, b"12345")
            == f"[device compile] the process that compiles for this one gave no answer within {LIMIT:g} s; it was asked for a"
            " program of 8 characters and 5 bytes of weights for h13; the next program gets a new one"
        )
        assert time.monotonic() - started < 10 * LIMIT
        assert process.returncode == -signal.SIGKILL
        with pytest.raises(ChildProcessError):
            os.waitpid(process.pid, 0)
    worker.close()
    assert descriptors() == before


def test_a_worker_that_reads_nothing_is_replaced() -> None:
    worker = echo(before="time.sleep(60)", limit=LIMIT)
    assert f"read no request within {LIMIT:g} s" in answer(worker, "one", bytes(1 << 20))
    worker.program = ECHO.format(before="", after="pass")
    assert answer(worker, "two", bytes(1 << 20)) == "two"
    worker.close()


def test_a_pipe_that_another_process_holds_open_keeps_nobody_waiting() -> None:
    worker = echo(
        before="import subprocess; other = subprocess.Popen(['sleep', '3'], pass_fds=[int(sys.argv[1])]); os._exit(3)",
        limit=LIMIT,
    )
    started = time.monotonic()
    assert f"gave no answer within {LIMIT:g} s" in answer(worker, "one")
    assert time.monotonic() - started < 10 * LIMIT
    worker.close()


def test_a_worker_that_cannot_be_started_is_an_error(worker: CompileWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    before = descriptors_before()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "cannot be started: [Errno 2] No such file or directory: '/nowhere/python'" in answer(worker, "one")
    assert descriptors() == before
    monkeypatch.undo()
    assert answer(worker, "two") == "two"


def test_threads_get_their_own_answers_and_one_that_hangs_harms_no_other() -> None:
    worker = echo(limit=4 * LIMIT)
    got: dict[str, str] = {}

    def ask(texts: list[str]) -> None:
        got.update({text: answer(worker, text) for text in texts})

    texts = [[f"{thread} {i}" for i in range(25)] for thread in range(6)]
    texts[0].insert(10, HANG)
    threads = [threading.Thread(target=ask, args=(some,)) for some in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "gave no answer" in got.pop(HANG)
    assert got == {text: text for some in texts for text in some if text != HANG}
    worker.close()


def test_close_ends_a_request_of_another_thread(worker: CompileWorker) -> None:
    assert answer(worker, "one") == "one"
    got: list[str] = []
    thread = threading.Thread(target=lambda: got.append(answer(worker, HANG)))
    thread.start()
    while process_of(worker) and worker._worker is not None and worker._worker.is_idle:
        time.sleep(0.01)
    worker.close()
    thread.join(10)
    assert "ended with -9" in got[0]
    assert answer(worker, "two") == "two"


def in_another_process(lines: str) -> "subprocess.Popen[str]":
    """Python with this module as `t`."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", f"import os, signal, sys, threading, time, test_worker_process as t\n{lines}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
    )


def test_the_interrupt_of_a_terminal_does_not_end_the_worker() -> None:
    """Ctrl-C goes to all processes of a group."""
    lines = """
signal.signal(signal.SIGINT, lambda *_: None)
worker = t.echo()
print(t.answer(worker, "one"), flush=True)
sys.stdin.readline()
print(t.answer(worker, "two"), flush=True)
"""
    other = in_another_process(lines)
    assert other.stdout is not None
    assert other.stdout.readline() == "one\n"
    os.killpg(other.pid, signal.SIGINT)
    time.sleep(0.2)
    assert other.communicate("\n", timeout=30)[0] == "two\n"


def test_a_process_that_ends_waits_for_no_answer() -> None:
    lines = """
worker = t.echo()
t.answer(worker, "one")
print(t.process_of(worker).pid, flush=True)
threading.Thread(target=t.answer, args=(worker, t.HANG), daemon=True).start()
while worker._worker.is_idle:
    time.sleep(0.01)
"""
    other = in_another_process(lines)
    started = time.monotonic()
    pid = int(other.communicate(timeout=30)[0])
    assert time.monotonic() - started < 15
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def in_a_fork(call: Callable[[], bool]) -> bool:
    """Whether the call is true in a child, which has 20 s."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        done = 1
        try:
            done = 0 if call() else 1
        finally:
            os._exit(done)
    return os.waitpid(pid, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_request_has_no_part_in_it(worker: CompileWorker) -> None:
    """The child waits for no lock of a thread that it lacks, and asks a worker of its own."""
    answer(worker, "one")
    got: list[str] = []
    thread = threading.Thread(target=lambda: got.append(answer(worker, "sleep 0.5")))
    thread.start()
    while worker._worker is not None and worker._worker.is_idle:
        time.sleep(0.01)
    assert in_a_fork(lambda: answer(worker, "child") == "child")
    thread.join()
    assert got == ["sleep 0.5"]
    assert answer(worker, "two") == "two"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_worker_ends_with_its_parent_though_a_fork_lives_on(worker: CompileWorker) -> None:
    answer(worker, "one")
    process = process_of(worker)
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        signal.pause()
    started = time.monotonic()
    worker.close()
    assert process.returncode == 0
    assert time.monotonic() - started < 5
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

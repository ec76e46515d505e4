"""A process that compiles programs for a process that has used up its compilations. macOS caches programs for both
processes.

    request   {"chip", "text", "weights": {name: number of bytes}, "qos"}, then the bytes of the weights
    answer    {}, or for a program that does not compile {"error", "stage", "code", "hint"}

For the transport see `worker_process.py`. A worker whose answer was not read completely gets no further requests.
"""

import atexit
import sys
from collections.abc import Mapping
from threading import Lock
from typing import Any
from weakref import WeakSet

from hexane import _core
from hexane.errors import DeviceError
from hexane.runtime.worker_process import END, WorkerError, WorkerProcess
from hexane.system.forks import at_fork
from hexane.targets.dispatch import dispatch

PROGRAM = "from hexane.runtime.compile_worker_main import main; main()"


class CompileWorker:
    """The worker of this process, started on first use. Threads take turns."""

    def __init__(self, program: str = PROGRAM, limit: float | None = None) -> None:
        """limit: seconds for a program; None: the engine's limits for compiling and loading, plus a margin."""
        self.program = program
        self.limit = limit
        self._turn = Lock()
        self._worker: WorkerProcess | None = None
        self._left = 0  # programs that the worker may still compile
        _all.add(self)

    def compile(self, chip: str, text: str, weights: Mapping[str, bytes], qos: int, budget: int) -> None:
        """Compiles a program in the worker. budget: how many programs a process may compile.

        Raises DeviceError if the worker cannot compile the program, ends, takes longer than its limit or cannot be
        started.
        """
        head = {
            "chip": chip,
            "text": text,
            "weights": {name: len(data) for name, data in weights.items()},
            "qos": qos,
        }
        with self._turn:
            answer = self._asked(head, weights, budget)
        if "error" in answer:
            raise DeviceError(
                f"{answer['error']} (in the process that compiles for this one)",
                answer["stage"],
                answer["code"],
                answer["hint"],
            )

    def close(self) -> None:
        """Ends the worker, if there is one. A thread that waits for its answer gets an error."""
        if self._turn.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._turn.release()
        elif (worker := self._worker) is not None:
            worker.kill()

    def _asked(self, head: Mapping[str, Any], weights: Mapping[str, bytes], budget: int) -> dict[str, Any]:
        limit = 2 * dispatch().build_limit_ms / 1000 + END if self.limit is None else self.limit
        try:
            worker = self._ready(budget)
            self._left -= 1
            answer = worker.ask(head, weights.values(), limit)
            if answer.get("code") == _core.NO_ANSWER:
                self._left = 0  # the driver hangs in the worker: the next program gets another worker
            return answer
        except WorkerError as error:
            hint = "the next program gets a new one"
            raise DeviceError(
                f"[device compile] the process that compiles for this one {error}; it was asked for a program of "
                f"{len(head['text'])} characters and {sum(map(len, weights.values()))} bytes of weights for "
                f"{head['chip']}; {hint}",
                "compile",
                hint=hint,
            ) from None

    def _ready(self, budget: int) -> WorkerProcess:
        """Returns an idle worker that may compile one more program."""
        if self._worker is not None and self._worker.is_idle and self._left:
            return self._worker
        self._end()
        if not sys.executable:
            raise DeviceError("[device compile] got no path of Python, need one to start a process", "compile")
        self._worker, self._left = WorkerProcess(self.program), budget
        atexit.unregister(self.close)
        atexit.register(self.close)
        return self._worker

    def _end(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None and worker.is_idle:
            worker.end()
        elif worker is not None:
            worker.kill()
            worker.let_go()


_all: "WeakSet[CompileWorker]" = WeakSet()


def _after_fork() -> None:
    """Detaches a forked child from its parent's worker: a worker ends once all processes have closed its pipe. The
    child also has none of the threads that may hold the lock."""
    for each in list(_all):
        each._turn = Lock()
        worker, each._worker = each._worker, None
        if worker is not None:
            worker.let_go()


at_fork(after_in_child=_after_fork)
WORKER = CompileWorker()

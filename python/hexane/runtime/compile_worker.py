"""A process that compiles programs for one that may not compile more, and leaves them in the cache for it.

    parent -> worker   a line of JSON: {"number", "chip", "text", "weights": {name: bytes}, "qos", "folder", "limit"}, then the bytes of the weights
    worker -> parent   a line of JSON: {"number"}, and of what failed {"number", "error", "stage", "code", "hint"}

The one way is stdin, the other a pipe whose number is the argument. The worker ends when stdin does: with its parent, or because its own
budget is spent. A worker whose answer was not read to its end, for whatever reason, is not asked again.
"""

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Timer
from typing import Any, BinaryIO

from hexane.errors import DeviceError, Error
from hexane.runtime.cache import Cache
from hexane.targets.dispatch import dispatch

PATIENCE = 10  # seconds, for a worker that was told to end
PROGRAM = "from hexane.runtime.compile_worker import main; main()"


class CompileWorker:
    """The worker of this process, which is started when it is needed. Threads take turns."""

    def __init__(self, program: str = PROGRAM, limit: float | None = None) -> None:
        """limit: seconds for a program; None for as long as the engine may take to compile and load it, and some more."""
        self.program = program
        self.limit = limit
        self._number = 0  # of the last request
        self._turn = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: BinaryIO | None = None
        self._owner = 0  # the process that started it: a fork has no worker
        self._left = 0  # programs that it may still compile

    def compile(self, chip: str, text: str, weights: Mapping[str, bytes], qos: int, cache: Cache, budget: int) -> None:
        """Has a program compiled, and kept in the cache. budget: how many programs a process may compile.

        Raises DeviceError for what the worker cannot compile, and if it ends, takes longer than its limit or cannot be started.
        """
        head = {
            "chip": chip,
            "text": text,
            "weights": {name: len(data) for name, data in weights.items()},
            "qos": qos,
            "folder": os.fspath(cache.folder.absolute()),
            "limit": cache.limit,
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
        """Ends the worker, if there is one."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        with suppress(OSError):  # the worker has ended before
            if process.stdin is not None:
                process.stdin.close()
        if self._answers is not None:
            self._answers.close()
        _ended(process)

    def _asked(self, head: Mapping[str, Any], weights: Mapping[str, bytes], budget: int) -> dict[str, Any]:
        if self._process is None or self._owner != os.getpid() or not self._left:
            self._start(budget)
        process = self._process
        assert process is not None
        self._left -= 1
        self._number += 1
        limit = self._seconds()
        late = Event()

        def give_up() -> None:
            late.set()
            process.kill()

        timer = Timer(limit, give_up)
        timer.daemon = True
        timer.start()
        try:
            line = self._answer({"number": self._number, **head}, weights)
        except BaseException:
            process.kill()  # an answer may be on its way, which is not the next caller's
            self.close()
            raise
        finally:
            timer.cancel()
        if not line.endswith(b"\n"):
            code = _ended(process)
            self.close()
            what = f"took longer than {limit:g} s" if late.is_set() else f"ended with {code}"
            raise DeviceError(f"[device compile] the process that compiles for this one {what}", "compile")
        answer: dict[str, Any] = json.loads(line)
        if answer["number"] != self._number:
            process.kill()
            self.close()
            words = f"got answer {answer['number']}, need {self._number}"
            raise DeviceError(f"[device compile] the process that compiles for this one: {words}", "compile")
        return answer

    def _answer(self, head: Mapping[str, Any], weights: Mapping[str, bytes]) -> bytes:
        """The line that the worker answers a request with; without its end where the worker ended."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._answers is not None
        try:
            self._process.stdin.write(json.dumps(head).encode() + b"\n")
            for data in weights.values():
                self._process.stdin.write(data)
            self._process.stdin.flush()
            return self._answers.readline()
        except OSError:
            return b""

    def _seconds(self) -> float:
        return 2 * dispatch().build_limit_ms / 1000 + PATIENCE if self.limit is None else self.limit

    def _start(self, budget: int) -> None:
        self.close()
        if not sys.executable:
            raise DeviceError("[device compile] got no path of Python, need one to start a process", "compile")
        answers, given = os.pipe()
        self._answers = os.fdopen(answers, "rb")
        command = [sys.executable, "-c", self.program, str(given)]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(given,)
            )
        finally:
            os.close(given)
        self._owner, self._left = os.getpid(), budget
        atexit.unregister(self.close)
        atexit.register(self.close)


def _ended(process: subprocess.Popen[bytes]) -> int:
    """The code with which it ends; it is killed if it does not."""
    try:
        return process.wait(PATIENCE)
    except subprocess.TimeoutExpired:  # it has let go of the pipe, and does something else
        process.kill()
        return process.wait()


WORKER = CompileWorker()


def main() -> None:
    """The worker: compiles what stdin brings until it ends."""
    from hexane.runtime.engine import find_engine
    from hexane.runtime.kept_programs import compiled_program

    answers = os.fdopen(int(sys.argv[1]), "wb")
    while line := sys.stdin.buffer.readline():
        head = json.loads(line)
        weights = {name: _taken(sys.stdin.buffer, size) for name, size in head["weights"].items()}
        answer: dict[str, Any] = {"number": head["number"]}
        try:
            device, missing = find_engine(head["chip"])
            if device is None:
                raise Error(f"[device open] {missing}")
            cache = Cache(Path(head["folder"]), head["limit"])
            compiled_program(device, head["chip"], head["text"], weights, head["qos"], cache, worker=None)
        except Error as error:
            parts = (error.stage, error.code, error.hint) if isinstance(error, DeviceError) else ("open", 0, "")
            answer |= {"error": str(error), **dict(zip(("stage", "code", "hint"), parts, strict=True))}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _taken(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        sys.exit(1)  # the parent ended
    return data

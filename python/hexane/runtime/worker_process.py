"""A process that answers numbered requests, each within a time limit.

    parent -> worker   a line of JSON with "number", and the bytes that it announces; the end of the pipe ends the worker
    worker -> parent   a line of JSON with the number of its request

Requests go to stdin. Answers come through another pipe, whose number is the argument of the worker's program: libraries
print on stdout. Every wait has a limit: a worker may hang in a driver, and other processes may hold an end of a pipe.
"""  # noqa: E501

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from select import POLLIN, POLLOUT, poll
from typing import IO, Any

END = 10.0  # seconds until a worker must have ended
CHUNK = 1 << 16


class WorkerError(Exception):
    """Raised if a worker gave no answer. The error's text follows the words "the process", such as "ended with 3"."""


class WorkerProcess:
    """One worker, for one thread at a time. is_idle: the worker has had no request, or its last answer was read
    completely. A worker that is not idle must get no request: the answer to an interrupted request may still arrive."""

    def __init__(self, program: str) -> None:
        """program: the source of a Python program. Raises WorkerError if no process can be started."""
        self.is_idle = True
        self._number = 0  # number of the last request
        reader, given = os.pipe()
        self._answers: IO[bytes] = os.fdopen(reader, "rb", buffering=0)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, str(given)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(given,),
                bufsize=0,  # A forked child would write a buffered copy again.
                start_new_session=True,  # Ctrl-C in a terminal then reaches the parent only
            )
        except BaseException as error:
            self._answers.close()
            if isinstance(error, OSError):
                raise WorkerError(f"cannot be started: {error}") from None
            raise
        finally:
            os.close(given)
        assert self.process.stdin is not None
        self._requests = self.process.stdin
        os.set_blocking(self._requests.fileno(), False)

    def ask(self, request: Mapping[str, Any], parts: Iterable[bytes], seconds: float) -> dict[str, Any]:
        """Returns the answer to this request, never the answer to an earlier request. parts: the bytes that follow the
        request.

        seconds: the limit for the worker to read the next bytes, and then to answer. Raises WorkerError if it gives no
        answer. After any exception the worker has been killed.
        """
        self.is_idle = False
        self._number += 1
        try:
            self._send(json.dumps({**request, "number": self._number}).encode() + b"\n", seconds)
            for part in parts:
                self._send(part, seconds)
            answer = self._answer(seconds)
        except BaseException:
            try:
                self.kill()
            finally:
                self.let_go()
            raise
        self.is_idle = True
        return answer

    def end(self) -> None:
        """Waits for the worker to end, and kills it after a limit."""
        self._requests.close()
        try:
            self.process.wait(END)
        except subprocess.TimeoutExpired:
            self.kill()
        finally:
            self.let_go()

    def kill(self) -> None:
        """Kills the worker, and waits for its end. A thread that waits for its answer gets an error."""
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # a driver blocks the worker: subprocess reaps it later
            self.process.wait(END)

    def let_go(self) -> None:
        """Closes this process's ends of the pipes."""
        self._requests.close()
        self._answers.close()

    def _send(self, data: bytes, seconds: float) -> None:
        left = memoryview(data)
        while left:
            self._wait(self._requests, POLLOUT, time.monotonic() + seconds, f"read no request within {seconds:g} s")
            with suppress(BlockingIOError):
                try:
                    left = left[os.write(self._requests.fileno(), left) :]
                except BrokenPipeError:
                    raise self._ended() from None

    def _answer(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        line = b""
        while not line.endswith(b"\n"):
            self._wait(self._answers, POLLIN, end, f"gave no answer within {seconds:g} s")
            part = os.read(self._answers.fileno(), CHUNK)
            if not part:
                raise self._ended()
            line += part
        with suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict) and answer.get("number") == self._number:
                return answer
        raise WorkerError(f"gave the answer {line[:80]!r}, need one line of JSON with the number {self._number}")

    def _ended(self) -> WorkerError:
        """Returns the error for a worker that has closed its end of a pipe."""
        self.end()
        return WorkerError(f"ended with {self.process.returncode}")

    def _wait(self, file: IO[bytes], event: int, end: float, late: str) -> None:
        """Waits until the pipe can be read or written. Raises WorkerError(late) at the time `end`."""
        waiting = poll()
        waiting.register(file, event)
        if not waiting.poll(max(end - time.monotonic(), 0) * 1000):
            raise WorkerError(late)

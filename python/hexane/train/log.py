"""The log of a training run: one line of JSON per batch, in order."""

import json
import os
from collections import deque
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any

from hexane.errors import Error


class Log:
    """A file to which lines are appended without buffering.

    calls: the number of finished batches. On resuming, lines of later batches, and an incomplete last line, are
    removed.

    Raises Error if the file is no log, and if it cannot be written to.
    """

    def __init__(self, path: Path, calls: int) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
            try:
                os.ftruncate(self._file.fileno(), _kept(path, calls))
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise self._error(error) from None

    def write(self, entry: Mapping[str, Any]) -> None:
        """Appends a line. Numbers that are not finite become null. Raises Error if the write fails, as on a full
        disk."""
        named = {
            name: None if isinstance(value, float) and not isfinite(value) else value for name, value in entry.items()
        }
        line = memoryview(json.dumps(named).encode() + b"\n")
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise self._error(error) from None

    def __enter__(self) -> "Log":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def _error(self, error: OSError) -> Error:
        return Error(f"[train.fit] {self.path}: {error.strerror}, need a place that can be written to")


def last_entries(path: Path, count: int) -> list[dict[str, Any]]:
    """Returns at most this many entries from the end of a log, in order. Raises Error for a file that is no log."""
    try:
        with path.open("rb") as file:
            return [dict(json.loads(line)) for line in deque(file, maxlen=count)]
    except (OSError, ValueError, TypeError):
        raise Error(f"[train] {path}: got no entry of a training, need a log") from None


def _kept(path: Path, calls: int) -> int:
    """Returns the size in bytes of the lines before batch `calls`."""
    size = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not calls or not line.endswith(b"\n"):
                break
            try:
                call = json.loads(line)["call"]
            except (ValueError, TypeError, KeyError):
                call = None
            if not isinstance(call, int):
                raise Error(f"[train.fit] {path}: line {number}: got no entry of a training, need a log, or no file")
            if call >= calls:
                break
            size += len(line)
    return size

"""The log of a training: a line of JSON for each batch, in order, of one run."""

import json
import os
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any

from hexane.errors import Error


class Log:
    """A file of lines that is written to at its end, each line at once.

    calls: the batches that are done. Lines of later ones, which a run wrote after the checkpoint that this one goes on
    from, are cut off, and so is a line that was not written to its end.

    Raises Error for a file that is no log, and for a place that cannot be written to.
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
        """Numbers that are not finite are null. Raises Error where the line does not fit on the disk."""
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


def last_entry(path: Path) -> dict[str, Any]:
    """The last entry of a log, empty where there is none. Raises Error for a file that is no log."""
    last = b"{}"
    try:
        with path.open("rb") as file:
            for line in file:
                last = line
        return dict(json.loads(last))
    except (OSError, ValueError, TypeError):
        raise Error(f"[train] {path}: got no entry of a training, need a log") from None


def _kept(path: Path, calls: int) -> int:
    """The bytes of the lines before batch `calls`."""
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

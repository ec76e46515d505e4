"""The log of a run as columns of numbers, readable while the job still writes it."""

import json
import os
from array import array
from collections import deque
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any, BinaryIO

from hexane.errors import Error
from hexane.importers.files import open_regular

COLUMNS = ("step", "loss", "lr", "norm", "ms", "tokens", "tflops", "of_peak", "memory", "compiles_left")
GROUPS = ("ms.", "mw.")  # Prefixes of optional columns: times by lane, and power.
MOST_GROUPED = 32  # The most optional columns.
EVALUATION = "evaluation."
SAMPLE = "sample"
MOST_SAMPLES = 5  # Only the last samples are kept.
MOST_LINE = 1 << 20  # The most bytes of a line.
MOST_CALL = 1 << 53
MOST = 1e150  # Larger numbers in a log are an error: sums of their squares could overflow.
NEED = "need a log that `hexane train` wrote"


class RunLog:
    """The contents of `log.jsonl`. calls: the numbers of the batches; columns: the other fields by name, nan for null
    and for missing fields; a field of `GROUPS` has a column only if some entry has the field. evaluations: a batch and
    its metrics by name; samples: a batch and the text generated after it, None if there was no text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._clear()

    def _clear(self) -> None:
        self.calls = array("q")
        self.columns = {name: array("d") for name in COLUMNS}
        self.evaluations: list[tuple[int, dict[str, float]]] = []
        self.samples: deque[tuple[int, str | None]] = deque(maxlen=MOST_SAMPLES)
        self._end, self._last = 0, b""

    def read(self) -> bool:
        """Reads the lines added since the last call. Returns True if anything changed.

        A last line without a newline is still being written: the next call reads it. A run that resumes from a
        checkpoint cuts its log: the log is then read from its beginning. Raises Error if the file is no log of a
        training.
        """
        with os.fdopen(open_regular(self.path, f"[dashboard] {self.path}", "log of a training"), "rb") as file:
            is_cut = not self._goes_on(file)
            if is_cut:
                self._clear()
            begin = self._end
            file.seek(begin)
            while (line := file.readline(MOST_LINE)).endswith(b"\n"):
                self._add(line)
            if len(line) == MOST_LINE:
                raise self._error(f"got more than {MOST_LINE} bytes, {NEED}")
        return is_cut or self._end > begin

    def _goes_on(self, file: BinaryIO) -> bool:
        """True if the last line read is still at its place in the file."""
        file.seek(self._end - len(self._last))
        return file.read(len(self._last)) == self._last

    def _add(self, line: bytes) -> None:
        try:
            entry = json.loads(line.decode())
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict):
            raise self._error(f"got no entry of a training, {NEED}")
        call = entry.get("call")
        if isinstance(call, bool) or not isinstance(call, int) or not 0 <= call < MOST_CALL:
            raise self._error(f"got no entry of a training, {NEED}")
        if self.calls and call <= self.calls[-1]:
            raise self._error(f"got batch {call} after batch {self.calls[-1]}, need batches in order")
        numbers = {name: self._number(name, entry.get(name)) for name in self.columns}
        numbers |= {
            name: self._number(name, value)
            for name, value in entry.items()
            if name.startswith(GROUPS) and name not in numbers
        }
        if len(numbers) > len(COLUMNS) + MOST_GROUPED:
            raise self._error(f"got more than {MOST_GROUPED} times and powers, {NEED}")
        metrics = {
            name.removeprefix(EVALUATION): self._number(name, value)
            for name, value in entry.items()
            if name.startswith(EVALUATION)
        }
        sample = entry.get(SAMPLE)
        if not isinstance(sample, str | None):
            raise self._error(f"{SAMPLE!a}: got {type(sample).__name__}, need a text or null")
        for name, number in numbers.items():
            if name not in self.columns:
                self.columns[name] = array("d", [nan]) * len(self.calls)
            self.columns[name].append(number)
        self.calls.append(call)
        if metrics:
            self.evaluations.append((call, metrics))
        if SAMPLE in entry:
            # JSON can contain a lone surrogate, which cannot be printed.
            self.samples.append((call, sample and sample.encode("utf-8", "replace").decode()))
        self._end, self._last = self._end + len(line), line

    def _number(self, name: str, value: Any) -> float:
        if type(value) is float and -MOST <= value <= MOST:
            return value
        if value is None:
            return nan
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._error(f"{name!a}: got {type(value).__name__}, need a number or null")
        if abs(value) > MOST and value not in (inf, -inf):
            raise self._error(f"{name!a}: got a number beyond {MOST:g}, need the numbers of a training")
        return float(value) if isfinite(value) else nan

    def _error(self, what: str) -> Error:
        return Error(f"[dashboard] {self.path}: line {len(self.calls) + 1}: {what}")

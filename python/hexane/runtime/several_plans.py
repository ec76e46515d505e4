"""Files of several plans: the functions of a model, or the sets of shapes of an open model. Equal weights are stored
once.

    MAGIC | bytes of the header, uint64 | XXH64 of all that follows | header, JSON | data, on a boundary of 64 bytes

The header has `plans`: for each its sections (offset and bytes in the data), and its weights as pieces (offset in the
section, bytes, offset in the data). Zeros at the end of a piece may be omitted.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from hexane import _core
from hexane.errors import Error
from hexane.graph import Array
from hexane.sources import PLANS_MAGIC

ALIGNMENT = 64
VERSION = 1
_HEAD = len(PLANS_MAGIC) + 16


class Writer:
    """Assembles a file of several plans, plan by plan. about: further entries of the header."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self._header: dict[str, Any] = {"version": VERSION, **about, "plans": []}
        self._data: list[bytes | memoryview] = []
        self._size = 0
        self._known: dict[bytes, int] = {}  # offsets of contents in the data, by hash

    def add(self, plan: bytes, about: Mapping[str, Any]) -> None:
        """Adds a plan from `Program.plan_bytes`. about: further entries of its row."""
        sections = _core.plan_read(plan)
        weights = sections.pop("weights").view(np.uint8)
        rows = {name: [self._keep(array.view(np.uint8).data), array.nbytes] for name, array in sections.items()}
        pieces = [[at, len(data), self._keep(data)] for at, data in _pieces(sections, weights)]
        entry = {**about, "sections": rows, "weights": {"bytes": weights.nbytes, "pieces": pieces}}
        self._header["plans"].append(entry)

    def pieces(self) -> list[bytes | memoryview]:
        """Returns the parts of the file in order."""
        text = json.dumps(self._header).encode()
        text += b" " * (-(_HEAD + len(text)) % ALIGNMENT)
        checksum = _core.xxh64(b"".join([text, *self._data]))
        return [PLANS_MAGIC, len(text).to_bytes(8, "little"), checksum.to_bytes(8, "little"), text, *self._data]

    def _keep(self, data: memoryview) -> int:
        if not len(data):
            return 0
        key = _core.hash128(data)
        if key not in self._known:
            self._known[key] = self._size
            gap = -len(data) % ALIGNMENT
            self._data += [data, bytes(gap)]
            self._size += len(data) + gap
        return self._known[key]


def _pieces(sections: Mapping[str, Array], weights: Array) -> list[tuple[int, memoryview]]:
    """Splits the weights where tensors begin. Trailing zeros in a piece's last 4096 bytes are left out."""
    strings = sections["strings"].tobytes()
    spaces = [strings[at : strings.index(0, at)] for at in sections["spaces"]["kind"].tolist()]
    rows = sections["tensors"]
    begins = {at for space, at in zip(rows["space"].tolist(), rows["offset"].tolist(), strict=True)
              if spaces[space] == b"weights" and at < weights.nbytes}  # fmt: skip
    edges = [*sorted(begins | {0}), weights.nbytes]
    result = []
    for begin, end in pairwise(edges):
        tail = max(begin, end - 4096)
        filled = np.flatnonzero(weights[tail:end])
        last = tail + int(filled[-1]) + 1 if filled.size else tail
        if last > begin:
            result.append((begin, weights[begin:last].data))
    return result


class Reader:
    """Reads a file of Writer. Raises Error for a damaged file."""

    def __init__(self, data: bytes, where: str) -> None:
        """where: the prefix of error messages."""
        self._where = where
        if not data.startswith(PLANS_MAGIC):
            raise self._damaged("no file of several plans")
        if len(data) < _HEAD:
            raise self._damaged(f"{len(data)} bytes, which end in the header")
        size, checksum = (
            int.from_bytes(data[at : at + 8], "little") for at in (len(PLANS_MAGIC), len(PLANS_MAGIC) + 8)
        )
        rest = memoryview(data)[_HEAD:]
        if size > len(rest):
            raise self._damaged(f"{len(data)} bytes, of which the header alone is {size}")
        if _core.xxh64(rest) != checksum:
            raise self._damaged("bytes of another checksum")
        self._data = np.frombuffer(rest[size:], np.uint8)
        try:
            self.about: Any = json.loads(bytes(rest[:size]))
            version, self.kind, self.plans = self.about["version"], self.about["kind"], list(self.about["plans"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise self._damaged("a header that cannot be read") from None
        if version != VERSION:
            raise Error(f"{self._where}: got version {version!r} of files of several plans, need {VERSION}")
        if self.kind not in ("functions", "shapes"):
            raise self._damaged(f"plans of {self.kind!r}")

    def program(self, row: Any, threads: int, pool: _core.MemoryPool) -> _core.Program:
        """Returns the program of a row of `plans`."""
        try:
            kinds = _core.plan_dtypes()
            sections: dict[str, Any] = {
                str(name): self._cut(offset, size).view(kinds.get(name, np.dtype(np.uint8)))
                for name, (offset, size) in row["sections"].items()
            }
            weights = np.zeros(_count(row["weights"]["bytes"]), np.uint8)
            for at, size, offset in row["weights"]["pieces"]:
                if _count(at) + _count(size) > weights.nbytes:
                    raise ValueError(at)
                weights[at : at + size] = self._cut(offset, size)
        except (ValueError, KeyError, TypeError, AttributeError, MemoryError):
            raise self._damaged("a row of plans that cannot be read") from None
        return _core.Program({**sections, "weights": weights}, threads, pool)

    def entry(self, row: Any, name: str, read: Callable[[Any], Any]) -> Any:
        """Returns an entry of a row, or of `about`, converted by `read`."""
        try:
            return read(row[name])
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise self._damaged(f"no {name} that can be read") from None

    def _cut(self, offset: Any, size: Any) -> Array:
        if _count(offset) + _count(size) > self._data.nbytes:
            raise ValueError(offset)
        return self._data[offset : offset + size]

    def _damaged(self, got: str) -> Error:
        return Error(f"{self._where}: got {got}, need a file as save wrote it")


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 1 << 48:
        raise ValueError(value)
    return value


Rows = Sequence[tuple[bytes, Mapping[str, Any]]]


def save(path: str | os.PathLike[str], about: Mapping[str, Any], rows: Rows) -> None:
    """Writes the file atomically: PATH.part is written first. rows: plans with their entries."""
    _core.save_file(os.fspath(path), _written(about, rows).pieces())


def to_bytes(about: Mapping[str, Any], rows: Rows) -> bytes:
    """Returns the bytes that `save` writes."""
    return b"".join(_written(about, rows).pieces())


def _written(about: Mapping[str, Any], rows: Rows) -> Writer:
    writer = Writer(about)
    for plan, row in rows:
        writer.add(plan, row)
    return writer

"""One statement of a published table, and what Hexane has for it."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from hexane import targets
from hexane.targets import Fact

Row = dict[str, str]


class _Blank:
    def __repr__(self) -> str:
        return "nothing"


BLANK = _Blank()  # the table leaves the cell empty: its source does not publish the value


@dataclass(frozen=True, slots=True)
class Cell:
    """row: what the table calls the row, or its first cell. about: the target (or op, function, generation) that the
    statement is about. field: the path of a fact. ours: the fact with its source and status."""

    table: str
    row: str
    about: str
    field: str
    published: Any
    ours: Fact

    @property
    def agrees(self) -> bool:
        got = plain(self.ours.value)
        if self.published is BLANK:  # no value of this source may then stand here as decoded or measured
            said = self.ours.status in ("measured", "decoded", "read")
            return not (said and self.ours.source.startswith("guide"))
        if self.published is None:
            return got is None and self.ours.status != "unknown"
        if isinstance(got, bool) or isinstance(self.published, bool):
            return got in (True, False) and bool(got) == bool(self.published)
        return bool(got == plain(self.published))


def plain(value: Any) -> Any:
    """Values as both sides write them: an enum by its name, lists as tuples."""
    if isinstance(value, Enum):
        return value.name
    return tuple(value) if isinstance(value, list) else value


def of_chip(table: str, row: str, name: str, path: str, published: Any) -> Cell:
    """A statement about a fact of a chip."""
    return Cell(table, row, name, path, published, targets.fact(name, path))


def rows(folder: Path, table: str) -> list[Row]:
    with (folder / "data" / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def unread(table: str, row: str, text: str) -> ValueError:
    """A cell whose text no rule here reads: the table has changed, or the reader is incomplete."""
    return ValueError(f"[{table}] {row}: got the text {text!r}, need a rule that reads it")


Cells = Iterator[Cell]

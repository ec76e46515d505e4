"""Prints JSON and aligned tables, and progress on stderr."""

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hexane.errors import Error

SHOW_AFTER = 0.3  # seconds of work before progress is shown


def print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> list[str]:
    """Prints rows under their heads; columns named in `right` are right-aligned. Long cells wrap on a terminal only.
    Columns without any content are left out. Returns the heads of the printed columns, for a legend."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    filled = [i for i in range(len(head)) if not rows or any(row[i].strip() for row in rows)]
    head, rows = [head[i] for i in filled], [[row[i] for i in filled] for row in rows]
    width = None if sys.stdout.isatty() else 10_000
    console = Console(highlight=False, markup=False, width=width)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in head:
        table.add_column(Text(name, "bold"), justify="right" if name in right else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    return head


def type_text(dtype: object, shape: Sequence[object]) -> str:
    """Returns a tensor type as text, such as fp32[1, 3, batch, ?]."""
    return f"{dtype}[{', '.join('?' if d is None else str(d) for d in shape)}]"


@contextmanager
def named_option(option: str, path: Path) -> Iterator[None]:
    """Adds the option's name to errors about writing a file."""
    try:
        yield
    except OSError as error:
        raise Error(f"{option}: {path}: {error.strerror or error}, need a place that can be written to") from None
    except Error as error:
        place, _, what = str(error).partition("] ")
        if place not in ("[file", "[emit"):
            raise
        raise Error(f"{option}: {what}") from None


@contextmanager
def working(what: str) -> Iterator[None]:
    """Shows an activity line on a terminal's stderr if the block takes long."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(what, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show(what: str, done: threading.Event) -> None:
    if done.wait(SHOW_AFTER):
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(what, total=None)
        done.wait()

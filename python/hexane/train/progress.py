"""A line on stderr while a training runs."""

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any


class Progress:
    """Shows calls done, the loss, milliseconds a call and the time that is left; on a terminal, or where asked for."""

    def __init__(self, total: int, done: int, wanted: bool | None) -> None:
        self._total, self._done = total, done
        self._wanted = sys.stderr.isatty() if wanted is None else wanted
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "Progress":
        if self._wanted:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            told = TextColumn("loss {task.fields[loss]:.4g}  {task.fields[ms]:.4g} ms")
            columns = (BarColumn(), MofNCompleteColumn(), told, TimeRemainingColumn())
            self._bar = Bar(*columns, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task("", total=self._total, completed=self._done, loss=0.0, ms=0.0)
        return self

    def tell(self, entry: Mapping[str, float]) -> None:
        """One call is done."""
        if self._bar is not None:
            self._bar.update(self._task, advance=1, loss=entry["loss"], ms=entry["ms"])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

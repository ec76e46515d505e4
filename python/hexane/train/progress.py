"""A line on stderr while a training runs."""

import sys
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any


class Progress:
    """Shows steps done, the loss, milliseconds a step, tokens a second and the time that is left; on a terminal, or
    where asked for. total, done: batches; of_each: batches of a step; tokens: in a batch, 0: it has none."""

    def __init__(self, total: int, done: int, wanted: bool | None, of_each: int = 1, tokens: int = 0) -> None:
        self._total, self._done, self._of_each, self._tokens = total, done, of_each, tokens
        self._wanted = sys.stderr.isatty() if wanted is None else wanted
        self._last: deque[Mapping[str, float]] = deque(maxlen=of_each)
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "Progress":
        if self._wanted:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[told]}"), TimeRemainingColumn())
            self._bar = Bar(*columns, console=Console(stderr=True))
            self._bar.start()
            total = -(-self._total // self._of_each)
            self._task = self._bar.add_task("", total=total, completed=self._done / self._of_each, told="")
        return self

    def tell(self, entry: Mapping[str, float]) -> None:
        """One batch is done."""
        self._done += 1
        if self._bar is None:
            return
        self._last.append(entry)
        loss, ms = (sum(one[name] for one in self._last) / len(self._last) for name in ("loss", "ms"))
        told = f"loss {loss:.4g}  {ms * self._of_each:.4g} ms"
        if self._tokens:
            told += f"  {1e3 * self._tokens / ms:,.0f} tokens/s"
        self._bar.update(self._task, completed=self._done / self._of_each, told=told)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

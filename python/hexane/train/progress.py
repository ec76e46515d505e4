"""A progress line on stderr during training."""

import sys
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any


class Progress:
    """Shows finished steps, loss, milliseconds a step, tokens a second and the remaining time. wanted: whether to show
    them; None: only on a terminal. total, done: batches; of_each: batches per step; tokens: tokens per batch, 0 for
    data without tokens."""

    def __init__(self, total: int, done: int, wanted: bool | None, of_each: int = 1, tokens: int = 0) -> None:
        self._total, self._done, self._of_each, self._tokens = total, done, of_each, tokens
        self._wanted, self._is_silent = sys.stderr.isatty() if wanted is None else wanted, wanted is False
        self._last: deque[Mapping[str, Any]] = deque(maxlen=of_each)
        self._times: deque[float] = deque(maxlen=of_each)  # without the first batch of the process
        self._begun = False
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

    def tell(self, entry: Mapping[str, Any]) -> None:
        """Updates the line after a batch."""
        self._done += 1
        self._last.append(entry)
        if self._begun:
            self._times.append(entry["ms"])
        self._begun = True
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done / self._of_each, told=self.told)

    @property
    def told(self) -> str:
        """The loss, and the time of a step: the mean of the last batches, times the batches of a step. The first batch
        of a process also compiles and allocates, so its time stands alone and is in no mean."""
        loss = f"loss {sum(one['loss'] for one in self._last) / len(self._last):.4g}"
        if not self._times:
            what = "step" if self._of_each == 1 else f"batch of {self._of_each}"
            return f"{loss}  first {what} {self._last[-1]['ms']:.4g} ms"
        ms = sum(self._times) / len(self._times)
        rate = f"  {1e3 * self._tokens / ms:,.0f} tokens/s" if self._tokens else ""
        return f"{loss}  {ms * self._of_each:.4g} ms a step{rate}"

    def show(self, sample: str | None) -> None:
        """Prints a sample text above the line, with the step and its loss. Prints nothing if wanted=False."""
        if self._is_silent:
            return
        losses = [one["loss"] for one in self._last]
        head = f"step {-(-self._done // self._of_each)}, loss {sum(losses) / len(losses):.4g}"
        lines = [f"{head}: no sample"] if sample is None else [f"{head}:", *map(_indented, sample.splitlines())]
        if self._bar is None:
            print(*lines, sep="\n", file=sys.stderr, flush=True)
        else:
            self._bar.console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _indented(line: str) -> str:
    return f"  {visible(line)}".rstrip()


def visible(text: str) -> str:
    """Returns the text with non-printable characters as escapes, such as \\x1b: a terminal would execute them."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)

"""Formats the figures of a run for a terminal or a pipe, at any width of at least 40 characters."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from hexane.graph.decisions import counted
from hexane.train.dashboard import Run, Sample, drawn_curve
from hexane.train.lanes import ASIDE
from hexane.train.progress import visible

LEAST_WIDTH, LABEL, NAME = 40, 9, 15
ROWS, LEAST_ROWS, MOST_ROWS = 12, 4, 30  # Lines of the curve.
OTHERS = 14  # Lines other than the curve.
SAMPLES, SAMPLE_ROWS = 2, 3  # The number of sample texts shown, and the lines of each.
MIB, GIB = 1 << 20, 1 << 30
MOST_MARKS = 16  # evaluations marked on the curve: more would hide it
LOSS = "loss"


@dataclass(frozen=True, slots=True)
class View:
    """A rich renderable of a run. remark: its last line."""

    path: Path
    run: Run
    remark: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(LEAST_WIDTH, options.max_width)
        samples = [line for one in self.run.samples[-SAMPLES:] for line in _sample(one, console, width, options)]
        others = OTHERS + len(samples) + len([*_measured(self.run)])
        height = min(MOST_ROWS, max(LEAST_ROWS, console.size.height - others)) if console.is_terminal else ROWS
        yield from _head(self.path, self.run, width, options.ascii_only)
        yield from _curve(self.run, width, height, options.ascii_only)
        for name, text in figures(self.run):
            yield Text.assemble((f"{name:{NAME}}", "bold"), text)
        yield from samples
        if self.remark:
            yield Text(self.remark, "yellow")


def figures(run: Run) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if run.step:
        last, best = run.last("loss"), run.best
        told = "not finite" if last is None else _number(last)
        rows.append((LOSS, told + ("" if best is None else f", best {_number(best[1])} at step {best[0]:,}")))
    for name in dict.fromkeys(name for one in run.evaluations for name in one.metrics):
        if (pair := run.evaluated(name)) is not None:
            now, least = pair
            told = f"{_number(now.metrics[name])} at step {now.step:,}"
            if name == LOSS:
                told += f", best {_number(least.metrics[name])} at step {least.step:,}"
            rows.append(("evaluation" if name == LOSS else f"  {printable(name)} ", told))
    for name, words in (("lr", "learning rate"), ("norm", "norm")):
        if (value := run.last(name)) is not None:
            rows.append((words, _number(value)))
    if (median := run.median_ms) is not None:
        last = run.last("ms")
        rows.append(("step time", f"median {_ms(median)}" + ("" if last is None else f", last {_ms(last)}")))
    rows += _measured(run)
    if run.tokens is not None:
        rate = run.tokens_per_second
        rows.append(
            ("tokens", f"{run.tokens:,}" + ("" if rate is None else f", {rate:,.0f} a second at the median step time"))
        )
    if (left := run.seconds_left) is not None and not run.is_done:
        rows.append(("time left", f"{time_text(left)}, {counted((run.total or 0) - run.step, 'step')}"))
    if (bad := run.not_finite).size:
        rows.append(("not finite", f"{counted(len(bad), 'step')}, the last is step {bad[-1]:,}"))
    return rows


def _measured(run: Run) -> Iterator[tuple[str, str]]:
    measured = run.measured
    if measured.lanes and measured.recent_ms:
        rest = measured.recent_ms - sum(ms for lane, ms in measured.lanes.items() if lane not in ASIDE)
        parts = sorted(measured.lanes.items(), key=lambda lane: -lane[1])
        parts += [("rest", rest)] if rest > 0.001 * measured.recent_ms else []
        times = ", ".join(f"{printable(name)} {_ms(time)}" for name, time in parts)
        without = measured.recent_steps + 1 == run.step
        steps = "last step" if measured.recent_steps == 1 else f"last {measured.recent_steps} steps"
        yield "  mean", f"{_ms(measured.recent_ms)} over the {steps}{', without step 1' if without else ''}: {times}"
    if (speed := measured.tflops) is not None:
        told = f"{speed:.3g} TFLOP/s" if speed >= 0.1 else f"{1e3 * speed:.3g} GFLOP/s"
        share = measured.of_peak
        engine = "" if share is None else f"; the engine at {100 * share:.2g} % of its peak"
        yield "products", f"{told} over whole steps{engine}"
    if measured.milliwatts:
        drawn = [f"{printable(name)} {power / 1e3:.2f} W" for name, power in measured.milliwatts.items()]
        yield "power", ", ".join(drawn)
    memory, left = measured.memory, measured.compiles_left
    if memory is not None:
        yield "memory", f"{_size(memory)} at most"
    if left is not None:
        yield "compiles left", f"{left:,}, then another process compiles"


def time_text(seconds: float) -> str:
    """Returns such as "2 h 05 min", "3 min 20 s" or "12 s"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02} min"


def _size(size: int) -> str:
    return f"{size / GIB:.3g} GiB" if size >= GIB else f"{size / MIB:.3g} MiB"


def printable(text: str) -> str:
    """Returns the text, with escapes if it has characters that a terminal would execute."""
    return text if text.isprintable() else ascii(text)


def _sample(sample: Sample, console: Console, width: int, options: ConsoleOptions) -> Iterator[Text]:
    """Yields the first lines of a text, with its line ends as spaces."""
    text = "none: logits were not finite" if sample.text is None else visible(" ".join(sample.text.split()))
    lines = Text(text, "italic" if sample.text is not None else "yellow").wrap(console, width - NAME)
    for line in lines:
        line.rstrip()
    if len(lines) > SAMPLE_ROWS:
        lines[SAMPLE_ROWS - 1].truncate(width - NAME - 4)
        lines[SAMPLE_ROWS - 1].append(" ..." if options.ascii_only else " …")
    for place, line in enumerate(lines[:SAMPLE_ROWS]):
        name = "" if place else f"step {sample.step:,}"
        yield Text.assemble((f"{name:{NAME}}", "bold"), line)


def _head(path: Path, run: Run, width: int, is_ascii: bool) -> RenderResult:
    total = "" if run.total is None else f" of {run.total:,}, {100 * run.step // run.total} %"
    right = f"step {run.step:,}{total}"
    name = Text(printable(str(path)), "bold")
    name.truncate(max(8, width - len(right) - 2), overflow="ellipsis" if not is_ascii else "crop", pad=True)
    yield Text.assemble(name, " " * max(1, width - name.cell_len - len(right)), right)
    if run.total is not None:
        done = width * run.step // run.total
        full, empty = "#-" if is_ascii else "━─"
        yield Text.assemble((full * done, "green"), (empty * (width - done), "dim"))
    yield Text("")


def _curve(run: Run, width: int, height: int, is_ascii: bool) -> RenderResult:
    first, last = (int(run.numbers[0]), run.step) if run.step else (0, 0)
    mark = "o" if is_ascii else "●"
    marks = [
        ((one.step - first) / max(1, last - first), one.metrics[LOSS])
        for one in run.evaluations
        if isfinite(one.metrics.get(LOSS, float("nan")))
    ]
    # Every n-th mark from the end, so that the last mark is always included.
    marks = marks[:: -max(1, -(-len(marks) // MOST_MARKS))]
    curve = drawn_curve(run.series["loss"], width - LABEL - 2, height, marks, mark)
    if curve is None:
        batches = "1 batch" if run.batches == 1 else f"{run.batches} batches"
        yield Text("no loss is finite" if run.step else f"no step is done yet: the log has {batches}")
        yield Text("")
        return
    labels = {0: curve.high, height // 2: _middle(curve.low, curve.high, height), height - 1: curve.low}
    line, corner = ("|", "+") if is_ascii else ("│", "└")
    for place, row in enumerate(curve.rows):
        label = f"{labels[place]:.4g}" if place in labels else ""
        shown = Text(_in_ascii(row) if is_ascii else row, "cyan")
        shown.highlight_regex(mark, "yellow")
        yield Text.assemble(f"{label:>{LABEL}} ", (line, "dim"), shown)
    under = f"{first:,}"
    right = f"step {last:,}"
    floor = ("-" if is_ascii else "─") * (width - LABEL - 2)
    yield Text.assemble(" " * LABEL + " ", (corner + floor, "dim"))
    legend = f"{mark} evaluation" if marks else ""
    space = width - LABEL - 2 - len(under) - len(right)
    yield Text(f"{'loss':>{LABEL}}  {under}{legend:^{max(0, space)}}{right}")
    yield Text("")


def _middle(low: float, high: float, height: int) -> float:
    """Returns the value in the middle of the row of characters with the middle label."""
    return high - (high - low) * (height // 2 + 0.5) / height


def _in_ascii(row: str) -> str:
    return "".join(" " if c == "\u2800" else "*" if c > "\u2800" else c for c in row)


def _number(value: float) -> str:
    return f"{value:.4g}"


def _ms(value: float) -> str:
    return f"{value:.3g} ms" if value < 1000 else time_text(value / 1e3) if value >= 60_000 else f"{value / 1e3:.3g} s"

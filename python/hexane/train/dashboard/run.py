"""The figures of a run, per step: computed from the batches in its log."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Array
from hexane.train.dashboard.run_log import RunLog
from hexane.train.dashboard.thin import thinned
from hexane.train.notes import read_notes

SERIES = ("loss", "lr", "norm", "ms")
RECENT = 100  # Recent steps: their median gives the remaining time, and measurements are their means.
LANE, POWER = "ms.", "mw."  # Prefixes of columns: times by lane, and power.
MOST_POINTS = 600  # The most points of each series in a record.


@dataclass(frozen=True, slots=True)
class Plan:
    """Total steps and batches per step, from the run's checkpoint, if stored there."""

    steps: int | None = None
    accumulate: int | None = None
    error: str = ""  # why the checkpoint could not be read


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Metrics by name, measured after a step. nan: the metric was not finite."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Sample:
    """A text that the model generated after a step; None if its logits were not finite."""

    step: int
    text: str | None


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measurements of the last steps, None if not in the log: means, except `memory` and `compiles_left`. recent_steps:
    the number of these steps, without the first of a run if there are others. recent_ms: milliseconds of a step; lanes:
    milliseconds of a step by lane. tflops: 10^12 operations of products, divided by the seconds of the whole calls;
    of_peak: the engine's part of them, as a share of the chip's peak. milliwatts: by part of the machine. memory: the
    highest of the log, in bytes, as a resumed run is another process. compiles_left: compilations that the process may
    still do."""

    recent_steps: int
    recent_ms: float | None
    lanes: Mapping[str, float]
    milliwatts: Mapping[str, float]
    tflops: float | None
    of_peak: float | None
    memory: int | None
    compiles_left: int | None

    def record(self) -> dict[str, Any]:
        """The measurements as a JSON object."""
        return {"lanes": dict(self.lanes), "milliwatts": dict(self.milliwatts)} | {
            name: getattr(self, name)
            for name in ("recent_steps", "recent_ms", "tflops", "of_peak", "memory", "compiles_left")
        }


NOTHING = Measurements(0, None, {}, {}, None, None, None, None)


@dataclass(frozen=True, slots=True)
class Run:
    """A run up to its last finished step. batches: the number of batches in the log. accumulate: batches per step.
    total: steps of the whole run; None: not known. numbers: the numbers of the finished steps, from 1; series: for each
    step its loss (the mean of its batches), learning rate, gradient norm and milliseconds, nan if missing. tokens:
    trained on so far, of_step: per step; None: not known. samples: the last generated texts, in order. measured:
    measurements over the last steps.
    """

    batches: int
    accumulate: int
    total: int | None
    numbers: Array
    series: Mapping[str, Array]
    evaluations: tuple[Evaluation, ...]
    tokens: int | None
    of_step: float | None
    samples: tuple[Sample, ...] = ()
    measured: Measurements = NOTHING

    @property
    def step(self) -> int:
        """The number of the last finished step; 0 without one."""
        return int(self.numbers[-1]) if len(self.numbers) else 0

    @property
    def is_done(self) -> bool:
        return self.total is not None and self.step >= self.total

    @property
    def best(self) -> tuple[int, float] | None:
        """The step with the least loss, the first of several, and that loss; None without finite losses."""
        loss = self.series["loss"]
        if not np.isfinite(loss).any():
            return None
        place = int(np.nanargmin(loss))
        return int(self.numbers[place]), float(loss[place])

    @property
    def not_finite(self) -> Array:
        """The numbers of the steps whose loss or gradients are not finite."""
        return np.asarray(self.numbers[~np.isfinite(self.series["loss"]) | ~np.isfinite(self.series["norm"])])

    @property
    def median_ms(self) -> float | None:
        return _median(self.series["ms"])

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of a step divided by the median time of a step."""
        ms = self.median_ms
        return 1e3 * self.of_step / ms if ms and self.of_step else None

    @property
    def seconds_left(self) -> float | None:
        """Predicted time of the remaining steps, from the recent median; evaluations and checkpoints are not
        included."""
        recent = _median(self.series["ms"][-RECENT:])
        return None if self.total is None or recent is None else (self.total - self.step) * recent / 1e3

    def last(self, name: str) -> float | None:
        """The last value of a series; None if it is not finite."""
        values = self.series[name]
        return float(values[-1]) if len(values) and isfinite(values[-1]) else None

    def evaluated(self, name: str) -> tuple[Evaluation, Evaluation] | None:
        """The last evaluation with this metric, and the evaluation where it was least; None if no value is finite."""
        finite = [one for one in self.evaluations if isfinite(one.metrics.get(name, np.nan))]
        return (finite[-1], min(finite, key=lambda one: one.metrics[name])) if finite else None

    def record(self) -> dict[str, Any]:
        """The run as a JSON object. Each point of a series has its first and last step, and the least, mean and
        greatest value."""
        best = self.best
        return {
            "step": self.step,
            "steps": self.total,
            "batches": self.batches,
            "accumulate": self.accumulate,
            "loss": self.last("loss"),
            "best": None if best is None else {"step": best[0], "loss": best[1]},
            "lr": self.last("lr"),
            "norm": self.last("norm"),
            "ms": self.last("ms"),
            "median_ms": self.median_ms,
            "tokens": self.tokens,
            "tokens_per_second": self.tokens_per_second,
            "seconds_left": self.seconds_left,
            "not_finite": len(self.not_finite),
            **self.measured.record(),
            "evaluations": [
                {"step": one.step, **{name: _finite(value) for name, value in one.metrics.items()}}
                for one in self.evaluations
            ],
            "samples": [{"step": one.step, "text": one.text} for one in self.samples],
            "series": {
                name: [
                    [int(self.numbers[b.first]), int(self.numbers[b.last]), *map(_finite, (b.low, b.mean, b.high))]
                    for b in thinned(values, MOST_POINTS)
                ]
                for name, values in self.series.items()
            },
        }


def read_plan(checkpoint: Path) -> Plan:
    """Returns the plan in a run's checkpoint: an empty one if the file is missing or was not written by a training, and
    one with `error` if the file cannot be read."""
    if not checkpoint.exists():
        return Plan()
    try:
        notes = read_notes(checkpoint).get("training")
    except Error as error:
        return Plan(error=str(error))
    if not isinstance(notes, Mapping):
        return Plan()
    steps, accumulate = (
        value if isinstance(value := notes.get(name), int) and not isinstance(value, bool) and value > 0 else None
        for name in ("steps", "accumulate")
    )
    return Plan(steps, accumulate)


def run_of(log: RunLog, plan: Plan) -> Run:
    """Returns the run in a log. A step counts once all its batches are logged. A plan's total below the steps done is
    from an earlier run: the total is then None."""
    calls = np.array(log.calls, np.int64)
    columns = {name: np.array(values, np.float64) for name, values in log.columns.items()}
    each = plan.accumulate or _batches_of_a_step(calls, columns["step"])
    ends = np.flatnonzero(calls % each == each - 1)
    numbers = calls[ends] // each + 1
    begins = np.searchsorted(calls, (numbers - 1) * each)
    whole = ends - begins + 1 == each
    series = {
        "loss": _over_steps(columns["loss"], begins, ends, whole) / each,
        "lr": columns["lr"][ends],
        "norm": columns["norm"][ends],
        "ms": _over_steps(columns["ms"], begins, ends, whole),
    }
    tokens = columns["tokens"][-1] if len(calls) else np.nan
    step = int(numbers[-1]) if len(numbers) else 0
    return Run(
        batches=len(calls),
        accumulate=each,
        total=None if plan.steps is None or plan.steps < step else plan.steps,
        numbers=numbers,
        series=series,
        evaluations=tuple(Evaluation(-(-(call + 1) // each), metrics) for call, metrics in log.evaluations),
        tokens=int(tokens) if isfinite(tokens) else None,
        of_step=float(tokens / (calls[-1] + 1) * each) if isfinite(tokens) else None,
        samples=tuple(Sample(-(-(call + 1) // each), text) for call, text in log.samples),
        measured=_measurements(columns, *_recent(numbers[whole], begins[whole], ends[whole])),
    )


def _recent(numbers: Array, begins: Array, ends: Array) -> tuple[Array, Array]:
    """Returns the begins and ends of the last steps, without the first step of the run if there are others: it also
    compiles and allocates."""
    since = 1 if len(numbers) > 1 and numbers[0] == 1 else 0
    return begins[since:][-RECENT:], ends[since:][-RECENT:]


def _measurements(columns: Mapping[str, Array], begins: Array, ends: Array) -> Measurements:
    """Returns the measurements of steps in a row. begins, ends: index of each step's first and last batch."""
    if not len(ends):
        return NOTHING
    rows = slice(int(begins[0]), int(ends[-1]) + 1)

    def grouped(prefix: str, mean_of: Callable[[Array], float]) -> dict[str, float]:
        by_name = {
            name.removeprefix(prefix): column[rows] for name, column in columns.items() if name.startswith(prefix)
        }
        return {name: float(mean_of(values)) for name, values in by_name.items() if np.isfinite(values).any()}

    def last(name: str) -> int | None:
        return int(value) if isfinite(value := columns[name][rows][-1]) else None

    ms = _mean(columns["ms"][rows])
    return Measurements(
        recent_steps=len(ends),
        recent_ms=None if ms is None else ms * (rows.stop - rows.start) / len(ends),
        lanes=grouped(LANE, lambda values: np.nansum(values) / len(ends)),
        milliwatts=grouped(POWER, np.nanmean),
        tflops=_mean_over_time(columns["tflops"][rows], columns["ms"][rows]),
        of_peak=_mean_over_time(columns["of_peak"][rows], columns["ms"][rows]),
        memory=None if last("memory") is None else int(np.nanmax(columns["memory"])),
        compiles_left=last("compiles_left"),
    )


def _mean(values: Array) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else None


def _mean_over_time(rates: Array, ms: Array) -> float | None:
    """Returns the mean of rates, each weighted by the time for which it holds; None without rates or times."""
    known = np.isfinite(rates) & np.isfinite(ms)
    time = ms[known].sum()
    return float((rates[known] * ms[known]).sum() / time) if time > 0 else None


def _batches_of_a_step(calls: Array, steps: Array) -> int:
    """Returns the most common number of batches between two updates; 1 if the log has too few."""
    updated = calls[1:][np.diff(steps) > 0]
    if len(updated) == 1 and calls[0] == 0:
        return int(updated[0]) + 1
    between = Counter(np.diff(updated).tolist())
    return int(between.most_common(1)[0][0]) if between else 1


def _over_steps(values: Array, begins: Array, ends: Array, whole: Array) -> Array:
    """Returns sums over the batches of each step; nan for a step whose first batches are not in the log."""
    if not len(ends):
        return np.empty(0)
    pairs = np.stack([begins, ends + 1], axis=1).ravel()
    sums = np.add.reduceat(np.append(values, 0.0), pairs)[::2]
    return np.asarray(np.where(whole, sums, np.nan))


def _median(values: Array) -> float | None:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else None


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None

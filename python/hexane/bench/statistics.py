"""Statistics of the times of many equal calls."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from time import perf_counter_ns
from typing import Any

import numpy as np

SHORTEST_SAMPLE = 20_000  # Nanoseconds: shorter calls are timed in groups.
FEWEST = 5  # Fewest samples, even of long calls.
MOST = 10_000


@dataclass(frozen=True, slots=True)
class Times:
    """The time of a call in microseconds: quantiles over samples, and their variation (standard deviation over mean).

    A sample is the mean of `calls_per_sample` calls in a row, which is 1 unless a call is shorter than 20 us.
    """

    min: float
    p10: float
    p50: float
    p90: float
    p99: float
    variation: float
    samples: int
    calls_per_sample: int

    @classmethod
    def of(cls, nanoseconds: list[int], calls_per_sample: int = 1) -> "Times":
        """The statistics of samples with these durations."""
        us = np.array(nanoseconds, float) / 1000 / calls_per_sample
        least, p10, p50, p90, p99 = map(float, np.percentile(us, (0, 10, 50, 90, 99)))
        variation = float(us.std() / us.mean()) if us.mean() else 0.0
        return cls(least, p10, p50, p90, p99, variation, len(us), calls_per_sample)


def measure(call: Callable[[], Any], seconds: float, *, before: Callable[[], Any] | None = None) -> Times:
    """The times of calls during about `seconds`, with at least five samples. `before` runs ahead of each sample and is
    not timed."""
    group = 1 if before else _group(call)
    return Times.of(_samples(call, group, perf_counter_ns() + int(seconds * 1e9), before, MOST), group)


@dataclass(frozen=True, slots=True)
class Together:
    """Calls of several threads at the same time: the times that each thread measured of its own calls, their mean in
    us, and the calls per second of all threads.

    If threads share cores or a lock, a few calls wait long, which only the mean shows.
    """

    times: Times
    mean_us: float
    calls_per_second: float


def measure_together(calls: Sequence[Callable[[], Any]], seconds: float) -> Together:
    """Runs the calls at the same time, each in its own thread, for about `seconds`."""
    group = max(map(_group, calls))
    start = Barrier(len(calls))

    def one(call: Callable[[], Any]) -> tuple[int, list[int], int]:
        start.wait()
        began = perf_counter_ns()
        durations = _samples(call, group, began + int(seconds * 1e9))  # repeat forever: no thread may end early
        return began, durations, perf_counter_ns()

    with ThreadPoolExecutor(len(calls)) as pool:
        threads = list(pool.map(one, calls))
    samples = [ns for _, durations, _ in threads for ns in durations]
    per_second = math.fsum(len(durations) * group / ((end - began) / 1e9) for began, durations, end in threads)
    mean_us = sum(samples) / len(samples) / group / 1000
    return Together(Times.of(samples, group), mean_us, per_second)


def _group(call: Callable[[], Any]) -> int:
    """The number of calls in a sample, a power of two, so that the sample lasts long enough. The first calls are
    slower, and machines pause at times, so the number must be enough in two trials."""
    group = 1
    while min(_duration(call, group), _duration(call, group)) < SHORTEST_SAMPLE:
        group *= 2
    return group


def _duration(call: Callable[[], Any], group: int) -> int:
    start = perf_counter_ns()
    for _ in range(group):
        call()
    return perf_counter_ns() - start


def _samples(
    call: Callable[[], Any],
    group: int,
    end: int,
    before: Callable[[], Any] | None = None,
    most: float = math.inf,
) -> list[int]:
    """Durations of groups of calls in ns, measured until the time `end`."""
    result: list[int] = []
    while len(result) < FEWEST or (len(result) < most and perf_counter_ns() < end):
        if before:
            before()
        result.append(_duration(call, group))
    return result

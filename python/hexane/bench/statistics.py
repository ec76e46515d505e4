"""What is told of many times of one call."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np

SHORTEST_SAMPLE = (
    20_000  # ns: calls that are shorter are timed several at once, so that the clock's own time does not show
)
FEWEST = 5  # samples, however long a call takes
MOST = 10_000


@dataclass(frozen=True, slots=True)
class Times:
    """Times of one call in microseconds: quantiles over samples, and their variation (standard deviation over mean).

    A sample is the mean of `calls_per_sample` calls in a row. It is one call unless a call is shorter than 20 us.
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
        """From the durations of samples."""
        us = np.array(nanoseconds, float) / 1000 / calls_per_sample
        least, p10, p50, p90, p99 = map(float, np.percentile(us, (0, 10, 50, 90, 99)))
        variation = float(us.std() / us.mean()) if us.mean() else 0.0
        return cls(least, p10, p50, p90, p99, variation, len(us), calls_per_sample)


def measure(
    call: Callable[[], Any], seconds: float, *, before: Callable[[], Any] | None = None, calls: int = 1
) -> Times:
    """Calls it for about `seconds`, at least five times.

    `before` runs ahead of each sample and is not timed. `calls`: how many calls of a program one call of it makes.
    """
    start = perf_counter_ns()
    call()
    once = perf_counter_ns() - start
    group = 1 if before else max(1, SHORTEST_SAMPLE // max(once, 1))
    end = perf_counter_ns() + int(seconds * 1e9)
    found: list[int] = []
    while len(found) < FEWEST or (len(found) < MOST and perf_counter_ns() < end):
        if before:
            before()
        start = perf_counter_ns()
        for _ in range(group):
            call()
        found.append(perf_counter_ns() - start)
    return Times.of(found, group * calls)

"""Nested loops over steps that compute their rows at different rates: the order of the steps, and the rows that each
run of a step computes."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hexane.program import Loop

MOST_LEVELS = 8  # the deepest nesting


class Order:
    """The order of steps by their rates: a step with twice the rate of another runs twice as often. runs: the number of
    runs of each step in one trip of the outermost loop. steps: the steps in the order of this trip."""

    def __init__(self, rates: Sequence[int]) -> None:
        levels = [1]  # possible numbers of runs in a trip of the outermost loop
        for rate in sorted(set(rates)):
            if rate > levels[-1] and rate % levels[-1] == 0 and len(levels) < MOST_LEVELS:
                levels.append(rate)
        self.rates = rates
        self.runs = [max(level for level in levels if rate % level == 0) for rate in rates]
        self.steps = list(self._walk(0, len(rates), 1))
        places: list[list[int]] = [[] for _ in rates]
        for place, step in enumerate(self.steps):
            places[step].append(place)
        self.places = [np.array(rows, np.int64) for rows in places]  # the positions of each step's runs
        self._before: dict[tuple[int, int], NDArray[np.int64]] = {}
        self._loops = list(self._nested(0, len(rates), 1))

    def before(self, writer: int, reader: int) -> NDArray[np.int64]:
        """Returns for each run of the reader in a trip the writer's last run before it, or -1 without one."""
        if (writer, reader) not in self._before:
            self._before[writer, reader] = np.searchsorted(self.places[writer], self.places[reader]) - 1
        return self._before[writer, reader]

    def around(self, low: int, high: int) -> tuple[int, int, int]:
        """Returns the steps from `low` to `high`, extended so that they contain only whole loops, and the runs per
        outermost trip of the smallest loop around all of them."""
        runs = 1
        begin, last = low, high
        for first, end, often in self._loops:  # outer ones first
            if first <= low and high < end:
                runs = often
            elif first <= high and low < end:
                begin, last = min(begin, first), max(last, end - 1)
        return begin, last, runs

    def _nested(self, begin: int, end: int, runs: int) -> Iterator[tuple[int, int, int]]:
        for inner in self.inner(begin, end, runs):
            yield inner
            yield from self._nested(*inner)

    def _walk(self, begin: int, end: int, runs: int) -> Iterator[int]:
        """Yields the steps in the order in which they run in one trip of a loop with `runs` runs."""
        at = begin
        for inner, inner_end, often in self.inner(begin, end, runs):
            yield from range(at, inner)
            for _ in range(often // runs):
                yield from self._walk(inner, inner_end, often)
            at = inner_end
        yield from range(at, end)

    def inner(self, begin: int, end: int, runs: int) -> Iterator[tuple[int, int, int]]:
        """Yields the longest ranges of steps that run more often than `runs`, with the number of runs of their common
        loop."""
        at = begin
        while at < end:
            if self.runs[at] == runs:
                at += 1
                continue
            last = at
            while last < end and self.runs[last] > runs:
                last += 1
            yield at, last, min(self.runs[at:last])
            at = last


class Nest:
    """Nested loops. rows: the rows that the slowest step computes in a trip of the outermost loop.

    Runs of a step are counted from 0, the first run in trip 0 of the outermost loop. Each run computes the next chunk
    of rows. Rows below 0 and beyond the last row are skipped.
    """

    def __init__(self, order: Order, rows: int) -> None:
        self._order, self._runs = order, order.runs
        self._rows = [rate * rows for rate in order.rates]  # rows of each step in a trip
        self.chunks = [n // runs for n, runs in zip(self._rows, self._runs, strict=True)]

    def moves(self, step: int) -> int:
        """Returns the rows that a step computes in a trip."""
        return self._rows[step]

    def trip(self, step: int, run: int) -> int:
        return run // self._runs[step]

    def run_of_row(self, step: int, row: int, ahead: int) -> int:
        return (row - ahead) // self.chunks[step] + 1

    def often(self, step: int) -> int:
        """Returns how often a step runs in a trip."""
        return self._runs[step]

    def pace(self, writer: int, reader: int) -> tuple[object, ...]:
        """Returns a key that is equal for pairs of steps with the same timing."""
        before = self._order.before(writer, reader)
        return self.chunks[writer], self.chunks[reader], self._runs[writer], self._runs[reader], before.tobytes()

    def runs_of_rows(self, step: int, rows: NDArray[np.int64], ahead: int) -> NDArray[np.int64]:
        """Returns the runs in which a step computes these rows. ahead: the rows that it has computed after its run
        0."""
        result: NDArray[np.int64] = (rows - ahead) // self.chunks[step] + 1
        return result

    def runs_before(self, writer: int, reader: int, runs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns, for each of these runs of the reader, the last run of the writer before it."""
        if self._runs[reader] == 1:
            return runs * self._runs[writer] + int(self._order.before(writer, reader)[0])
        trip, within = np.divmod(runs, self._runs[reader])
        return trip * self._runs[writer] + self._order.before(writer, reader)[within]

    def times(self, step: int, rows: NDArray[np.int64], ahead: int) -> NDArray[np.int64]:
        """Returns the time at which a step computes each of these rows: the number of its run among the runs of all
        steps."""
        trip, within = np.divmod(self.runs_of_rows(step, rows, ahead), self._runs[step])
        return trip * len(self._order.steps) + self._order.places[step][within]

    def loops(self, first: int, trips: int) -> Iterator[Loop]:
        """Yields the loops, the outermost first. first: the program's number of this nest's first step."""
        yield Loop(first, trips, tuple(self._rows))
        yield from self._inner_loops(first, 0, len(self._runs), 1)

    def _inner_loops(self, first: int, begin: int, end: int, runs: int) -> Iterator[Loop]:
        for inner, inner_end, often in self._order.inner(begin, end, runs):
            yield Loop(first + inner, often // runs, tuple(n // often for n in self._rows[inner:inner_end]))
            yield from self._inner_loops(first, inner, inner_end, often)

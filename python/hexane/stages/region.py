"""Solves how steps that follow one another compute their tensors a few rows at a time.

    e = conv(x); d = depthwise(e); p = conv(d) + x
    ->  for each row of p: the rows of e that d needs now, the row of d, the row of p

All run in one loop, each some rows ahead of its readers, and what lies between them is a ring of a few rows that is long enough
for all of them. Steps whose images are larger run more often: their loop is inside that of the others. Each row is computed once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hexane.program import Loop, Program
from hexane.stages.rows import AXIS, StepRows
from hexane.stages.tensors import Tensors

MOST_RUNS = 1 << 20  # of steps, that a plan may have
MOST_RATE = 1 << 10
MOST_LEVELS = 8  # of loops in each other


@dataclass(frozen=True, slots=True)
class Region:
    """The steps from `first` on, with the range of rows of each at its first run, in loops, the outermost first. rings: rows kept of
    tensors, by their places among all."""

    first: int
    cuts: tuple[tuple[int, int], ...]
    loops: tuple[Loop, ...]
    rings: dict[int, int]

    @property
    def end(self) -> int:
        return self.first + len(self.cuts)


class _Link(NamedTuple):
    """A step of a region that reads what another writes: input `operand` of the step `reader`."""

    writer: int
    reader: int
    operand: int
    tensor: int


class Regions:
    """The regions of a program."""

    def __init__(self, program: Program, tensors: Tensors) -> None:
        self.program, self.tensors = program, tensors
        self.steps = [StepRows(step, program.target) for step in program.steps]

    def can_run(self, step: int) -> bool:
        """Whether the step may be part of a region."""
        return self.steps[step].is_cut and self.program.buffers[self.steps[step].out.buffer].kind in ("arena", "port")

    def solve(self, first: int, end: int, rows: int) -> Region | None:
        """The steps [first, end), the least of which compute so many rows in one run; None where they cannot run row by row."""
        links = self._links(first, end)
        if links is None:
            return None
        rates = self._rates(first, end, links)
        if max(rates) > MOST_RATE:
            return None
        nest = _Nest(rates, rows)
        ahead = self._ahead(first, end, links, nest)
        rings = self._rings(first, end, links, nest, ahead)
        extents = [self.steps[i].extent for i in range(first, end)]
        first_trip = min(nest.trip(i, nest.run_of_row(i, 0, ahead[i])) for i in range(end - first))
        last_trip = max(nest.trip(i, nest.run_of_row(i, n - 1, ahead[i])) for i, n in enumerate(extents))
        trips = last_trip + 1 - first_trip
        if 2 * trips * len(nest.order) > MOST_RUNS:  # outer loops count the steps of inner ones as well
            return None
        ends = [first_trip * nest.moves(i) + ahead[i] for i in range(end - first)]
        cuts = tuple((behind - chunk, behind) for behind, chunk in zip(ends, nest.chunks, strict=True))
        return Region(first, cuts, tuple(nest.loops(first, trips)), rings)

    def _links(self, first: int, end: int) -> list[_Link] | None:
        links = []
        for reader in range(first, end):
            for operand, tensor in enumerate(self.tensors.inputs[reader]):
                if tensor is None:
                    continue
                writers = [step for step, _ in self.tensors.all[tensor].writers]
                if not any(first <= step < end for step in writers):
                    continue
                if min(writers) < first or max(writers) >= end or not self._lies_in_rows(tensor):
                    return None
                if self.steps[reader].is_packed(operand):
                    return None
                links += [_Link(writer, reader, operand, tensor) for writer in writers]
        return links

    def _lies_in_rows(self, tensor: int) -> bool:
        """Whether all that write and read a tensor see the same rows, one behind the other."""
        views = self.tensors.all[tensor].views
        if any(view.type.rank <= AXIS or view.type.shape[0] != 1 for view in views):
            return False
        return len({(view.type.shape[AXIS], view.strides[AXIS]) for view in views}) == 1

    def _is_ring(self, tensor: int, first: int, end: int) -> bool:
        contents = self.tensors.all[tensor]
        view = contents.views[0]
        if not contents.in_arena or contents.first < first or contents.last >= end or not contents.readers:
            return False
        if view.type.shape[AXIS] * view.strides[AXIS] != contents.bytes:
            return False
        return all(self.steps[reader].reads_ring(operand) for reader, operand in contents.readers)

    def _rates(self, first: int, end: int, links: Sequence[_Link]) -> list[int]:
        """Rows of each step for some of the last one's, in the smallest whole numbers. Where branches differ, rings make up for it."""
        ratios: dict[int, list[tuple[int, Fraction]]] = {step: [] for step in range(first, end)}
        for link in links:
            stride = self.steps[link.reader].stride(link.operand)
            ratios[link.reader].append((link.writer, stride))
            ratios[link.writer].append((link.reader, 1 / stride))
        found: dict[int, Fraction] = {}
        for step in reversed(range(first, end)):
            if step in found:
                continue
            found[step] = Fraction(self.steps[step].extent, self.steps[end - 1].extent).limit_denominator(64)
            reached = [step]
            while reached:
                at = reached.pop()
                for other, ratio in ratios[at]:
                    if other not in found:
                        found[other] = found[at] * ratio
                        reached.append(other)
        whole = lcm(*(rate.denominator for rate in found.values()))
        rates = [int(found[step] * whole) for step in range(first, end)]
        return [rate // gcd(*rates) for rate in rates]

    def _ahead(self, first: int, end: int, links: Sequence[_Link], nest: "_Nest") -> list[int]:
        """The rows that each step has computed after its run 0: as few as its readers allow."""
        readers: dict[int, list[_Link]] = {step: [] for step in range(first, end)}
        for link in links:
            readers[link.writer].append(link)
        ahead = list(nest.chunks)
        for writer in reversed(range(end - first)):
            wanted = []
            for link in readers[first + writer]:
                reader = link.reader - first
                needed_from, needed_to = self.steps[link.reader].needs(link.operand)
                done = nest.runs_before(writer, reader, len(needed_to), ahead[reader])
                wanted += (needed_to - nest.chunks[writer] * done)[needed_from < needed_to].tolist()
            ahead[writer] = max(wanted, default=nest.chunks[writer])
        return ahead

    def _rings(
        self, first: int, end: int, links: Sequence[_Link], nest: "_Nest", ahead: Sequence[int]
    ) -> dict[int, int]:
        inside = {tensor for tensor in {link.tensor for link in links} if self._is_ring(tensor, first, end)}
        kept: dict[int, int] = {}
        for link in links:
            if link.tensor not in inside:
                continue
            writer, reader = link.writer - first, link.reader - first
            needed_from, needed_to = self.steps[link.reader].needs(link.operand)
            done = nest.runs_before(writer, reader, len(needed_to), ahead[reader])
            extent = self.steps[link.writer].extent
            there = np.minimum(nest.chunks[writer] * done + ahead[writer], extent)
            most = int((there - needed_from)[needed_from < needed_to].max(initial=1))
            kept[link.tensor] = max(kept.get(link.tensor, 0), most, min(nest.chunks[writer], extent))
        extents = {tensor: self.tensors.all[tensor].views[0].type.shape[AXIS] for tensor in kept}
        return {tensor: rows for tensor, rows in kept.items() if rows < extents[tensor]}


class _Nest:
    """Loops in each other, by the rates of steps: one with twice the rate of another runs twice as often.

    Runs of a step are counted from 0, the first of trip 0 of the outermost loop, and end a chunk of rows further each; below 0 and beyond
    the last row nothing is computed.
    """

    def __init__(self, rates: Sequence[int], rows: int) -> None:
        levels = [1]  # runs in a trip of the outermost loop
        for rate in sorted(set(rates)):
            if rate > levels[-1] and rate % levels[-1] == 0 and len(levels) < MOST_LEVELS:
                levels.append(rate)
        self._rows = [rate * rows for rate in rates]  # in a trip
        self._runs = [max(level for level in levels if rate % level == 0) for rate in rates]
        self.chunks = [n // runs for n, runs in zip(self._rows, self._runs, strict=True)]
        self.order = list(self._walk(0, len(rates), 1))
        self._places = [np.flatnonzero(np.array(self.order) == step) for step in range(len(rates))]

    def moves(self, step: int) -> int:
        """Rows of a step in a trip."""
        return self._rows[step]

    def trip(self, step: int, run: int) -> int:
        return run // self._runs[step]

    def run_of_row(self, step: int, row: int, ahead: int) -> int:
        return (row - ahead) // self.chunks[step] + 1

    def runs_before(self, writer: int, reader: int, rows: int, ahead: int) -> NDArray[np.int64]:
        """For each row of the reader, which has so many and is so far ahead, the writer's last run before the one that computes it."""
        run = (np.arange(rows) - ahead) // self.chunks[reader] + 1
        trip, within = np.divmod(run, self._runs[reader])
        before = np.searchsorted(self._places[writer], self._places[reader]) - 1
        return trip * self._runs[writer] + before[within]

    def loops(self, first: int, trips: int) -> Iterator[Loop]:
        """first: the step that is number 0 here."""
        yield Loop(first, trips, tuple(self._rows))
        yield from self._inner_loops(first, 0, len(self._runs), 1)

    def _inner_loops(self, first: int, begin: int, end: int, runs: int) -> Iterator[Loop]:
        for inner, inner_end, often in self._inner(begin, end, runs):
            yield Loop(first + inner, often // runs, tuple(n // often for n in self._rows[inner:inner_end]))
            yield from self._inner_loops(first, inner, inner_end, often)

    def _walk(self, begin: int, end: int, runs: int) -> Iterator[int]:
        """The steps in the order they run in a trip of a loop with so many runs."""
        at = begin
        for inner, inner_end, often in self._inner(begin, end, runs):
            yield from range(at, inner)
            for _ in range(often // runs):
                yield from self._walk(inner, inner_end, often)
            at = inner_end
        yield from range(at, end)

    def _inner(self, begin: int, end: int, runs: int) -> Iterator[tuple[int, int, int]]:
        """The longest ranges of steps that run more often than so, and how often they do so together."""
        at = begin
        while at < end:
            if self._runs[at] == runs:
                at += 1
                continue
            last = at
            while last < end and self._runs[last] > runs:
                last += 1
            yield at, last, min(self._runs[at:last])
            at = last

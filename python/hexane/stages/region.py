"""Solves how steps that follow one another compute their tensors a few rows at a time.

    e = conv(x); d = depthwise(e); p = conv(d) + x
    ->  for each row of p: the rows of e that d needs now, the row of d, the row of p

All run in one loop, each some rows ahead of its readers, and what lies between them is a ring of a few rows that is long enough
for all of them. Steps whose images are larger run more often: their loop is inside that of the others. Each row is computed once.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
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


class _Read(NamedTuple):
    """One operand of a step: who writes it, and whether it can be read row by row."""

    links: list[_Link]
    by_rows: bool


class _Flow(NamedTuple):
    """What is the same for all numbers of rows: who reads what, which of it may be rings, and in which order steps run."""

    links: list[_Link]
    rings: set[int]
    order: "_Order"


class Regions:
    """The regions of a program."""

    def __init__(self, program: Program, tensors: Tensors) -> None:
        self.program, self.tensors = program, tensors
        self.steps = [StepRows(step, program.target) for step in program.steps]
        self._reads: dict[int, list[_Read]] = {}
        self._flows: dict[tuple[int, int], _Flow | None] = {}

    def can_run(self, step: int) -> bool:
        """Whether the step may be part of a region."""
        return self.steps[step].is_cut and self.program.buffers[self.steps[step].out.buffer].kind in ("arena", "port")

    def solve(self, first: int, end: int, rows: int) -> Region | None:
        """The steps [first, end), the least of which compute so many rows in one run; None where they cannot run row by row."""
        if (first, end) not in self._flows:
            self._flows[first, end] = self._flow(first, end)
        flow = self._flows[first, end]
        if flow is None:
            return None
        nest = _Nest(flow.order, rows)
        ahead, done = self._ahead(first, end, flow.links, nest)
        rings = self._rings(first, flow, nest, ahead, done)
        extents = [self.steps[i].extent for i in range(first, end)]
        first_trip = min(nest.trip(i, nest.run_of_row(i, 0, ahead[i])) for i in range(end - first))
        last_trip = max(nest.trip(i, nest.run_of_row(i, n - 1, ahead[i])) for i, n in enumerate(extents))
        trips = last_trip + 1 - first_trip
        if 2 * trips * len(flow.order.steps) > MOST_RUNS:  # outer loops count the steps of inner ones as well
            return None
        ends = [first_trip * nest.moves(i) + ahead[i] for i in range(end - first)]
        cuts = tuple((behind - chunk, behind) for behind, chunk in zip(ends, nest.chunks, strict=True))
        return Region(first, cuts, tuple(nest.loops(first, trips)), rings)

    def _flow(self, first: int, end: int) -> "_Flow | None":
        links = self._links(first, end)
        if links is None:
            return None
        rates = self._rates(first, end, links)
        if max(rates) > MOST_RATE:
            return None
        rings = {tensor for tensor in {link.tensor for link in links} if self._is_ring(tensor, first, end)}
        return _Flow(links, rings, _Order(rates))

    def _links(self, first: int, end: int) -> list[_Link] | None:
        links = []
        for reader in range(first, end):
            for read in self._reads_of(reader):
                inside = [first <= link.writer < end for link in read.links]
                if not any(inside):
                    continue
                if not all(inside) or not read.by_rows:
                    return None
                links += read.links
        return links

    def _reads_of(self, reader: int) -> "list[_Read]":
        """What the step reads of other steps."""
        if reader not in self._reads:
            self._reads[reader] = [
                _Read(
                    [_Link(writer, reader, operand, tensor) for writer, _ in self.tensors.all[tensor].writers],
                    self._lies_in_rows(tensor) and not self.steps[reader].is_packed(operand),
                )
                for operand, tensor in enumerate(self.tensors.inputs[reader])
                if tensor is not None
            ]
        return self._reads[reader]

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
            reader = self.steps[link.reader]
            ratios[link.reader].append((link.writer, reader.stride(link.operand)))
            ratios[link.writer].append((link.reader, reader.inverse_stride(link.operand)))
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

    def _ahead(
        self, first: int, end: int, links: Sequence[_Link], nest: "_Nest"
    ) -> tuple[list[int], dict[_Link, NDArray[np.int64]]]:
        """The rows that each step has computed after its run 0: as few as its readers allow. And for each link
        the rows that the writer has computed, beyond those, before each row of the reader that needs any."""
        before: dict[_Link, NDArray[np.int64]] = {}
        readers: dict[int, list[_Link]] = {step: [] for step in range(first, end)}
        for link in links:
            readers[link.writer].append(link)
        ahead = list(nest.chunks)
        for writer in reversed(range(end - first)):
            wanted = []
            for link in readers[first + writer]:
                reader = link.reader - first
                rows, _, behind = self.steps[link.reader].needed(link.operand)
                done = before[link] = nest.chunks[writer] * nest.runs_before(writer, reader, rows, ahead[reader])
                if len(rows):
                    wanted.append(int((behind - done).max()))
            ahead[writer] = max(wanted, default=nest.chunks[writer])
        return ahead, before

    def _rings(
        self,
        first: int,
        flow: _Flow,
        nest: "_Nest",
        ahead: Sequence[int],
        done: Mapping[_Link, NDArray[np.int64]],
    ) -> dict[int, int]:
        kept: dict[int, int] = {}
        for link in flow.links:
            if link.tensor not in flow.rings:
                continue
            writer = link.writer - first
            _, needed_from, _ = self.steps[link.reader].needed(link.operand)
            extent = self.steps[link.writer].extent
            there = np.minimum(done[link] + ahead[writer], extent)
            most = int((there - needed_from).max(initial=1))
            kept[link.tensor] = max(kept.get(link.tensor, 0), most, min(nest.chunks[writer], extent))
        extents = {tensor: self.tensors.all[tensor].views[0].type.shape[AXIS] for tensor in kept}
        return {tensor: rows for tensor, rows in kept.items() if rows < extents[tensor]}


class _Order:
    """The order in which steps run, by their rates: one with twice the rate of another runs twice as often. runs: of each in a trip of
    the outermost loop; steps: in the order of such a trip."""

    def __init__(self, rates: Sequence[int]) -> None:
        levels = [1]  # runs in a trip of the outermost loop
        for rate in sorted(set(rates)):
            if rate > levels[-1] and rate % levels[-1] == 0 and len(levels) < MOST_LEVELS:
                levels.append(rate)
        self.rates = rates
        self.runs = [max(level for level in levels if rate % level == 0) for rate in rates]
        self.steps = list(self._walk(0, len(rates), 1))
        self._places: list[list[int]] = [[] for _ in rates]
        for place, step in enumerate(self.steps):
            self._places[step].append(place)
        self._before: dict[tuple[int, int], NDArray[np.int64]] = {}

    def before(self, writer: int, reader: int) -> NDArray[np.int64]:
        """For each run of the reader in a trip the writer's last one before it; -1: none."""
        if (writer, reader) not in self._before:
            places = self._places[writer]
            found = [bisect_left(places, place) - 1 for place in self._places[reader]]
            self._before[writer, reader] = np.array(found, np.int64)
        return self._before[writer, reader]

    def _walk(self, begin: int, end: int, runs: int) -> Iterator[int]:
        """The steps in the order they run in a trip of a loop with so many runs."""
        at = begin
        for inner, inner_end, often in self.inner(begin, end, runs):
            yield from range(at, inner)
            for _ in range(often // runs):
                yield from self._walk(inner, inner_end, often)
            at = inner_end
        yield from range(at, end)

    def inner(self, begin: int, end: int, runs: int) -> Iterator[tuple[int, int, int]]:
        """The longest ranges of steps that run more often than so, and how often they do so together."""
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


class _Nest:
    """Loops in each other. rows: that the slowest step computes in a trip.

    Runs of a step are counted from 0, the first of trip 0 of the outermost loop, and end a chunk of rows further each; below 0 and beyond
    the last row nothing is computed.
    """

    def __init__(self, order: _Order, rows: int) -> None:
        self._order, self._runs = order, order.runs
        self._rows = [rate * rows for rate in order.rates]  # in a trip
        self.chunks = [n // runs for n, runs in zip(self._rows, self._runs, strict=True)]

    def moves(self, step: int) -> int:
        """Rows of a step in a trip."""
        return self._rows[step]

    def trip(self, step: int, run: int) -> int:
        return run // self._runs[step]

    def run_of_row(self, step: int, row: int, ahead: int) -> int:
        return (row - ahead) // self.chunks[step] + 1

    def runs_before(self, writer: int, reader: int, rows: NDArray[np.int64], ahead: int) -> NDArray[np.int64]:
        """For each of these rows of the reader, which is so far ahead, the writer's last run before the one that computes it."""
        run: NDArray[np.int64] = (rows - ahead) // self.chunks[reader] + 1
        if self._runs[reader] == 1:
            return run * self._runs[writer] + int(self._order.before(writer, reader)[0])
        trip, within = np.divmod(run, self._runs[reader])
        return trip * self._runs[writer] + self._order.before(writer, reader)[within]

    def loops(self, first: int, trips: int) -> Iterator[Loop]:
        """first: the step that is number 0 here."""
        yield Loop(first, trips, tuple(self._rows))
        yield from self._inner_loops(first, 0, len(self._runs), 1)

    def _inner_loops(self, first: int, begin: int, end: int, runs: int) -> Iterator[Loop]:
        for inner, inner_end, often in self._order.inner(begin, end, runs):
            yield Loop(first + inner, often // runs, tuple(n // often for n in self._rows[inner:inner_end]))
            yield from self._inner_loops(first, inner, inner_end, often)

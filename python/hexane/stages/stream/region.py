"""Finds how consecutive steps can compute their tensors a few rows at a time.

    e = conv(x); d = depthwise(e); p = conv(d) + x
    ->  for each row of p: the rows of e that d needs now, the row of d, the row of p

All steps of a region run in one loop, each some rows ahead of its readers. Between two steps, a ring buffer keeps the
few rows that the readers need. Steps with larger images run more often, in an inner loop. Each row of an image is
computed once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hexane.program import Loop, Program
from hexane.stages.bufferize.tensors import Tensors
from hexane.stages.stream.loop_nest import Nest, Order
from hexane.stages.stream.overlay import Overlay, Overlays
from hexane.stages.stream.rows import AXIS, StepRows, lies_in_rows

MOST_RUNS = 1 << 20  # the most runs of steps in a plan
MOST_RATE = 1 << 10
SLOWEST = 64  # the most rows of the last step per row of a step that shares no data with it


@dataclass(frozen=True, slots=True)
class Region:
    """Consecutive steps from `first` on that run in loops. cuts: the row range of each step in its first run. loops:
    the outermost first. rings: index of a tensor -> the rows kept of it. spans: index of a tensor -> the live range of
    its ring within a trip, in steps, if the ring carries nothing between trips of a loop."""

    first: int
    cuts: tuple[tuple[int, int], ...]
    loops: tuple[Loop, ...]
    rings: dict[int, int]
    spans: dict[int, tuple[int, int]]
    overlay: Overlay | None = None

    @property
    def end(self) -> int:
        return self.first + len(self.cuts)


class _Link(NamedTuple):
    """A read within a region: input `operand` of the step `reader` is written by the step `writer`."""

    writer: int
    reader: int
    operand: int
    tensor: int


class _Read(NamedTuple):
    """One operand of a step: the steps that write it, and whether it can be read row by row."""

    links: list[_Link]
    by_rows: bool


class _Flow(NamedTuple):
    """The data that is independent of the number of rows: the reads, the possible rings, and the order of steps."""

    links: list[_Link]
    rings: set[int]
    order: Order


class Regions:
    """Solves the regions of a program."""

    def __init__(self, program: Program, tensors: Tensors) -> None:
        self.program, self.tensors = program, tensors
        self.steps = [StepRows(step, program) for step in program.steps]
        self._reads: dict[int, list[_Read]] = {}
        self._flows: dict[tuple[int, int], _Flow | None] = {}
        self._paces: dict[tuple[int, int, tuple[object, ...], int], _Pace] = {}
        self._overlays = Overlays(tensors, self.steps)

    def can_run(self, step: int) -> bool:
        """True if the step may be part of a region."""
        return self.steps[step].is_cut and self.program.buffers[self.steps[step].out.buffer].kind in ("arena", "port")

    def solve(self, first: int, end: int, rows: int) -> Region | None:
        """Returns the region of the steps [first, end), in which the slowest step computes `rows` rows per run. Returns
        None if the steps cannot run row by row."""
        if (first, end) not in self._flows:
            self._flows[first, end] = self._flow(first, end)
        flow = self._flows[first, end]
        if flow is None:
            return None
        nest = Nest(flow.order, rows)
        ahead, paces = self._ahead(first, end, flow.links, nest)
        rings = self._rings(first, flow, nest, ahead, paces)
        extents = [self.steps[i].extent for i in range(first, end)]
        first_trip = min(nest.trip(i, nest.run_of_row(i, 0, ahead[i])) for i in range(end - first))
        last_trip = max(nest.trip(i, nest.run_of_row(i, n - 1, ahead[i])) for i, n in enumerate(extents))
        trips = last_trip + 1 - first_trip
        if 2 * trips * len(flow.order.steps) > MOST_RUNS:  # each run of an inner loop's steps counts
            return None
        ends = [first_trip * nest.moves(i) + ahead[i] for i in range(end - first)]
        cuts = tuple((stop - chunk, stop) for stop, chunk in zip(ends, nest.chunks, strict=True))
        spans = self._spans(first, flow, nest, ahead, paces, rings)
        return Region(first, cuts, tuple(nest.loops(first, trips)), rings, spans)

    def overlay(self, region: Region, rows: int, alignment: int) -> Overlay | None:
        """Returns the overlay that saves the most bytes: a tensor that the region writes over one that it reads for the
        last time. Returns None if no overlay saves bytes."""
        first, end = region.first, region.end
        flow = self._flows[first, end]
        assert flow is not None
        nest = Nest(flow.order, rows)
        ahead, _ = self._ahead(first, end, flow.links, nest)
        return self._overlays.best(first, end, nest, ahead, alignment)

    def _flow(self, first: int, end: int) -> "_Flow | None":
        links = self._links(first, end)
        if links is None:
            return None
        rates = self._rates(first, end, links)
        if max(rates) > MOST_RATE:
            return None
        rings = {tensor for tensor in {link.tensor for link in links} if self._is_ring(tensor, first, end)}
        return _Flow(links, rings, Order(rates))

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
        """Returns the operands that the step reads from other steps."""
        if reader not in self._reads:
            self._reads[reader] = [
                _Read(
                    [_Link(writer, reader, operand, tensor) for writer, _ in self.tensors.all[tensor].writers],
                    lies_in_rows(self.tensors.all[tensor]) and not self.steps[reader].is_packed(operand),
                )
                for operand, tensor in enumerate(self.tensors.inputs[reader])
                if tensor is not None
            ]
        return self._reads[reader]

    def _is_ring(self, tensor: int, first: int, end: int) -> bool:
        contents = self.tensors.all[tensor]
        view = contents.views[0]
        if not contents.in_arena or contents.first < first or contents.last >= end or not contents.readers:
            return False
        if view.type.shape[AXIS] * view.strides[AXIS] != contents.bytes:
            return False
        return all(self.steps[reader].reads_ring(operand) for reader, operand in contents.readers)

    def _rates(self, first: int, end: int, links: Sequence[_Link]) -> list[int]:
        """Returns the relative number of rows that each step computes, in the smallest whole numbers. If branches have
        different rates, their rings hold the difference."""
        ratios: dict[int, list[tuple[int, Fraction]]] = {step: [] for step in range(first, end)}
        for link in links:
            reader = self.steps[link.reader]
            ratios[link.reader].append((link.writer, reader.stride(link.operand)))
            ratios[link.writer].append((link.reader, reader.inverse_stride(link.operand)))
        rate_of: dict[int, Fraction] = {}
        for step in reversed(range(first, end)):
            if step in rate_of:
                continue
            ratio = Fraction(self.steps[step].extent, self.steps[end - 1].extent)
            rate_of[step] = max(ratio.limit_denominator(SLOWEST), Fraction(1, SLOWEST))  # 4 / 2,000 must not become 0
            reached = [step]
            while reached:
                at = reached.pop()
                for other, ratio in ratios[at]:
                    if other not in rate_of:
                        rate_of[other] = rate_of[at] * ratio
                        reached.append(other)
        whole = lcm(*(rate.denominator for rate in rate_of.values()))
        rates = [int(rate_of[step] * whole) for step in range(first, end)]
        return [rate // gcd(*rates) for rate in rates]

    def _ahead(
        self, first: int, end: int, links: Sequence[_Link], nest: Nest
    ) -> tuple[list[int], dict[_Link, "_Pace"]]:
        """Returns the fewest rows that each step must have computed after its run 0 so that its readers can run, and
        for each link the rows of its writer that exist at each run of its reader."""
        paces: dict[_Link, _Pace] = {}
        readers: dict[int, list[_Link]] = {step: [] for step in range(first, end)}
        for link in links:
            readers[link.writer].append(link)
        ahead = list(nest.chunks)
        for writer in reversed(range(end - first)):
            wanted = []
            for link in readers[first + writer]:
                reader = link.reader - first
                key = link.reader, link.operand, nest.pace(writer, reader), ahead[reader]
                if key not in self._paces:
                    self._paces[key] = _Pace(
                        *self.steps[link.reader].needed(link.operand), nest, writer, reader, ahead[reader]
                    )
                pace = paces[link] = self._paces[key]
                if pace.wanted is not None:
                    wanted.append(pace.wanted)
            ahead[writer] = max(wanted, default=nest.chunks[writer])
        return ahead, paces

    def _rings(
        self, first: int, flow: _Flow, nest: Nest, ahead: Sequence[int], paces: Mapping[_Link, "_Pace"]
    ) -> dict[int, int]:
        kept: dict[int, int] = {}
        for link in flow.links:
            if link.tensor in flow.rings:
                writer = link.writer - first
                extent = self.steps[link.writer].extent
                most = max(paces[link].kept(ahead[writer], extent), min(nest.chunks[writer], extent))
                kept[link.tensor] = max(kept.get(link.tensor, 0), most)
        extents = {tensor: self.tensors.all[tensor].views[0].type.shape[AXIS] for tensor in kept}
        return {tensor: rows for tensor, rows in kept.items() if rows < extents[tensor]}

    def _spans(
        self,
        first: int,
        flow: _Flow,
        nest: Nest,
        ahead: Sequence[int],
        paces: Mapping[_Link, "_Pace"],
        rings: Mapping[int, int],
    ) -> dict[int, tuple[int, int]]:
        """Returns the spans of rings whose readers need no row from an earlier trip of the smallest loop around readers
        and writers."""
        users: dict[int, list[_Link]] = {}
        for link in flow.links:
            if link.tensor in rings:
                users.setdefault(link.tensor, []).append(link)
        result = {}
        for tensor, links in users.items():
            steps = [step - first for link in links for step in (link.writer, link.reader)]
            low, high = min(steps), max(steps)
            if rings[tensor] > max(nest.moves(link.writer - first) for link in links):
                continue
            begin, last, often = flow.order.around(low, high)
            if all(
                paces[link].is_within_a_trip(ahead[link.writer - first], self.steps[link.writer].extent, often)
                for link in links
            ):
                result[tensor] = first + begin, first + last
        return result


class _Pace:
    """The timing of a step that reads the result of another step: the rows that exist at each run of the reader.

    wanted: the rows that the writer must have computed after its run 0, or None if nothing is read.
    """

    def __init__(
        self,
        rows: NDArray[np.int64],
        needed_from: NDArray[np.int64],
        stop: NDArray[np.int64],
        nest: Nest,
        writer: int,
        reader: int,
        ahead: int,
    ) -> None:
        self._needed_from = needed_from
        self._runs = nest.runs_of_rows(reader, rows, ahead)
        self._chunk = nest.chunks[writer]
        self._often = nest.often(writer), nest.often(reader)
        self._done = self._chunk * nest.runs_before(writer, reader, self._runs)
        self.wanted = int((stop - self._done).max()) if len(rows) else None
        self._kept: dict[tuple[int, int], int] = {}
        self._within: dict[tuple[int, int, int], bool] = {}

    def kept(self, ahead: int, extent: int) -> int:
        """Returns the most rows that must be kept, from the first row still needed to the last row computed. ahead,
        extent: the rows that the writer has computed after its run 0, and its number of rows."""
        key = ahead, extent
        if key not in self._kept:
            self._kept[key] = int((np.minimum(self._done + ahead, extent) - self._needed_from).max(initial=1))
        return self._kept[key]

    def is_within_a_trip(self, ahead: int, extent: int, often: int) -> bool:
        """True if no row from an earlier trip is needed, for a loop with `often` trips per trip of the outermost
        loop."""
        key = ahead, extent, often
        if key not in self._within:
            writes, reads = self._often
            before = ahead + self._chunk * (self._runs // (reads // often) * (writes // often) - 1)
            self._within[key] = bool((self._needed_from >= np.minimum(before, extent)).all())
        return self._within[key]

"""Streams parts of a program row by row, so that ring buffers of a few rows replace the tensors between their steps.

The chosen parts minimise the arena, or fit into a budget with the fewest steps in loops. The results have the same
bits, and every row is computed once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import ceil, inf, log

import numpy as np

from hexane.graph import Node
from hexane.program import Buffer, Program, View
from hexane.stages.bufferize.allocate import allocate, live_bytes, rounded_up
from hexane.stages.bufferize.place import place
from hexane.stages.bufferize.ports_in_arena import Body, hold
from hexane.stages.bufferize.tensors import Tensors, find_tensors
from hexane.stages.stream.by_rows import by_rows
from hexane.stages.stream.overlay import Overlay
from hexane.stages.stream.region import Region, Regions
from hexane.stages.stream.rows import AXIS
from hexane.stages.stream.slow_memory import SlowChoice
from hexane.stages.stream.stream_ports import stream_ports_as

COST_STEP = 65 / 64
COSTS_BELOW = 4
MORE_ROWS = (8, 4, 2)
FAST_STEP = 2**0.25  # The ratio of one tried size of fast memory to the next.
FAST_STEPS = 4  # The number of sizes tried below the given size.


def stream(
    program: Program, rows: int = 1, budget: int = 0, order: str | None = None, holds_ports: bool = False
) -> Program:
    """Returns the program with offsets, and with regions in loops if loops make the arena smaller.

    rows: the fewest rows that one run of a step computes. budget: target arena size in bytes; 0 for the smallest
    possible. order: the order with which `place` made the program. With an order, a second program is tried, with
    operands of concatenations in their own memory. holds_ports: inputs and outputs are in the arena.
    """
    return Streams(program, order, holds_ports).stream(rows, budget)


class Streams:
    """`stream` for several numbers of rows and budgets. Results that depend on neither rows nor budget are cached."""

    def __init__(
        self,
        program: Program,
        order: str | None = None,
        holds_ports: bool = False,
        stripe_of: Mapping[Node, int] | None = None,
    ) -> None:
        """stripe_of: the number of the column stripe of each node (stages/stream/column_tiles.py)."""
        self._program, self._order, self._holds_ports = program, order, holds_ports
        self._stripe_of = stripe_of or {}

    def stream(self, rows: int, budget: int = 0) -> Program:
        """Returns the program with at least this many rows per run, within the budget if possible."""
        best = self._whole.streamed(rows, budget)
        if arena_bytes(best) > budget and "concat" in self._program.graph.ops and self._order is not None:
            best = min(best, self._apart.streamed(rows, budget), key=arena_bytes)
        return best

    def for_slow(self, fast: int, most: int) -> list[Program]:
        """Returns programs that move few bytes from and to slow memory, if `fast` bytes of fast memory are not enough.
        most: the bytes of fast and slow memory. The programs for a size are also tried for the next larger size."""
        result = self._whole.for_slow(fast, most)
        if "concat" in self._program.graph.ops and self._order is not None:
            result += self._apart.for_slow(fast, most)
        return result

    @cached_property
    def _whole(self) -> "_Streamable":
        return _Streamable(self._program, self._holds_ports, self._stripe_of)

    @cached_property
    def _apart(self) -> "_Streamable":
        """The program whose operands of concatenations are computed in their own memory and copied."""
        whole = self._program
        program = place(whole.graph, whole.target, self._order or "", separate=True, runtime=whole.runtime)
        program = stream_ports_as(program, whole)
        return _Streamable(program, self._holds_ports, self._stripe_of)


class _Streamable:
    """A program of whole tensors, and its possible regions."""

    def __init__(self, program: Program, holds_ports: bool, stripe_of: Mapping[Node, int]) -> None:
        self._program, self._holds_ports, self._stripe_of = program, holds_ports, stripe_of
        self._allocated = allocate(hold(program)[0] if holds_ports else program)

    @cached_property
    def _choice(self) -> "Choice":
        program = by_rows(self._program)
        program, body = hold(program) if self._holds_ports else (program, None)
        return Choice(program, body, self._stripe_of)

    def streamed(self, rows: int, budget: int) -> Program:
        best = self._allocated
        if arena_bytes(best) <= budget:
            return best
        choice, chosen = self._choice, None
        for most, overlays in _costs(choice, rows, budget):
            regions = choice.regions(rows, most, overlays)
            candidate = with_regions(choice.program, regions, choice.tensors)
            if max(live_bytes(candidate), default=0) < arena_bytes(best):
                candidate = allocate(candidate)
                if arena_bytes(candidate) < arena_bytes(best):
                    best, chosen = candidate, regions
            if arena_bytes(best) <= budget:
                break
        return best if chosen is None else self._with_more_rows(best, chosen, rows, budget)

    def for_slow(self, fast: int, most: int) -> list[Program]:
        choice = self._choice
        step = int(log(max(1, fast), FAST_STEP))
        sizes = [int(FAST_STEP**i) for i in range(max(0, step - FAST_STEPS), step + 1)]
        several = []
        for size in sizes:
            if (regions := choice.slow.regions(size, most)) not in several:
                several.append(regions)
        return [allocate(with_regions(choice.program, regions, choice.tensors)) for regions in several]

    def _with_more_rows(self, program: Program, regions: list[Region], rows: int, budget: int) -> Program:
        """Returns the program with more rows per run, which is faster, in as many regions as the memory allows: the
        larger of the present arena and the budget."""
        choice, most = self._choice, max(arena_bytes(program), budget)
        grown = [choice.with_more_rows(region, rows, most) for region in regions]
        if grown != regions:
            result = with_regions(choice.program, grown, choice.tensors)
            if max(live_bytes(result), default=0) <= most and arena_bytes(result := allocate(result)) <= most:
                return result
        return program


def _costs(choice: "Choice", rows: int, budget: int) -> Iterator[tuple[float, bool]]:
    """Yields the costs to try for a choice, from the highest to the lowest, and whether overlays are allowed. Several
    costs are tried because a packing may need more than the live bytes. A larger budget only adds higher costs, so a
    choice found for one budget is also found for each larger one."""
    least_plain = choice.least(rows, False)
    steps = int(log(budget / least_plain, COST_STEP)) if least_plain and budget > least_plain else 0
    for step in reversed(range(steps + 1)):
        yield least_plain * COST_STEP**step, False
    if (least := choice.least(rows, True)) < least_plain:
        for part in reversed(range(COSTS_BELOW)):
            yield least + (least_plain - least) * part / COSTS_BELOW, True


def arena_bytes(program: Program) -> int:
    """Returns the bytes of all arenas."""
    return sum(extent.bytes for extent in program.extents.values() if extent.space.kind == "arena")


class Choice:
    """The best disjoint regions, by dynamic programming over the steps at which a region may begin and end.

    The cost of a region is its live bytes: its rings, the whole tensors that it reads and writes, and other live
    tensors. The cost of a choice is the largest cost of a region or step.
    """

    def __init__(self, program: Program, body: Body | None = None, stripe_of: Mapping[Node, int] | None = None) -> None:
        """body: no region may straddle the ends of this range. stripe_of: the stripe of each node. A region has all
        steps of a stripe, or none."""
        self.program = program
        stripes = [(stripe_of or {}).get(step.node) for step in program.steps]
        # By step: whether the next step is in the same stripe.
        self._in_stripe = [a is not None and a == b for a, b in pairwise((*stripes, None))]
        ends = [i for i, (a, b) in enumerate(pairwise(stripes), 1) if a != b]
        self._barriers = (0, *ends) if body is None else (0, body.first, body.end, *ends)
        self.tensors = find_tensors(program)
        self._regions = Regions(program, self.tensors)
        self._count = len(program.steps)
        self._alignment = program.space("arena").alignment
        in_arena = [t for t in self.tensors.all if t.in_arena]
        self._first = np.array([t.first for t in in_arena], np.int64)
        self._last = np.array([t.last for t in in_arena], np.int64)
        self._bytes = np.array([rounded_up(t.bytes, self._alignment) for t in in_arena], np.int64)
        self._of = {id(t): i for i, t in enumerate(in_arena)}
        self._solved: dict[tuple[int, int, int], tuple[float, Region | None]] = {}
        self._overlaid: dict[tuple[int, int, int], tuple[float, Region | None]] = {}
        self.steps = self._costs_of_steps()
        self.floors = self._floors_of_regions()
        self.begins = self._first_begins()

    @cached_property
    def slow(self) -> SlowChoice:
        """The choice for programs with slow memory."""
        return SlowChoice(self.program, self.tensors, self._regions.steps, self.begins, self.steps, self.solve)

    def regions(self, rows: int, most: float, overlays: bool) -> list[Region]:
        """Returns the regions with the fewest steps in loops among the choices that cost at most `most`. overlays:
        allowed in a region that would cost more than `most` without one."""
        fewest = [0.0] + [inf] * self._count
        chosen: list[Region | None] = [None] * (self._count + 1)
        for end in range(1, self._count + 1):
            if self.steps[end - 1] <= most:
                fewest[end] = fewest[end - 1]
            begins = range(self.begins[end - 1], end - 1)
            for begin in sorted(begins, key=lambda begin: fewest[begin] - begin):
                if fewest[begin] + end - begin >= fewest[end]:
                    break
                if self.floors[begin, end] > most:
                    continue
                cost, region = self.solve(begin, end, rows, most if overlays else inf)
                if cost <= most:
                    fewest[end], chosen[end] = fewest[begin] + end - begin, region
        regions, end = [], self._count
        while end:
            region = chosen[end]
            if region is not None:
                regions.append(region)
            end = end - 1 if region is None else region.first
        return regions[::-1]

    def with_more_rows(self, region: Region, rows: int, most: float) -> Region:
        """Returns the region with the most rows per run that costs at most `most`."""
        for times in MORE_ROWS:
            enough = most if region.overlay else inf
            cost, result = self.solve(region.first, region.end, rows * times, enough)
            if result is not None and cost <= most:
                return result
        return region

    def least(self, rows: int, overlays: bool) -> float:
        """Returns the cost of the cheapest choice."""
        least = [0.0]
        for end in range(1, self._count + 1):
            cost = max(least[end - 1], self.steps[end - 1])
            begins = range(self.begins[end - 1], end - 1)
            floors = {begin: max(least[begin], self.floors[begin, end]) for begin in begins}
            for begin in sorted(begins, key=floors.__getitem__):
                if floors[begin] >= cost:
                    break
                cost = min(cost, max(least[begin], self.solve(begin, end, rows, least[begin] if overlays else inf)[0]))
            least.append(cost)
        return least[-1]

    def solve(self, begin: int, end: int, rows: int, enough: float = inf) -> tuple[float, Region | None]:
        """Returns the cost and the region of these steps. An overlay is used only if the region would cost more than
        `enough` without one."""
        key = begin, end, rows
        if key not in self._solved:
            region = self._regions.solve(begin, end, rows)
            self._solved[key] = (inf, None) if region is None else (self.cost(region), region)
        cost, region = self._solved[key]
        if cost <= enough or region is None:
            return cost, region
        if key not in self._overlaid:
            overlay = self._regions.overlay(region, rows, self._alignment)
            if overlay is not None:
                region = replace(region, overlay=overlay)
                cost -= self._saved(overlay)
            self._overlaid[key] = cost, region
        return self._overlaid[key]

    def _saved(self, overlay: Overlay) -> int:
        separate = sum(rounded_up(self.tensors.all[t].bytes, self._alignment) for t in (overlay.under, overlay.over))
        return separate - rounded_up(overlay.bytes(self.tensors), self._alignment)

    def crossing(self, begin: int, end: int) -> int:
        """Returns the bytes of the tensors that are live beyond either end of these steps."""
        return int(
            self._bytes[
                (self._first < end) & (self._last >= begin) & ((self._first < begin) | (self._last >= end))
            ].sum()
        )

    def cost(self, region: Region, shares: Mapping[int, float] | None = None) -> float:
        """Returns the live bytes of a region. shares: the share of each tensor, by its index, that exists at a time; 1
        for other tensors."""
        live = (self._first < region.end) & (self._last >= region.first)
        cost: float = int(self._bytes[live].sum())
        parts = shares or {}
        for tensor, part in parts.items():
            if tensor not in region.rings and (contents := self.tensors.all[tensor]).in_arena:
                cost -= (1 - part) * contents.bytes
        change = [0] * (len(region.cuts) + 1)
        for tensor, rows in region.rings.items():
            contents = self.tensors.all[tensor]
            row = ceil(contents.views[0].strides[AXIS] * parts.get(tensor, 1.0))
            ring = rounded_up(rows * row, self._alignment)
            cost -= int(self._bytes[self._of[id(contents)]])
            first, last = region.spans.get(tensor, (region.first, region.end - 1))
            change[first - region.first] += ring
            change[last + 1 - region.first] -= ring
        return cost + max(accumulate(change))

    def _costs_of_steps(self) -> list[int]:
        """Returns the bytes live at each single step. A result that overwrites its operand is counted once."""
        change = np.zeros(self._count + 1, np.int64)
        np.add.at(change, self._first, self._bytes)
        np.add.at(change, self._last + 1, -self._bytes)
        for tensor in self.tensors.all:
            if tensor.in_arena and tensor.version:
                change[tensor.first] -= (size := rounded_up(tensor.bytes, self._alignment))
                change[tensor.first + 1] += size
        return [int(live) for live in np.cumsum(change)[: self._count]]

    def _floors_of_regions(self) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
        """Returns a lower bound of the cost of each region [begin, end): the bytes of the tensors that are live beyond
        either end, less the bytes that an overlay of two of them may save."""
        at = np.arange(self._count + 1)[:, None]
        crosses = ((self._first < at) & (self._last >= at)).astype(np.float64)
        alone = crosses @ self._bytes
        largest = (crosses * self._bytes).max(axis=1, initial=0)
        floors = alone[:, None] + alone[None, :] - (crosses * self._bytes) @ crosses.T
        return np.asarray(floors - np.minimum(largest[:, None], largest[None, :]))

    def _first_begins(self) -> list[int]:
        """Returns for each step the earliest begin of a region that includes it, or the next step if there is none."""
        begins: list[int] = []
        for step in range(self._count):
            before = max([begins[-1] if begins else 0, *(barrier for barrier in self._barriers if barrier <= step)])
            begins.append(before if self._regions.can_run(step) else step + 1)
        return [step + 1 if self._in_stripe[step] else begin for step, begin in enumerate(begins)]


def with_regions(program: Program, regions: list[Region], tensors: Tensors) -> Program:
    """Returns the program with these regions. In a region, a result that overwrote its operand gets its own buffer."""
    steps, buffers = list(program.steps), list(program.buffers)
    rings = {tensor: rows for region in regions for tensor, rows in region.rings.items()}
    inside = {step for region in regions for step in range(region.first, region.end)}
    now: dict[int, int] = {}  # the new buffer of each buffer's contents
    homes = []
    for i, tensor in enumerate(tensors.all):
        if tensor.version and tensor.first in inside:
            buffers.append(program.buffers[tensor.buffer])
            now[tensor.buffer] = len(buffers) - 1
        homes.append(now.setdefault(tensor.buffer, tensor.buffer))
        if i in rings:
            view = tensor.views[0]
            buffers[homes[i]] = replace(buffers[homes[i]], bytes=rings[i] * view.strides[AXIS])
    moved = _overlaid(buffers, homes, [region.overlay for region in regions if region.overlay], tensors)

    def placed(view: View, tensor: int) -> View:
        buffer, offset = moved.get(homes[tensor], (homes[tensor], 0))
        return replace(view, buffer=buffer, offset=view.offset + offset, ring=rings.get(tensor, view.ring))

    for i, step in enumerate(steps):
        inputs = tuple(
            view if view is None or tensor is None else placed(view, tensor)
            for view, tensor in zip(step.inputs, tensors.inputs[i], strict=True)
        )
        outputs = tuple(map(placed, step.outputs, tensors.outputs[i]))
        steps[i] = replace(step, inputs=inputs, outputs=outputs)
    for region in regions:
        for i, cut in enumerate(region.cuts, region.first):
            steps[i] = replace(steps[i], cut=(AXIS, *cut))
    loops = tuple(loop for region in regions for loop in region.loops)
    spans = {homes[tensor]: steps for region in regions for tensor, steps in region.spans.items()}
    return replace(program, steps=tuple(steps), buffers=tuple(buffers), loops=loops, spans=spans)


def _overlaid(
    buffers: list[Buffer], homes: list[int], overlays: list[Overlay], tensors: Tensors
) -> dict[int, tuple[int, int]]:
    """Merges the buffers of overlaid tensors. Returns, for each of these buffers, the merged buffer and the offset in
    it."""
    places: dict[int, tuple[int, int]] = {}
    for under, over, shift in overlays:
        to, at = places.setdefault(homes[under], (homes[under], 0))
        places[homes[over]] = to, at + shift
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for buffer, (to, at) in places.items():
        begins[to] = min(begins.get(to, 0), at)
        ends[to] = max(ends.get(to, 0), at + buffers[buffer].bytes)
    for to, begin in begins.items():
        buffers[to] = replace(buffers[to], bytes=ends[to] - begin)
    return {buffer: (to, at - begins[to]) for buffer, (to, at) in places.items()}

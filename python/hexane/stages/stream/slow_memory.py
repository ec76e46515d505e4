"""Chooses which steps run row by row if fast memory is too small, such that a call moves few bytes from and to slow
memory.

Tensors inside a region are rings in fast memory. Tensors between regions are written to slow memory and read back if
they do not fit next to the rings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from hexane.program import Program
from hexane.stages.bufferize.allocate import rounded_up
from hexane.stages.bufferize.tensors import Tensors
from hexane.stages.stream.region import Region
from hexane.stages.stream.rows import AXIS, StepRows
from hexane.stages.stream.traffic import bytes_read

MOST_ROWS = 32


@dataclass(frozen=True, slots=True)
class _Part:
    """One step, or several steps that run as a region. live: the live bytes in all memories. rings: the peak bytes of
    rings. moved: the size and the traffic, in bytes, of each tensor in the arena that is not a ring. Tensors with the
    highest traffic per byte come first."""

    region: Region | None
    live: float
    rings: int
    moved: tuple[tuple[int, int], ...]

    def cost(self, fast: int) -> float:
        """Returns the bytes that are moved from and to slow memory if there are `fast` bytes of fast memory."""
        left = fast - self.rings
        if left < 0:
            return inf
        cost = 0
        for size, moved in self.moved:
            if size <= left:
                left -= size
            else:
                cost += moved
        return cost


class SlowChoice:
    """The choice for all sizes of fast memory.

    begins: for each step the earliest begin of a region that includes it. live: the live bytes at each single step.
    solve: returns the live bytes and the region of the steps [first, end) with a number of rows per run.
    """

    def __init__(
        self,
        program: Program,
        tensors: Tensors,
        rows: Sequence[StepRows],
        begins: Sequence[int],
        live: Sequence[int],
        solve: Callable[[int, int, int], tuple[float, Region | None]],
    ) -> None:
        self._program, self._tensors, self._rows, self._begins, self._solve = program, tensors, rows, begins, solve
        self._alignment = program.space("arena").alignment
        self._parts: dict[tuple[int, int, int], _Part | None] = {}
        self._read: dict[tuple[int, int, int], int] = {}
        self._alone = [self._part(range(i, i + 1), None, bytes_live) for i, bytes_live in enumerate(live)]

    def regions(self, fast: int, most: int) -> list[Region]:
        """Returns the regions with the least traffic, and of equal choices the one with the fewest steps in regions.
        most: the bytes of all memories together."""
        best: list[tuple[float, int]] = [(0.0, 0)]
        chosen: list[_Part] = []
        before: list[int] = []
        for end, alone in enumerate(self._alone, 1):
            moved, looped = best[-1]
            least = (moved + alone.cost(fast) if alone.live <= most else inf, looped)
            part, begin = alone, end - 1
            for first in reversed(range(self._begins[end - 1], end - 1)):
                candidates = self._cut(first, end, fast)
                if not candidates:
                    break
                moved, looped = best[first]
                for candidate in candidates:
                    if candidate.live > most:
                        continue
                    cost = (moved + candidate.cost(fast), looped + end - first)
                    if cost < least:
                        least, part, begin = cost, candidate, first
            best.append(least)
            chosen.append(part)
            before.append(begin)
        regions, end = [], len(chosen)
        while end:
            region = chosen[end - 1].region
            if region is not None:
                regions.append(region)
            end = before[end - 1]
        return regions[::-1]

    def _cut(self, first: int, end: int, fast: int) -> list[_Part]:
        """Returns the steps [first, end) as regions with 1, 2, 4, .. rows per run, as long as the rings fit in fast
        memory."""
        result = []
        rows = 1
        while rows <= MOST_ROWS and (part := self._solved(first, end, rows)) is not None and part.rings <= fast:
            result.append(part)
            rows *= 2
        return result

    def _solved(self, first: int, end: int, rows: int) -> _Part | None:
        key = first, end, rows
        if key not in self._parts:
            live, region = self._solve(first, end, rows)
            self._parts[key] = None if region is None else self._part(range(first, end), region, live)
        return self._parts[key]

    def _part(self, steps: range, region: Region | None, live: float) -> _Part:
        chunks: dict[int, int] = {}
        rings = {} if region is None else region.rings
        for loop in () if region is None else region.loops:
            chunks.update(enumerate(map(abs, loop.moves), loop.first))
        moved: dict[int, int] = {}
        for i in steps:
            for operand, tensor in enumerate(self._tensors.inputs[i]):
                if tensor is not None and tensor not in rings:
                    moved[tensor] = moved.get(tensor, 0) + self._bytes_read(i, operand, chunks.get(i, 0))
            for view, tensor in zip(self._program.steps[i].outputs, self._tensors.outputs[i], strict=True):
                if tensor not in rings:
                    moved[tensor] = moved.get(tensor, 0) + view.type.bytes
        all_tensors = self._tensors.all
        sizes = [
            (rounded_up(all_tensors[t].bytes, self._alignment), n) for t, n in moved.items() if all_tensors[t].in_arena
        ]
        sizes.sort(key=lambda one: (-one[1] / max(1, one[0]), one))
        return _Part(region, live, 0 if region is None else self._rings(region), tuple(sizes))

    def _rings(self, region: Region) -> int:
        change = [0] * (len(region.cuts) + 1)
        for tensor, rows in region.rings.items():
            ring = rounded_up(rows * self._tensors.all[tensor].views[0].strides[AXIS], self._alignment)
            first, last = region.spans.get(tensor, (region.first, region.end - 1))
            change[first - region.first] += ring
            change[last + 1 - region.first] -= ring
        live = most = 0
        for size in change:
            live += size
            most = max(most, live)
        return most

    def _bytes_read(self, step: int, operand: int, chunk: int) -> int:
        key = step, operand, chunk
        if key not in self._read:
            self._read[key] = bytes_read(self._rows[step], operand, chunk)
        return self._read[key]

"""Where kernels of a plan may keep their scratch while a step runs: the lowest free gap of an arena.

With all tensors placed, the scratch of one step (or of the steps of a loop, which run in turn) overlaps in time only
with live tensors, not with other scratch. So the lowest gap is the best one for each step by itself.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from hexane.stages.bufferize.allocate import rounded_up

ALIGNMENT = 16  # HX_SCRATCH_ALIGNMENT
Ranges = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Scratch:
    """Bytes of a space, a row of the plan's, that a step may write."""

    space: int
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Access:
    """A step's access to a tensor; replaces: all of its bytes are written."""

    unit: int
    tensor: int
    reads: bool
    replaces: bool


class Gaps:
    """The free bytes of a plan's arenas at each step. sections: as `_core.plan_read` gives them; the plan is sound."""

    def __init__(self, sections: Mapping[str, Any], arenas: Sequence[int], item_bytes: Mapping[int, int]) -> None:
        """arenas: rows of the arenas' spaces. item_bytes: of an element, by the offset of the dtype's name."""
        self._sections, self._items = sections, item_bytes
        self._units = _units(sections)
        self._sizes = {space: int(sections["spaces"][space]["bytes"]) for space in arenas}
        self._limits = {space: int(sections["spaces"][space]["limit"]) for space in arenas}
        self._live = {space: self._live_ranges(space) for space in arenas}

    @property
    def sizes(self) -> dict[int, int]:
        """Bytes of each arena, with the scratch that was placed."""
        return dict(self._sizes)

    def place(self, step: int, size: int, grows: bool = True) -> Scratch | None:
        """The lowest gap of `size` bytes among the tensors live at a step: inside an arena, else at the end of an arena
        that may grow. None if there is no gap, or if an arena would have to grow and may not."""
        gaps = [Scratch(space, self._gap(space, step, size), size) for space in self._live]
        ends = {one.space: one.offset + one.bytes for one in gaps}
        for one in gaps:
            if ends[one.space] <= self._sizes[one.space]:
                return one
        for one in gaps if grows else ():
            if ends[one.space] <= (self._limits[one.space] or ends[one.space]):
                self._sizes[one.space] = ends[one.space]
                return one
        return None

    def _gap(self, space: int, step: int, size: int) -> int:
        at = 0
        for begin, end in self._live[space][self._units[step]]:
            if at + size <= begin:
                break
            at = max(at, rounded_up(end, ALIGNMENT))
        return at

    def _live_ranges(self, space: int) -> dict[int, Ranges]:
        """For each unit the bytes of a space that are live in it, in rising order."""
        accesses = [*self._accesses(space)]
        blocks = [*self._blocks(space)]
        places = sorted({at for begin, end, _ in accesses for at in (begin, end)})
        touched: dict[int, list[_Access]] = defaultdict(list)  # by where a segment between two places begins
        index = {at: i for i, at in enumerate(places)}
        for begin, end, access in accesses:
            for at in places[index[begin] : index[end]]:
                touched[at].append(access)
        live: dict[int, Ranges] = {unit: [] for unit in set(self._units)}
        for begin, end in pairwise(places):
            for first, last in _lifetimes(touched[begin]):
                for unit in range(first, last + 1):
                    live[unit].append((begin, end))
        for begin, end, first, last in blocks:
            for unit in range(first, last + 1):
                live[unit].append((begin, end))
        return {unit: sorted(ranges) for unit, ranges in live.items()}

    def _accesses(self, space: int) -> Iterator[tuple[int, int, _Access]]:
        """First byte, last one + 1, and access, in the order of the steps: the reads of a step before its writes."""
        tensors, operands = self._sections["tensors"], self._sections["operands"]
        for port in self._sections["inputs"]:
            if int(tensors[port["tensor"]]["space"]) == space:
                yield (*self._extent(int(port["tensor"])), _Access(0, int(port["tensor"]), False, False))
        for i, step in enumerate(self._sections["steps"]):
            first, inputs = int(step["operands"]), int(step["num_inputs"])
            for k, id in enumerate(operands[first : first + inputs + int(step["num_outputs"])].tolist()):
                if id < len(tensors) and int(tensors[id]["space"]) == space:
                    replaces = k >= inputs and self._is_dense(id) and self._covers(i, id)
                    yield (*self._extent(id), _Access(self._units[i], id, k < inputs, replaces))
        for port in self._sections["outputs"]:
            if int(tensors[port["tensor"]]["space"]) == space:
                yield (*self._extent(int(port["tensor"])), _Access(self._units[-1], int(port["tensor"]), True, False))

    def _blocks(self, space: int) -> Iterator[tuple[int, int, int, int]]:
        """Where packed weights are unpacked to: first byte, last one + 1, first and last unit."""
        for block in self._sections["blocks"]:
            if int(block["arena"]) == space:
                begin, first = int(block["arena_offset"]), int(block["first_step"])
                last = first + int(block["num_steps"]) - 1
                yield begin, begin + int(block["bytes"]), self._units[first], self._units[last]

    def _shape(self, id: int) -> tuple[list[int], list[int]]:
        """Extents as they lie in memory, and strides."""
        row = self._sections["tensors"][id]
        shape = [int(n) for n in row["shape"][: row["rank"]]]
        if int(row["ring"]):
            shape[1] = int(row["ring"])
        return shape, [int(n) for n in row["strides"][: row["rank"]]]

    def _extent(self, id: int) -> tuple[int, int]:
        row = self._sections["tensors"][id]
        shape, strides = self._shape(id)
        begin = int(row["offset"])
        if 0 in shape:
            return begin, begin
        last = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
        return begin, begin + last + self._items[int(row["dtype"])]

    def _is_dense(self, id: int) -> bool:
        shape, _ = self._shape(id)
        begin, end = self._extent(id)
        size = self._items[int(self._sections["tensors"][id]["dtype"])]
        for extent in shape:
            size *= extent
        return end - begin == size

    def _covers(self, index: int, id: int) -> bool:
        """True if the runs of a step write all rows. The caller knows that they skip none between first and last."""
        step = self._sections["steps"][index]
        axis, begin, end = int(step["cut_axis"]), int(step["begin"]), int(step["end"])
        if axis < 0:
            return True
        low, high = begin, end
        for loop in self._sections["loops"]:
            first = int(loop["first_step"])
            if first <= index < first + int(loop["num_steps"]):
                moved = int(self._sections["moves"][int(loop["moves"]) + index - first]) * (int(loop["trips"]) - 1)
                low, high = low + min(moved, 0), high + max(moved, 0)
        return low <= 0 and high >= int(self._sections["tensors"][id]["shape"][axis])


def _units(sections: Mapping[str, Any]) -> list[int]:
    """For each step the number of its outermost loop or, outside of loops, of itself, in the order in which they
    run."""
    units: list[int] = []
    loops = {int(row["first_step"]): int(row["num_steps"]) for row in reversed(sections["loops"])}
    step = unit = 0
    while step < len(sections["steps"]):
        size = loops.get(step, 1)
        units += [unit] * size
        step, unit = step + size, unit + 1
    return units


def _lifetimes(accesses: list[_Access]) -> Iterator[tuple[int, int]]:
    """The first and last unit in which a byte holds something that is still read: from one unit that touches it to the
    next, unless that one replaces it before it reads it. The steps of a loop take turns, so there no other tensor may
    read the byte at all."""
    last: int | None = None
    for unit, here in groupby(accesses, lambda access: access.unit):
        first, *rest = here
        alone = all(access.tensor == first.tensor for access in rest if access.reads)
        yield (unit if last is None or (first.replaces and alone) else last), unit
        last = unit

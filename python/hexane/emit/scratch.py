"""Places the scratch of kernels in a plan's arenas: in the lowest gap that is free while the step runs.

All tensors are placed before the scratch. The scratch of one step (or of a loop's steps, which run in turn) then
overlaps in time only with live tensors, not with other scratch. So the lowest gap is best for the scratch of each step
separately.
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
    """A range of bytes in a space that a step may overwrite. space: the space's row in the plan."""

    space: int
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Access:
    """A step's access to a tensor. replaces: the step writes all bytes of the tensor."""

    unit: int
    tensor: int
    reads: bool
    replaces: bool


class Gaps:
    """The free bytes of a plan's arenas at each step. sections: the result of `_core.plan_read` for a valid plan."""

    def __init__(self, sections: Mapping[str, Any], arenas: Sequence[int], item_bytes: Mapping[int, int]) -> None:
        """arenas: rows of the arenas' spaces. item_bytes: bytes of an element, by the offset of the dtype's name."""
        self._sections, self._items = sections, item_bytes
        self._units = _units(sections)
        self._sizes = {space: int(sections["spaces"][space]["bytes"]) for space in arenas}
        self._limits = {space: int(sections["spaces"][space]["limit"]) for space in arenas}
        self._live = {space: self._live_ranges(space) for space in arenas}

    @property
    def sizes(self) -> dict[int, int]:
        """Returns the bytes of each arena, with the placed scratch."""
        return dict(self._sizes)

    def place(self, step: int, size: int, grows: bool = True) -> Scratch | None:
        """Places scratch in the lowest gap of `size` bytes among the tensors that are live at a step, inside an arena
        if possible, else at the end of an arena that may grow. Returns None if that needs an arena to grow beyond its
        limit, or to grow at all if `grows` is false."""
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
        """Returns, for each unit, the live ranges of bytes in a space, in rising order."""
        accesses = [*self._accesses(space)]
        blocks = [*self._blocks(space)]
        places = sorted({at for begin, end, _ in accesses for at in (begin, end)})
        touched: dict[int, list[_Access]] = defaultdict(list)  # first byte of a segment -> the segment's accesses
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
        """Yields first byte, end, and access, in the order of steps. A step's reads precede its writes."""
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
        """Yields the destinations of packed weights: first byte, end, first and last unit."""
        for block in self._sections["blocks"]:
            if int(block["arena"]) == space:
                begin, first = int(block["arena_offset"]), int(block["first_step"])
                last = first + int(block["num_steps"]) - 1
                yield begin, begin + int(block["bytes"]), self._units[first], self._units[last]

    def _shape(self, id: int) -> tuple[list[int], list[int]]:
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
        """True if the runs of a step write all rows. The caller must know that no row between the first and the last is
        skipped."""
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
    """Returns the unit of each step: the number of its outermost loop, or of the step itself outside loops, in
    execution order."""
    units: list[int] = []
    loops = {int(row["first_step"]): int(row["num_steps"]) for row in reversed(sections["loops"])}
    step = unit = 0
    while step < len(sections["steps"]):
        size = loops.get(step, 1)
        units += [unit] * size
        step, unit = step + size, unit + 1
    return units


def _lifetimes(accesses: list[_Access]) -> Iterator[tuple[int, int]]:
    """Yields the first and last unit of each live range of a byte: from one unit that accesses it to the next one,
    unless the next unit overwrites the byte before a read. A loop's steps alternate, so a replacement in a loop counts
    only if the loop reads no other tensor in the byte."""
    last: int | None = None
    for unit, here in groupby(accesses, lambda access: access.unit):
        first, *rest = here
        alone = all(access.tensor == first.tensor for access in rest if access.reads)
        yield (unit if last is None or (first.replaces and alone) else last), unit
        last = unit

"""One stage of a program that spills: steps on tensors in fast memory, with copies from and to slow memory.

    y = conv(x); z = relu(y)    ->    X = copy(x); Y = conv(X); Z = relu(Y); z = copy(Z)      capitals: tensors in fast
    memory

A result that steps after the stage read is copied out right after it is written. An operand that steps before the
stage write is copied in right before it is read. In a loop the stage's steps compute a few rows at a time, and the
copies move as many. Each copy of a loop goes through a ring, which keeps the rows that a window needs again.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from hexane import _core
from hexane.graph import TensorType
from hexane.program import Buffer, Program, Step, View, dense_strides
from hexane.stages.bufferize.aliases import canonical
from hexane.stages.bufferize.allocate import live_ranges, rounded_up
from hexane.stages.bufferize.tensors import Contents, find_tensors, overwrites
from hexane.stages.stream.region import Regions
from hexane.stages.stream.rows import AXIS, StepRows
from hexane.stages.stream.stream import with_regions

SLOW = "arena.1"  # the name of slow memory that `into_pools` uses with one fast memory


@dataclass(frozen=True, slots=True)
class Stage:
    """The steps [first, end) of a program, as a program of their own. The stage's tensors come after all other buffers.
    rows: the rows that the slowest step computes in a trip, 0 without a loop. fast: the bytes of fast memory that the
    stage needs."""

    first: int
    end: int
    rows: int
    program: Program
    fast: int


_Key = tuple[int, int, TensorType, tuple[int, ...]]  # the index of a tensor, and the fields of a view of it


class StageMaker:
    """Creates stages of a program of whole tensors."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.tensors = find_tensors(program)
        arena = program.space("arena")
        others = [space for space in program.spaces if space.name != arena.name]
        self.spaces = (replace(arena, limit=0), replace(arena, name=SLOW, limit=0), *others)
        slow = [Buffer("arena", tensor.bytes, space=SLOW) for tensor in self.tensors.all]
        self.buffers = (*program.buffers, *slow)  # only tensors that pass between stages use a buffer in `slow`
        self._rows: dict[object, StepRows] = {}

    def whole(self, first: int, end: int) -> Stage:
        """Returns the stage of the steps [first, end) on whole tensors."""
        held = _Steps(self, first, end)
        for i in range(first, end):
            held.add(i)
        return self._stage(held, 0, self._program(held))

    def by_rows(self, first: int, end: int, rows: int) -> Stage | None:
        """Returns the stage of the steps [first, end) in loops, in which the slowest step computes `rows` rows per
        trip, or None if that is impossible."""
        if not all(self._of(self.program.steps[i]).is_cut for i in range(first, end)):
            return None
        held = _Steps(self, first, end, self._read_whole(first, end))
        for key in held.whole:
            held.load(key, self.program.steps[first])
        begin = len(held.steps)
        for i in range(first, end):
            held.add(i)
        end = len(held.steps)
        held.steps += held.sums
        program = self._program(held)
        regions = Regions(program, find_tensors(program))
        regions.steps = [self._of(step) for step in program.steps]
        if not all(regions.can_run(i) for i in range(begin, end)):
            return None
        if not all(self._is_there(tensor, first, end) for tensor in regions.tensors.all):
            return None
        region = regions.solve(begin, end, rows)
        if region is None:
            return None
        mine = {t for t, tensor in enumerate(regions.tensors.all) if tensor.buffer >= len(self.buffers)}
        rings = {t: kept for t, kept in region.rings.items() if t in mine}  # other stages need all rows of slow tensors
        spans = {t: steps for t, steps in region.spans.items() if t in mine}
        region = replace(region, rings=rings, spans=spans)
        return self._stage(held, rows, with_regions(program, [region], regions.tensors))

    def _is_there(self, tensor: Contents, first: int, end: int) -> bool:
        """True if all of the tensor is written in the loop, by rows, so that the order of accesses can be computed, or
        if the tensor is only read or only written."""
        if not tensor.writers or not tensor.readers:
            return True
        place = tensor.buffer - len(self.program.buffers)
        is_slow = 0 <= place < len(self.tensors.all)
        return all(map(_in_rows, tensor.views)) and (not is_slow or self.is_local(place, first, end))

    def _read_whole(self, first: int, end: int) -> tuple[_Key, ...]:
        """Returns the views of tensors from other stages that cannot be read row by row."""
        result: dict[_Key, None] = {}
        for i in range(first, end):
            rows = self._of(self.program.steps[i])
            for operand, (view, tensor) in enumerate(self.reads(i)):
                if view is None or tensor is None or self.is_local(tensor, first, end):
                    continue
                kind = view.type
                by_rows = kind.rank > AXIS and kind.shape[0] == 1 and kind.shape[AXIS] > 1 and view.strides[AXIS]
                if not by_rows or rows.is_packed(operand):
                    result[_key(tensor, view)] = None
        return tuple(result)

    def reads(self, step: int) -> Iterator[tuple[View | None, int | None]]:
        """Yields the operands of a step, each with its tensor if that is in the arena."""
        for view, tensor in zip(self.program.steps[step].inputs, self.tensors.inputs[step], strict=True):
            yield view, tensor if tensor is not None and self.tensors.all[tensor].in_arena else None

    def is_local(self, tensor: int, first: int, end: int) -> bool:
        """True if all writers of the tensor are among the steps [first, end)."""
        return all(first <= step < end for step, _ in self.tensors.all[tensor].writers)

    def slow(self, tensor: int) -> int:
        """Returns the buffer of a tensor in slow memory."""
        return len(self.program.buffers) + tensor

    def _of(self, step: Step) -> StepRows:
        kinds = [None if view is None else (view.type, view.strides) for view in (*step.inputs, *step.outputs)]
        key = step.kernel, id(step.node), *kinds
        if key not in self._rows:
            self._rows[key] = StepRows(step, self.program)
            self._rows[key].is_cut  # noqa: B018  computed before it is copied
        result = copy(self._rows[key])
        result.step, result.out = step, step.outputs[0]
        return result

    def _program(self, steps: "_Steps") -> Program:
        return replace(
            self.program, spaces=self.spaces, steps=tuple(steps.steps), buffers=(*self.buffers, *steps.buffers)
        )

    def _stage(self, steps: "_Steps", rows: int, program: Program) -> Stage:
        return Stage(steps.first, steps.end, rows, program, self._fast(program))

    def _fast(self, program: Program) -> int:
        """Returns the bytes of fast memory in the best packing found."""
        alignment = self.spaces[0].alignment
        first = len(self.buffers)
        live = [
            (*steps, rounded_up(program.buffers[i].bytes, alignment))
            for i, steps in live_ranges(program).items()
            if i >= first
        ]
        if not live:
            return 0
        lower, upper, sizes = (np.array(column, np.int64) for column in zip(*live, strict=True))
        return int(_core.alloc_solve(lower, upper + 1, sizes, alignment)[1])


class _Steps:
    """Collects the stage's `steps` and `buffers`. whole: the views that are copied in as a whole before the loop; None
    for a stage without a loop. sums: copies that have to wait until the loop has ended."""

    def __init__(self, maker: StageMaker, first: int, end: int, whole: Sequence[_Key] | None = None) -> None:
        self._maker, self.first, self.end = maker, first, end
        self.whole, self._loops = whole or (), whole is not None
        self.steps: list[Step] = []
        self.sums: list[Step] = []
        self.buffers: list[Buffer] = []
        self._homes: dict[int, int] = {}  # Tensor that only this stage writes -> its buffer.
        self._parts: dict[_Key, View] = {}  # Part of another tensor -> its view in fast memory.

    def add(self, i: int) -> None:
        """Adds a step, its loads before it, and its stores after it."""
        step = self._maker.program.steps[i]
        inputs = tuple(self._input(view, tensor, step) for view, tensor in self._maker.reads(i))
        outputs = [self._output(view, tensor, step, inputs) for view, tensor in self._outputs(i)]
        self.steps.append(replace(step, inputs=inputs, outputs=tuple(outputs)))
        for (view, tensor), fast in zip(self._outputs(i), outputs, strict=True):
            if tensor is not None and self._leaves(tensor, view, i):
                self._store(view, fast, tensor, step)

    def load(self, key: _Key, near: Step) -> View:
        """Returns a copy in fast memory of a view of a tensor, with its axes in the same memory order."""
        if key not in self._parts:
            tensor, offset, kind, strides = key
            shape = tuple(1 if stride == 0 else n for n, stride in zip(kind.shape, strides, strict=True))
            part = replace(kind, shape=shape)
            fast = self._part(part, dense_strides(part) if self._loops else strides)
            slow = View(self._maker.slow(tensor), offset, part, canonical(strides, part))
            self.steps.append(self._copy(slow, fast, near))
            seen = tuple(0 if stride == 0 else to for stride, to in zip(strides, fast.strides, strict=True))
            self._parts[key] = replace(fast, type=kind, strides=seen)
        return self._parts[key]

    def _outputs(self, i: int) -> Iterator[tuple[View, int | None]]:
        for view, tensor in zip(self._maker.program.steps[i].outputs, self._maker.tensors.outputs[i], strict=True):
            yield view, tensor if self._maker.tensors.all[tensor].in_arena else None

    def _leaves(self, tensor: int, view: View, i: int) -> bool:
        """True if a later stage reads a result of step i, or if this stage reads it together with data from slow
        memory."""
        local = self._has_home(tensor)

        def elsewhere(step: int, operand: int) -> bool:
            seen = self._maker.program.steps[step].inputs[operand]
            return step >= self.end or (not local and seen is not None and _key(tensor, seen) != _key(tensor, view))

        return any(step > i and elsewhere(step, k) for step, k in self._maker.tensors.all[tensor].readers)

    def _input(self, view: View | None, tensor: int | None, step: Step) -> View | None:
        if view is None or tensor is None:
            return view
        if self._has_home(tensor):
            return replace(view, buffer=self._homes[tensor])
        return self.load(_key(tensor, view), step)

    def _output(self, view: View, tensor: int | None, step: Step, inputs: Sequence[View | None]) -> View:
        if tensor is None:
            return view
        if not self._has_home(tensor):
            strides = dense_strides(view.type) if self._loops else view.strides
            result = self._parts[_key(tensor, view)] = self._part(view.type, strides)
            return result
        if tensor not in self._homes:
            self._homes[tensor] = self._over(view, step, inputs)
        return replace(view, buffer=self._homes[tensor])

    def _has_home(self, tensor: int) -> bool:
        """True if only this stage writes the tensor, in loops row by row. The tensor's views then have the same offsets
        and strides as outside the stage."""
        contents = self._maker.tensors.all[tensor]
        views = [self._maker.program.steps[step].outputs[k] for step, k in contents.writers]
        in_rows = not self._loops or all(map(_in_rows, views))
        return in_rows and self._maker.is_local(tensor, self.first, self.end)

    def _over(self, view: View, step: Step, inputs: Sequence[View | None]) -> int:
        """Returns the buffer of the operand that a step overwrites, or a new buffer."""
        size = self._maker.program.buffers[view.buffer].bytes
        for before, now in zip(step.inputs, inputs, strict=True):
            same = before is not None and overwrites([before], view) and view.type.bytes == size and not self._loops
            if same and now is not None and (now.offset, now.strides) == (view.offset, view.strides):
                return now.buffer
        return self._new(size)

    def _store(self, view: View, fast: View, tensor: int, step: Step) -> None:
        slow = replace(view, buffer=self._maker.slow(tensor))
        if not view.ring:
            self.steps.append(self._copy(fast, slow, step))
            return
        rows = tuple(view.ring if axis == AXIS else n for axis, n in enumerate(view.type.shape))
        kept = replace(view.type, shape=rows)  # sums are copied as a whole, after the last addition
        end = self._copy(replace(fast, type=kept, ring=0), replace(slow, type=kept, ring=0), step)
        (self.sums if self._loops else self.steps).append(end)

    def _part(self, kind: TensorType, strides: Sequence[int]) -> View:
        """Returns a new dense view for the elements, with the axes in the memory order of these strides."""
        order = sorted(range(kind.rank), key=lambda axis: strides[axis])
        dense, size = [0] * kind.rank, kind.dtype.bits // 8
        for axis in order:
            if kind.shape[axis] > 1:
                dense[axis] = size
                size *= kind.shape[axis]
        return View(self._new(prod(kind.shape) * kind.dtype.bits // 8), 0, kind, canonical(dense, kind))

    def _new(self, size: int) -> int:
        self.buffers.append(Buffer("arena", size, space=self._maker.spaces[0].name))
        return len(self._maker.buffers) + len(self.buffers) - 1

    def _copy(self, source: View, target: View, near: Step) -> Step:
        return Step("copy", near.node, (source,), (target,), {}, self._maker.program.target.arithmetic)


def _key(tensor: int, view: View) -> _Key:
    return tensor, view.offset, view.type, view.strides


def _in_rows(view: View) -> bool:
    """True if rows do not overlap in memory: all elements of a row come before the next row."""
    others = [s for axis, s in enumerate(view.strides) if axis != AXIS and view.type.shape[axis] > 1]
    return view.type.rank > AXIS and view.strides[AXIS] >= max(others, default=0)

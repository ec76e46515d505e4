"""Divides a program into stages that pass tensors through slow memory. Spilling is the baseline for row streaming.

A stage is extended by steps as long as its tensors fit in fast memory. Tensors that other stages read are written to
slow memory and read back. A step that does not fit by itself runs row by row. Its stage also takes the following steps
that do not fit either, as long as the stage fits by rows. Then the stage computes as many rows at a time as fit.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from hexane.program import Loop, Program, Step, View
from hexane.stages.bufferize.allocate import allocate
from hexane.stages.bufferize.place import place
from hexane.stages.bufferize.pools import slow_bytes
from hexane.stages.bufferize.ports_in_arena import Body, hold
from hexane.stages.stream.by_rows import by_rows
from hexane.stages.stream.stage import SLOW, Stage, StageMaker
from hexane.stages.stream.stream import arena_bytes
from hexane.stages.stream.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Spilled:
    """A program in stages. budget: the bytes of fast memory that were allowed. fast, slow: the bytes that it needs of
    each. moved: its traffic from and to slow memory per call. stages, looped: the number of stages, and of stages that
    run by rows."""

    budget: int
    program: Program
    fast: int
    slow: int
    moved: Traffic
    stages: int
    looped: int


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The reason why there is no program: the step that needs the most fast memory, and its bytes as a stage."""

    budget: int
    step: Step
    bytes: int


class Spills:
    """A program of whole tensors, divided into stages for several budgets. Results independent of the budget are
    cached."""

    def __init__(self, program: Program, order: str | None = None, holds_ports: bool = False) -> None:
        """order: the order with which `place` made the program. With an order, a second program is tried, with operands
        of concatenations in their own memory. holds_ports: inputs and outputs are in fast and slow memory too."""
        self._program, self._order, self._holds_ports = program, order, holds_ports

    def at(self, budget: int) -> Spilled | TooLarge:
        """Returns the program that moves the fewest bytes from and to slow memory with this many bytes of fast
        memory."""
        if arena_bytes(self._unspilled) <= budget:
            return Spilled(budget, self._unspilled, arena_bytes(self._unspilled), 0, Traffic(0, 0), 1, 0)
        answers = [self._whole.at(budget)]
        if "concat" in self._program.graph.ops and self._order is not None:
            answers.append(self._apart.at(budget))
        spilled = [one for one in answers if isinstance(one, Spilled)]
        return min(spilled, key=lambda one: (sum(one.moved), one.fast + one.slow)) if spilled else answers[0]

    @cached_property
    def _unspilled(self) -> Program:
        """The program of whole tensors, all in fast memory."""
        return allocate(hold(self._program)[0] if self._holds_ports else self._program)

    @cached_property
    def _whole(self) -> "_Cuts":
        return _Cuts(self._program, self._holds_ports)

    @cached_property
    def _apart(self) -> "_Cuts":
        """The program whose operands of concatenations are computed in their own memory and copied."""
        whole = self._program
        program = place(whole.graph, whole.target, self._order or "", separate=True, runtime=whole.runtime)
        return _Cuts(program, self._holds_ports)


class _Cuts:
    """A program and its possible stages."""

    def __init__(self, program: Program, holds_ports: bool) -> None:
        program = by_rows(program)
        self._body = Body(0, len(program.steps))
        if holds_ports:
            program, self._body = hold(program)
        self._count = len(program.steps)
        self._maker = StageMaker(program)
        self._wholes: dict[tuple[int, int], Stage] = {}
        self._looped: dict[tuple[int, int, int], Stage | None] = {}

    def at(self, budget: int) -> Spilled | TooLarge:
        stages: list[Stage] = []
        first = 0
        while first < self._count:
            stage = self._next(first, budget)
            if stage is None:
                return self._largest(budget)
            stages.append(stage)
            first = stage.end
        program = allocate(_joined(stages, self._maker))
        slow = program.extents[SLOW].bytes
        looped = sum(bool(stage.rows) for stage in stages)
        moved = slow_bytes(program, 2)
        return Spilled(budget, program, arena_bytes(program) - slow, slow, moved, len(stages), looped)

    def _next(self, first: int, budget: int) -> Stage | None:
        """Returns the stage that begins at step `first`: as many steps on whole tensors as fit, else as many by
        rows."""
        end = _last(first, self._count, lambda end: self._whole(first, end).fast <= budget)
        if end > first:
            return self._whole(first, end)
        fits = None
        for end in range(first + 1, self._barrier(first) + 1):
            if end > first + 1 and self._whole(end - 1, end).fast <= budget:
                break
            stage = self._rows(first, end, 1)
            if stage is None or stage.fast > budget:
                break
            fits = stage
        if fits is None:
            return None
        most = self._maker.program.steps[fits.end - 1].outputs[0].type.shape[1]
        rows = _last(1, most, lambda rows: _fits(self._rows(first, fits.end, rows), budget))
        return self._rows(first, fits.end, rows)

    def _barrier(self, first: int) -> int:
        """Returns the end of the steps that may share a loop with step `first`: loops contain no loads of inputs and
        stores of outputs together with other steps."""
        return next(step for step in (self._body.first, self._body.end, self._count) if step > first)

    def _whole(self, first: int, end: int) -> Stage:
        if (first, end) not in self._wholes:
            self._wholes[first, end] = self._maker.whole(first, end)
        return self._wholes[first, end]

    def _rows(self, first: int, end: int, rows: int) -> Stage | None:
        if (first, end, rows) not in self._looped:
            self._looped[first, end, rows] = self._maker.by_rows(first, end, rows)
        return self._looped[first, end, rows]

    def _largest(self, budget: int) -> TooLarge:
        def least(i: int) -> int:
            looped = self._rows(i, i + 1, 1)
            whole = self._whole(i, i + 1)
            return min(whole.fast, looped.fast if looped else whole.fast)

        step = max(range(self._count), key=least)
        return TooLarge(budget, self._maker.program.steps[step], least(step))


def _fits(stage: Stage | None, budget: int) -> bool:
    return stage is not None and stage.fast <= budget


def _last(first: int, most: int, fits: Callable[[int], bool]) -> int:
    """Returns the largest number from `first` to `most` that fits. The search assumes that every number below a number
    that fits also fits; `first` must fit."""
    low, step = first, 1
    while low < most and fits(min(low + step, most)):
        low, step = min(low + step, most), 2 * step
    high = min(low + step, most + 1)  # a number known not to fit, or most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _joined(stages: list[Stage], maker: StageMaker) -> Program:
    """Returns the program of all stages, one after another."""
    steps: list[Step] = []
    loops: list[Loop] = []
    buffers = list(maker.buffers)
    spans: dict[int, tuple[int, int]] = {}
    common = len(maker.buffers)
    for stage in stages:
        first, more = len(steps), len(buffers) - common
        mine = stage.program
        steps += (_moved(step, common, more) for step in mine.steps)
        loops += (replace(loop, first=loop.first + first) for loop in mine.loops)
        spans |= {buffer + more: (a + first, b + first) for buffer, (a, b) in mine.spans.items()}
        buffers += mine.buffers[common:]
    return replace(
        maker.program, spaces=maker.spaces, steps=tuple(steps), buffers=tuple(buffers), loops=tuple(loops), spans=spans
    )


def _moved(step: Step, common: int, more: int) -> Step:
    """Returns the step with its buffers from number `common` on renumbered by adding `more`."""

    def moved(view: View) -> View:
        return replace(view, buffer=view.buffer + more) if view.buffer >= common else view

    inputs = tuple(None if view is None else moved(view) for view in step.inputs)
    return replace(step, inputs=inputs, outputs=tuple(map(moved, step.outputs)))

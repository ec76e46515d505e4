"""What a program takes by stages that spill to slow memory: the strategy that row streaming is measured against.

Steps go into a stage while what is live in it fits the budget; what crosses stages is written to slow memory and read back. A step
that does not fit by itself is computed some rows at a time, and such steps that feed each other alone run as a chain, tile by tile.
An estimate: no such plan is written. Bytes are as they lie in whole tensors, 16-byte alignment and kernels' scratch not counted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hexane.program import Program
from hexane.stages.rows import AXIS, StepRows
from hexane.stages.tensors import find_tensors


@dataclass(frozen=True, slots=True)
class Spilled:
    """fast: the most bytes live in a stage or tile. slow: of model inputs and outputs, and of what crosses stages at one time. read,
    written: bytes that a call moves from and to slow memory. stages, tiled: how many there are, and how many of them are tiled.
    needs: (step, bytes) of the first step whose smallest tile is over the budget; then there is no plan."""

    budget: int
    fast: int = 0
    slow: int = 0
    read: int = 0
    written: int = 0
    stages: int = 0
    tiled: int = 0
    needs: tuple[int, int] | None = None

    @property
    def total(self) -> int:
        return self.fast + self.slow


@dataclass(slots=True)
class _Item:
    """A tensor: written by step `first`, -1 for an input; read last by step `last`, one behind all for an output."""

    bytes: int
    first: int
    last: int
    rows: int = 1
    readers: list[int] = field(default_factory=list)


class Stages:
    """The steps of a program of whole tensors, and what each budget makes of them."""

    def __init__(self, program: Program) -> None:
        self._count = len(program.steps)
        self._rows = [StepRows(step, program.target) for step in program.steps]
        self._items: list[_Item] = []
        self._inputs: list[dict[int, int]] = []  # of each step: operand of an item
        self._output: list[list[int]] = []
        tensors = find_tensors(program)
        outputs = {port.view.buffer for port in program.outputs}
        for t in tensors.all:
            first = min((step for step, _ in t.writers), default=-1)
            last = self._count if t.buffer in outputs else t.last
            self._items.append(_Item(t.bytes, first, last, _extent(t.views[0].type.shape)))
        ports: dict[int, int] = {}
        for i, step in enumerate(program.steps):
            found = {k: t for k, t in enumerate(tensors.inputs[i]) if t is not None}
            for k, view in enumerate(step.inputs):
                if k in found or view is None or program.buffers[view.buffer].kind != "port":
                    continue
                if view.buffer not in ports:
                    self._items.append(
                        _Item(program.buffers[view.buffer].bytes, -1, self._count, _extent(view.type.shape))
                    )
                    ports[view.buffer] = len(self._items) - 1
                found[k] = ports[view.buffer]
            for item in set(found.values()):
                self._items[item].readers.append(i)
            self._inputs.append(found)
            self._output.append(list(tensors.outputs[i]))

    def at(self, budget: int) -> Spilled:
        """With so many bytes of fast memory."""
        stages = list(self._cuts(budget))
        fast = read = written = tiled = 0
        home = {}  # the stage of each step
        at = 0
        parts: list[tuple[int, int]] = []
        while at < len(stages):
            first, end = stages[at]
            chain = 1
            peak = self._peak(first, end)
            if peak > budget:
                while at + chain < len(stages) and self._feeds(stages, at + chain, budget):
                    if self._tile(range(first, stages[at + chain][1]), 1) > budget:
                        break
                    chain += 1
                end = stages[at + chain - 1][1]
                steps = range(first, end)
                if self._tile(steps, 1) > budget:
                    return Spilled(budget, needs=(first, self._tile(steps, 1)))
                rows = self._largest(steps, budget)
                peak = self._tile(steps, rows)
                read += self._halo(steps, rows)
                tiled += 1
            parts.append((first, end))
            home.update(dict.fromkeys(range(first, end), len(parts) - 1))
            fast = max(fast, peak)
            read += sum(self._items[t].bytes for t in self._loaded(first, end))
            written += sum(self._items[t].bytes for t in self._stored(first, end))
            at += chain
        live = np.zeros(len(parts) + 1, np.int64)
        for item in self._items:
            begin = -1 if item.first < 0 else home[item.first]
            last = len(parts) - 1 if item.last == self._count else home[item.last]
            if item.first < 0 or item.last == self._count:
                live[: len(parts)] += item.bytes
            elif begin != last:
                live[begin : last + 1] += item.bytes
        return Spilled(budget, fast, int(live.max()), read, written, len(parts), tiled)

    def _cuts(self, budget: int) -> Iterator[tuple[int, int]]:
        first = 0
        while first < self._count:
            end = first + 1
            while end < self._count and self._peak(first, end + 1) <= budget:
                end += 1
            yield first, end
            first = end

    def _loaded(self, first: int, end: int) -> set[int]:
        found = {t for i in range(first, end) for t in self._inputs[i].values()}
        return {t for t in found if self._items[t].first < first}

    def _stored(self, first: int, end: int) -> set[int]:
        return {t for i in range(first, end) for t in self._output[i] if self._items[t].last >= end}

    def _peak(self, first: int, end: int) -> int:
        change = [0] * (end - first + 1)
        for t in {t for i in range(first, end) for t in (*self._inputs[i].values(), *self._output[i])}:
            item = self._items[t]
            begin = max(item.first, first)
            used = [i for i in item.readers if first <= i < end]
            last = end - 1 if item.last >= end and item.first >= first else max([begin, *used])
            change[begin - first] += item.bytes
            change[last + 1 - first] -= item.bytes
        return int(np.cumsum(change).max())

    def _feeds(self, stages: Sequence[tuple[int, int]], at: int, budget: int) -> bool:
        """Whether the stage is one step over the budget, and alone reads what the step before it gives."""
        first, end = stages[at]
        if end - first != 1 or self._peak(first, end) <= budget or not self._rows[first].is_cut:
            return False
        (made, *more) = self._output[first - 1]
        return not more and self._items[made].readers == [first] and self._items[made].last == first

    def _wanted(self, steps: range, rows: int) -> Iterator[tuple[int, int, int]]:
        """(item, most rows of it, all that are read) when the last step of a chain computes so many rows at a time."""
        step = steps[-1]
        extent = self._rows[step].extent if self._rows[step].is_cut else 1
        begins = np.arange(0, extent, rows)
        ranges = begins, np.minimum(begins + rows, extent)
        for step in reversed(steps):
            own = self._rows[step]
            for t in self._output[step]:
                yield t, int((ranges[1] - ranges[0]).max()), extent
            following = ranges
            for operand, t in self._inputs[step].items():
                view = own.step.inputs[operand]
                assert view is not None
                whole = not own.is_cut or view.type.rank <= AXIS or view.type.shape[AXIS] == 1 or own.is_packed(operand)
                if whole:
                    yield t, self._items[t].rows, self._items[t].rows
                    continue
                first, behind = own.needs(operand)
                last = np.minimum(ranges[1], own.extent) - 1
                begin = np.minimum(first[np.minimum(ranges[0], own.extent - 1)], behind[last])
                if step > steps[0] and t in self._output[step - 1]:
                    following = begin, behind[last]
                else:
                    yield t, int((behind[last] - begin).max()), int((behind[last] - begin).sum())
            ranges = following

    def _tile(self, steps: range, rows: int) -> int:
        return sum(self._row_bytes(t) * most for t, most, _ in self._wanted(steps, rows))

    def _halo(self, steps: range, rows: int) -> int:
        """Bytes of inputs that are read more than once."""
        made = {t for step in steps for t in self._output[step]}
        wanted = [(t, total) for t, _, total in self._wanted(steps, rows) if t not in made]
        return sum(max(0, total - self._items[t].rows) * self._row_bytes(t) for t, total in wanted)

    def _row_bytes(self, item: int) -> int:
        return -(-self._items[item].bytes // max(1, self._items[item].rows))

    def _largest(self, steps: range, budget: int) -> int:
        low, high = 1, max(1, self._rows[steps[-1]].extent)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._tile(steps, middle) <= budget else (low, middle - 1)
        return low


def _extent(shape: tuple[int, ...]) -> int:
    return shape[AXIS] if len(shape) > AXIS else 1

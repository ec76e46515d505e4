"""Computes chains of steps row by row, so that what lies between them is a ring of a few rows instead of a whole tensor.

    e = conv(x); d = depthwise(e); p = conv(d)
    ->  for each row of p: the rows of e that d needs now, the row of d, the row of p

The steps run in a loop, each some rows ahead of the next. A chain is streamed where that needs less memory: its input and its
result then live beside each other, but nothing between them does. The bits are the same.
"""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Any

from hexane import _core
from hexane.attrs import Strings, pack
from hexane.program import Loop, Program, Step, View

AXIS = 1  # of rows


def stream(program: Program, rows: int = 1) -> Program:
    """The program with every chain that gains in a loop; rows: of a chain's result that one trip computes."""
    kernels = [_Rows(step, program) for step in program.steps]
    touches = Counter(
        view.buffer for step in program.steps for view in (*step.inputs, *step.outputs) if view is not None
    )
    linked = [_links(program, touches, a, b) for a, b in pairwise(kernels)]
    steps, buffers, loops = list(program.steps), list(program.buffers), []
    first = 0
    while first < len(steps):
        last = first
        best: _Stream | None = None
        while last < len(linked) and linked[last]:
            last += 1
            found = _plan(kernels[first : last + 1], rows)
            if found is not None and found.gain > (best.gain if best else 0):
                best = found
        if best is None:
            first += 1
            continue
        for i, begin in enumerate(best.begins):
            step = steps[first + i]
            inputs = (replace(step.inputs[0], ring=best.rings[i - 1]), *step.inputs[1:]) if i else step.inputs  # type: ignore[type-var]
            outputs = step.outputs
            if i < len(best.rings):
                ring, view = best.rings[i], step.outputs[0]
                outputs = (replace(view, ring=ring),)
                buffers[view.buffer] = replace(buffers[view.buffer], bytes=ring * view.strides[AXIS])
            steps[first + i] = replace(step, inputs=inputs, outputs=outputs, cut=(AXIS, begin, begin + best.moves[i]))
        loops.append(Loop(first, best.trips, best.moves))
        first += len(best.begins)
    return replace(program, steps=tuple(steps), buffers=tuple(buffers), loops=tuple(loops))


class _Rows:
    """What a step's kernel says about rows: whether it can be cut along them, and which rows of input 0 it needs."""

    def __init__(self, step: Step, program: Program) -> None:
        self.step = step
        self.out = step.outputs[0]
        self.reads_ring = program.target.kernels.reads_ring(step.kernel)
        self._program = program
        self._needs: dict[int, tuple[int, int]] = {}
        self._call: dict[str, Any] = {}

    def call(self) -> dict[str, Any]:
        if not self._call:
            step, strings = self.step, Strings()
            attrs = pack(self._program.target.kernels.layout(step.kernel), step.attrs, strings)
            self._call = {
                "name": step.kernel,
                "family": step.numerics.family,
                "inputs": [_described(view) for view in step.inputs],
                "outputs": [_described(view) for view in step.outputs],
                "attrs": attrs,
                "strings": strings.tobytes(),
            }
        return self._call

    def is_cut(self) -> bool:
        """Whether rows of one image can be computed one by one."""
        shape = self.out.type.shape
        if len(self.step.outputs) != 1 or len(shape) < 3 or shape[0] != 1 or shape[AXIS] < 4:
            return False
        return any((axis, grain) == (AXIS, 1) for axis, _, grain in _core.kernel_cuts(**self.call()))

    def needs(self, row: int) -> tuple[int, int]:
        """The rows of input 0 that a row of the output needs."""
        if row not in self._needs:
            box = [(0, extent) for extent in self.out.type.shape]
            box[AXIS] = (row, row + 1)
            self._needs[row] = _core.kernel_needs(**self.call(), input=0, box=box)[AXIS]
        return self._needs[row]

    @property
    def stride(self) -> int:
        """Rows of input 0 from one row of the output to the next, away from the edges."""
        middle = self.out.type.shape[AXIS] // 2
        return self.needs(middle)[0] - self.needs(middle - 1)[0]


def _described(view: View | None) -> tuple[str, tuple[int, ...], tuple[int, ...]] | None:
    return None if view is None else (view.type.dtype.name, view.type.shape, view.strides)


def _links(program: Program, touches: Counter[int], a: _Rows, b: _Rows) -> bool:
    """Whether b's input 0 is a's result, which nobody else reads and nothing else lies in."""
    view = a.out
    buffer = program.buffers[view.buffer]
    if not b.step.inputs or b.step.inputs[0] != view or touches[view.buffer] != 2:
        return False
    if buffer.kind != "arena" or not view.dense or buffer.bytes != view.type.bytes:
        return False
    if not a.is_cut() or not b.is_cut():
        return False
    return b.stride >= 1 and (
        b.reads_ring or all(b.needs(row) == (row, row + 1) for row in range(b.out.type.shape[AXIS]))
    )


@dataclass(frozen=True, slots=True)
class _Stream:
    begins: tuple[int, ...]  # of each step's range at the first trip
    moves: tuple[int, ...]
    rings: tuple[int, ...]  # rows of each tensor between two steps
    trips: int
    gain: int  # bytes


def _plan(chain: list[_Rows], rows: int) -> _Stream | None:
    """The loop over a chain; None where its result overwrites what it reads.

    At trip t, step i has computed its rows up to t * move + ahead, as many as the next step then needs.
    """
    last = chain[-1]
    if any(view is not None and view.buffer == last.out.buffer for rows_of in chain for view in rows_of.step.inputs):
        return None
    moves, ahead = [rows], [rows]
    rings: list[int] = []
    for a, b in zip(reversed(chain[:-1]), reversed(chain[1:]), strict=True):
        move, extent = moves[0] * b.stride, b.out.type.shape[AXIS]
        trips = range(-(ahead[0] // moves[0]), ceil(extent / moves[0]) + 1)
        ranges = [(t, max(0, t * moves[0] + ahead[0] - moves[0]), min(extent, t * moves[0] + ahead[0])) for t in trips]
        needed = [(t, b.needs(begin)[0], b.needs(end - 1)[1]) for t, begin, end in ranges if begin < end]
        lead = max(end - t * move for t, _, end in needed)
        kept = max(min(t * move + lead, a.out.type.shape[AXIS]) - begin for t, begin, _ in needed)
        rings.insert(0, min(max(kept, move), a.out.type.shape[AXIS]))
        moves.insert(0, move)
        ahead.insert(0, lead)
    waits = max(ceil(lead / move) for lead, move in zip(ahead, moves, strict=True)) - 1
    begins = tuple(lead - move - waits * move for lead, move in zip(ahead, moves, strict=True))
    trips_all = waits + ceil(last.out.type.shape[AXIS] / rows)
    assert chain[0].step.inputs[0] is not None
    sizes = [chain[0].step.inputs[0].type.bytes, *(c.out.type.bytes for c in chain)]
    kept_bytes = sum(ring * c.out.strides[AXIS] for ring, c in zip(rings, chain, strict=False))
    gain = max(a + b for a, b in pairwise(sizes)) - sizes[0] - sizes[-1] - kept_bytes
    return _Stream(begins, tuple(moves), tuple(rings), trips_all, gain)

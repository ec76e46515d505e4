"""Solves the offset of every buffer within its memory space."""

from dataclasses import replace

import numpy as np

from hexane import _core
from hexane.errors import Error
from hexane.limits import MAX_BYTES
from hexane.program import Program


def allocate(program: Program) -> Program:
    """The program with offsets: arena buffers by strip packing over their live ranges, the others one after another.

    A buffer is live from the step that first writes it to the one that last reads it. The solution is checked by code that
    the solver does not share.
    """
    alignment = program.target.alignment
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, step in enumerate(program.steps):
        for view in step.outputs:
            first.setdefault(view.buffer, i)
            last[view.buffer] = i
        for operand in step.inputs:
            if operand is not None:
                last[operand.buffer] = i
    offsets = [0] * len(program.buffers)
    arena = [i for i, b in enumerate(program.buffers) if b.kind == "arena" and i in first]
    lower = np.array([first[i] for i in arena], np.int64)
    upper = np.array([last[i] + 1 for i in arena], np.int64)
    sizes = np.array([_up(program.buffers[i].bytes, alignment) for i in arena], np.int64)
    height = bound = 0
    if arena:
        solved, height, _ = _core.alloc_solve(lower, upper, sizes, alignment)
        bound = _core.alloc_bound(lower, upper, sizes, alignment)
        _core.alloc_check(lower, upper, sizes, solved, height, alignment)
        for i, offset in zip(arena, solved.tolist(), strict=True):
            offsets[i] = offset
    used = set(last)
    totals = {"weights": 0, "state": 0}
    for i, buffer in enumerate(program.buffers):
        if buffer.kind in totals and (i in used or buffer.name):  # what has a name can be written
            offsets[i] = totals[buffer.kind]
            totals[buffer.kind] += _up(buffer.bytes, alignment)
    if max(height, *totals.values()) >= MAX_BYTES:
        raise Error(f"[allocate] got {max(height, *totals.values())} bytes, need less than 2^46")
    return replace(
        program,
        offsets=tuple(offsets),
        arena_bytes=height,
        arena_bound=bound,
        weights_bytes=totals["weights"],
        state_bytes=totals["state"],
    )


def _up(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment

"""Assigns each buffer an offset within its memory."""

from dataclasses import replace
from itertools import accumulate

import numpy as np

from hexane import _core
from hexane.errors import Error
from hexane.program import Extent, Loop, Program
from hexane.system.limits import MAX_BYTES
from hexane.targets import Space


def allocate(program: Program) -> Program:
    """Returns the program with offsets, solved separately for each memory: arenas by strip packing over
    live ranges, other memories with one buffer after another.

    A buffer is live from the first step that touches it to the last. Code independent of the solver checks the result.
    Raises Error if a memory's limit is too small.
    """
    live = live_ranges(program)
    offsets = [0] * len(program.buffers)
    extents = {}
    buffers: dict[str, list[int]] = {}
    for i, buffer in enumerate(program.buffers):
        buffers.setdefault(buffer.space, []).append(i)
    for space in program.spaces:
        mine = buffers.get(space.name, [])
        if space.kind == "arena":
            extents[space.name] = _pack(program, space, [i for i in mine if i in live], live, offsets)
        else:
            kept = [i for i in mine if i in live or space.kind in ("state", "param")]
            if space.kind == "state":  # sorted by name, so that functions with the same states can share the memory
                kept.sort(key=lambda i: program.buffers[i].name)
            extents[space.name] = _append(program, space, kept, offsets)
        if (size := extents[space.name].bytes) > (most := space.limit or MAX_BYTES):
            raise Error(f"[allocate] {space.name}: got {size} bytes, need at most {most}")
    return replace(program, offsets=tuple(offsets), extents=extents)


def live_bytes(program: Program) -> list[int]:
    """Returns the live bytes of all arenas at each step."""
    change = [0] * (len(program.steps) + 1)
    for i, (first, last) in live_ranges(program).items():
        buffer = program.buffers[i]
        if buffer.kind == "arena":
            change[first] += buffer.bytes
            change[last + 1] -= buffer.bytes
    return list(accumulate(change))[:-1]


def live_ranges(program: Program) -> dict[int, tuple[int, int]]:
    """Returns the first and the last step that touch each buffer. A buffer touched in a loop is live through the whole
    loop, unless `spans` has its range. Unpacked weights are live through the steps of their block."""
    around: dict[int, Loop] = {}
    for outer in program.loops:
        for i in range(len(outer.moves)):
            around.setdefault(outer.first + i, outer)  # the outermost loop comes first
    live: dict[int, tuple[int, int]] = {}
    for i, step in enumerate(program.steps):
        loop = around.get(i)
        first, last = (i, i) if loop is None else (loop.first, loop.first + len(loop.moves) - 1)
        for view in (*step.outputs, *step.inputs):
            if view is not None:
                live[view.buffer] = (live.get(view.buffer, (first, last))[0], last)
    homes = {block.home: (block.first, block.first + block.steps - 1) for block in program.blocks}
    return {**live, **program.spans, **homes}


def _pack(
    program: Program, space: Space, buffers: list[int], live: dict[int, tuple[int, int]], offsets: list[int]
) -> Extent:
    if not buffers:
        return Extent(space, 0, 0)
    lower = np.array([live[i][0] for i in buffers], np.int64)
    upper = np.array([live[i][1] + 1 for i in buffers], np.int64)
    sizes = np.array([rounded_up(program.buffers[i].bytes, space.alignment) for i in buffers], np.int64)
    solved, height, _ = _core.alloc_solve(lower, upper, sizes, space.alignment)
    if space.limit and height > space.limit:  # a longer search, because the limit is exceeded
        try:
            solved, height, _ = _core.alloc_solve(lower, upper, sizes, space.alignment, space.limit)
        except Error as error:
            raise Error(f"[allocate] {space.name}: {error}") from None
    bound = _core.alloc_bound(lower, upper, sizes, space.alignment)
    _core.alloc_check(lower, upper, sizes, solved, height, space.alignment)
    for i, offset in zip(buffers, solved.tolist(), strict=True):
        offsets[i] = offset
    return Extent(space, height, bound)


def _append(program: Program, space: Space, buffers: list[int], offsets: list[int]) -> Extent:
    """Places the buffers one after another. Packed weights come last, and the weights of each block are adjacent."""
    packed = dict.fromkeys(i for block in program.blocks for i in block.buffers)
    total = 0
    for i in (*(i for i in buffers if i not in packed), *(i for i in packed if i in buffers)):
        offsets[i] = total
        total += rounded_up(program.buffers[i].bytes, space.alignment)
    return Extent(space, total, total)


def rounded_up(size: int, alignment: int) -> int:
    """Returns the smallest multiple of the alignment that is at least `size`."""
    return -(-size // alignment) * alignment

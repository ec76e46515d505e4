"""Divides an arena among memories of given sizes, filling the first memory first."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hexane.errors import Error
from hexane.program import Program
from hexane.stages.bufferize.allocate import allocate, live_ranges, rounded_up
from hexane.stages.stream.traffic import Traffic, traffic
from hexane.targets import Space

MOST_STATES = 256  # states that the search keeps per step; with no more states than this the result is optimal


class _Held(NamedTuple):
    """A buffer, with the first and the last step in which it is live. moved: the bytes that a call reads from it and
    writes to it."""

    buffer: int
    first: int
    last: int
    bytes: int
    moved: int


def into_pools(program: Program, sizes: Sequence[int], slow: bool = False) -> Program | None:
    """Returns the program with its arena divided among memories of at most these sizes, named arena, arena.1 and so on.
    Returns None if the memories are too small.

    Each buffer, the largest first, goes to the first memory with room for it during its live range. slow: the last
    memory is slow, so the buffers with the least traffic go there. Offsets are solved for each memory separately.
    """
    if slow:
        moved = traffic(program)
        held = _held(program, moved)
        room = sum(sizes[:-1])
        for most in (room, room * 15 // 16, room * 7 // 8):  # a packing may need more than the live bytes
            fast = _fast(held, most)
            not_fast = {one.buffer for one in held} - fast
            if (result := _divided(program, sizes, moved, not_fast)) is not None:
                return result
        if (result := _divided(program, sizes, moved)) is not None:
            return result
    return _divided(program, sizes, {})


def slow_bytes(program: Program, pools: int) -> Traffic:
    """Returns the bytes that a call reads from, and writes to, the last of `pools` memories."""
    name = _names(program.space("arena"), pools)[-1]
    mine = [t for i, t in traffic(program).items() if program.buffers[i].space == name]
    return Traffic(sum(t.read for t in mine), sum(t.written for t in mine))


def _names(arena: Space, count: int) -> list[str]:
    return [arena.name, *(f"{arena.name}.{i}" for i in range(1, count))]


def _held(program: Program, moved: Mapping[int, Traffic]) -> list[_Held]:
    arena = program.space("arena")
    return [
        _Held(i, *ends, rounded_up(program.buffers[i].bytes, arena.alignment), sum(moved.get(i, ())))
        for i, ends in live_ranges(program).items()
        if program.buffers[i].space == arena.name and program.buffers[i].kind == "arena"
    ]


def _fast(held: Sequence[_Held], most: int) -> set[int]:
    """Returns the set of buffers with the most traffic whose live bytes never exceed `most`.

    Visits the buffers in the order in which they become live. A state of the search holds, for each step, the bytes of
    the chosen buffers whose last step it is. If two states are equal, the search keeps the state with more bytes moved.
    """
    states: dict[tuple[tuple[int, int], ...], tuple[int, tuple[int, ...]]] = {(): (0, ())}
    for one in sorted(held, key=lambda one: (one.first, -one.moved / max(1, one.bytes), one.buffer)):
        by_key: dict[tuple[tuple[int, int], ...], tuple[int, tuple[int, ...]]] = {}
        for state, (moved, chosen) in states.items():
            live = {last: size for last, size in state if last >= one.first}
            after = [(live, (moved, chosen))]
            if sum(live.values()) + one.bytes <= most:
                more = {**live, one.last: live.get(one.last, 0) + one.bytes}
                after.append((more, (moved + one.moved, (*chosen, one.buffer))))
            for sizes, best in after:
                key = tuple(sorted(sizes.items()))
                by_key[key] = max(best, by_key.get(key, best), key=lambda best: best[0])
        states = dict(sorted(by_key.items(), key=lambda state: -state[1][0])[:MOST_STATES])
    return set(max(states.values())[1])


def _divided(
    program: Program, sizes: Sequence[int], moved: Mapping[int, Traffic], not_fast: Set[int] = frozenset()
) -> Program | None:
    """Returns the program divided among the memories, or None. not_fast: the buffers that go to the last memory."""
    arena = program.space("arena")
    names = _names(arena, len(sizes))
    live = live_ranges(program)
    mine = [i for i, b in enumerate(program.buffers) if b.space == arena.name and b.kind == "arena" and i in live]
    used = np.zeros((len(sizes), len(program.steps)), np.int64)
    buffers = list(program.buffers)
    often = {i: sum(moved.get(i, ())) / max(1, buffers[i].bytes) for i in mine}
    for i in sorted(mine, key=lambda i: (-often[i], -buffers[i].bytes, live[i])):
        first, last = live[i]
        size = rounded_up(buffers[i].bytes, arena.alignment)
        there = used[:, first : last + 1].max(axis=1) + size
        begin = len(sizes) - 1 if i in not_fast else 0
        pool = next((k for k in range(begin, len(sizes)) if there[k] <= sizes[k]), None)
        if pool is None:
            return None
        used[pool, first : last + 1] += size
        buffers[i] = replace(buffers[i], space=names[pool])
    pools = [replace(arena, name=name, limit=max(1, size)) for name, size in zip(names, sizes, strict=True)]
    others = [space for space in program.spaces if space.name != arena.name]
    try:
        return allocate(replace(program, spaces=(*pools, *others), buffers=tuple(buffers)))
    except Error:
        return None

"""Weights that are stored packed in the plan and unpacked into the arena before the steps that read them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hexane.program import Block, Buffer, Program
from hexane.stages.bufferize.allocate import rounded_up

LEAST_SAVED = 1 / 16  # The least saved share of a weight that is worth its arena bytes.
ROW_BYTES = 56  # Bytes of a block's record in the plan.


@dataclass(frozen=True, slots=True)
class Candidate:
    """Weights that are unpacked together, the units that read them, and the bytes saved in the plan."""

    buffers: tuple[int, ...]
    units: tuple[tuple[int, int], ...]  # first step and number of steps, for each unpacking of the weights
    bytes: int
    saved: int


def candidates(program: Program, pack: Callable[[bytes], bytes]) -> list[Candidate]:
    """Returns the weights worth packing, the largest saving first. A unit is a single step or a whole loop, whose
    weights are needed together. Weights of several units are unpacked for each unit."""
    users: dict[int, set[tuple[int, int]]] = {}
    for unit in _units(program):
        for step in program.steps[unit[0] : sum(unit)]:
            for view in step.inputs:
                if view is not None and program.buffers[view.buffer].kind == "weights":
                    users.setdefault(view.buffer, set()).add(unit)
    groups: dict[object, list[int]] = {}
    for buffer, units in users.items():
        data = _bytes(program.buffers[buffer])
        if len(pack(data)) <= len(data) * (1 - LEAST_SAVED):
            groups.setdefault(next(iter(units)) if len(units) == 1 else buffer, []).append(buffer)
    result = []
    alignment = program.space("weights").alignment
    for buffers in groups.values():
        times = tuple(sorted(users[buffers[0]]))
        data = b"".join(_padded(_bytes(program.buffers[i]), alignment) for i in buffers)
        saved = len(data) - len(pack(data)) - ROW_BYTES * len(times)
        if saved > 0:
            result.append(Candidate(tuple(buffers), times, len(data), saved))
    return sorted(result, key=lambda one: (-one.saved, one.buffers))


def with_blocks(program: Program, chosen: Sequence[Candidate], space: str) -> Program:
    """Returns the program with these weights packed, and with buffers in memory `space` to unpack them to. The program
    has no offsets yet."""
    buffers, blocks = list(program.buffers), []
    for one in chosen:
        for first, steps in one.units:
            blocks.append(Block(one.buffers, len(buffers), first, steps))
            buffers.append(Buffer("arena", one.bytes, space=space))
    return replace(program, buffers=tuple(buffers), blocks=tuple(sorted(blocks, key=lambda block: block.first)))


def _units(program: Program) -> list[tuple[int, int]]:
    units, step = [], 0
    for loop in program.loops:
        if loop.first >= step:
            units += [(i, 1) for i in range(step, loop.first)]
            units.append((loop.first, len(loop.moves)))
            step = loop.first + len(loop.moves)
    return units + [(i, 1) for i in range(step, len(program.steps))]


def _bytes(buffer: Buffer) -> bytes:
    assert buffer.data is not None
    return buffer.data.tobytes()


def _padded(data: bytes, alignment: int) -> bytes:
    return data.ljust(rounded_up(len(data), alignment), b"\0")

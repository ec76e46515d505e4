"""Computes the bytes that steps read and write per buffer and call, which is the cost of a buffer in slow memory."""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from hexane.program import Program, Step
from hexane.stages.stream.rows import AXIS, StepRows


class Traffic(NamedTuple):
    """The bytes read and written per call."""

    read: int
    written: int


def traffic(program: Program) -> dict[int, Traffic]:
    """Returns the traffic of each buffer. A run of a step reads each row that it needs once, so rows that two runs need
    are read twice. A step that is not cut reads and writes all of its operands once."""
    read: dict[int, int] = defaultdict(int)
    written: dict[int, int] = defaultdict(int)
    # For each step, its entry in the `moves` of its innermost loop.
    moves = {i: move for loop in program.loops for i, move in enumerate(loop.moves, loop.first)}
    for i, step in enumerate(program.steps):
        for view in step.outputs:
            written[view.buffer] += view.type.bytes
        for operand, bytes_read in _reads(program, step, abs(moves.get(i, 0))).items():
            read[operand] += bytes_read
    return {buffer: Traffic(read[buffer], written[buffer]) for buffer in {**read, **written}}


def _reads(program: Program, step: Step, chunk: int) -> dict[int, int]:
    result: dict[int, int] = defaultdict(int)
    rows = StepRows(step, program)
    for operand, view in enumerate(step.inputs):
        if view is not None and program.buffers[view.buffer].kind != "weights":
            result[view.buffer] += bytes_read(rows, operand, chunk if step.cut else 0)
    return result


def bytes_read(rows: StepRows, operand: int, chunk: int) -> int:
    """Returns the bytes of an operand that a step reads with `chunk` rows per run, or with all rows at once for 0."""
    view = rows.step.inputs[operand]
    assert view is not None
    if not chunk:
        return view.type.bytes
    if view.type.rank <= AXIS or view.type.shape[AXIS] == 1 or rows.is_packed(operand):
        return view.type.bytes * -(-rows.extent // chunk)
    first, stop = rows.needs(operand)
    starts = np.arange(0, rows.extent, chunk)
    ends = np.minimum(starts + chunk, rows.extent) - 1
    needed = np.maximum(stop[ends] - first[starts], 0)
    return int(needed.sum()) * (view.type.bytes // view.type.shape[AXIS])

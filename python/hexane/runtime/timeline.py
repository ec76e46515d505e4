"""The contents of the arena: each tensor, the number of its rows, its offset, and its live range."""

from dataclasses import dataclass

import numpy as np

from hexane.ops import OPS
from hexane.program import Program, Step, View
from hexane.stages.bufferize.allocate import live_bytes, live_ranges
from hexane.stages.stream.by_rows import by_rows
from hexane.stages.stream.column_tiles import COLUMNS, Columns, is_striped, needs
from hexane.stages.stream.rows import AXIS, StepRows

WIDTH = 48  # characters of the time axis in text


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor in the arena. layer: the layer that computes it; kept: the number of its rows in the arena at once, 0
    for all; rows: all rows of the tensor, 0 if it has no axis of rows; first, last: its live range in steps, widened to
    whole loops. why: the reason why it cannot be smaller."""

    layer: str
    kernel: str
    type: str
    rows: int
    kept: int
    bytes: int
    offset: int
    first: int
    last: int
    why: str


def timeline(program: Program) -> tuple[Held, ...]:
    """Returns the tensors in the arena, in the order of their first steps."""
    spans = []
    users = _users(program)
    for buffer, (first, last) in live_ranges(program).items():
        if program.buffers[buffer].kind != "arena":
            continue
        writer = next((i for i, view, written in users[buffer] if written), users[buffer][0][0])
        view = next(view for i, view, _ in users[buffer] if i == writer)
        rows = view.type.shape[AXIS] if view.type.rank > 2 else 0
        step = program.steps[writer]
        spans.append(
            Held(
                step.node.where, step.kernel, str(view.type), rows, view.ring, program.buffers[buffer].bytes,
                program.offsets[buffer], first, last, _why(program, users[buffer], view, last),
            )
        )  # fmt: skip
    return tuple(sorted(spans, key=lambda held: (held.first, held.offset)))


_Users = list[tuple[int, View, bool]]  # step, view, true if the step writes it


def _users(program: Program) -> dict[int, _Users]:
    result: dict[int, _Users] = {}
    for i, step in enumerate(program.steps):
        for views, written in ((step.inputs, False), (step.outputs, True)):
            for view in views:
                if view is not None:
                    result.setdefault(view.buffer, []).append((i, view, written))
    return result


def _why(program: Program, users: _Users, view: View, last: int) -> str:
    readers = [i for i, _, written in users if not written]
    if not readers:
        return "an output"
    loop = next((loop for loop in program.loops if loop.first <= users[0][0] < loop.first + len(loop.moves)), None)
    reader = program.steps[readers[-1]]
    name = reader.node.where
    if view.ring:
        return (
            f"{view.ring} row{'s' * (view.ring > 1)} at once until {name} has read {'them' if view.ring > 1 else 'it'}"
        )
    if loop is None and all(program.steps[i].cut is None for i in readers):
        return f"all of it until {name} reads it"
    if loop is not None and any(i >= loop.first + len(loop.moves) for i in readers):
        return f"all of it: {name} runs after the loop over rows that computes it"
    return f"all of it, for rows that {name} reads"


def peak(program: Program) -> int:
    """Returns the step with the most live bytes."""
    live = live_bytes(program)
    return max(range(len(live)), key=live.__getitem__, default=0)


def floor(program: Program) -> int:
    """Returns a lower bound of the arena for every plan of these steps, in any order, cut and placement: the largest
    need of one step, for a pixel of its result if columns may be cut, or else for a row. A result and the operand that
    it may overwrite count once."""
    program = by_rows(program)
    return max((_least(StepRows(step, program), program) for step in program.steps), default=0)


def _least(rows: StepRows, program: Program) -> int:
    step = rows.step
    if step.kernel == "copy":  # another plan may not need the copy
        return 0
    read: dict[int, int] = {}
    for i, view in enumerate(step.inputs):
        if view is None or program.buffers[view.buffer].kind != "arena":
            continue
        size = view.type.bytes
        if rows.is_cut and view.type.rank > AXIS and view.type.shape[AXIS] > 1 and not rows.is_packed(i):
            first, stop = rows.needs(i)
            size = int((stop - first).max()) * (size // view.type.shape[AXIS])
            size = int(size * _columns(step, i))
        read[view.buffer] = max(read.get(view.buffer, 0), size)
    pieces = rows.extent if rows.is_cut else 1
    if rows.is_cut and is_striped(step.node):
        pieces *= step.node.types[0].shape[COLUMNS]
    written = sum(v.type.bytes // pieces for v in step.outputs if _in_arena(v, program))
    total = sum(read.values())
    return max(total, written) if OPS[step.node.op].elementwise else total + written


def _columns(step: Step, i: int) -> float:
    """Returns the share of an operand's columns that one column of the result needs."""
    if not is_striped(step.node):
        return 1.0
    each = np.arange(step.node.types[0].shape[COLUMNS])
    columns = (needs(step.node, Columns(COLUMNS, each, each + 1)) or {}).get(i)
    operand = step.node.inputs[i]
    return 1.0 if columns is None or operand is None else columns.widest / operand.shape[columns.axis]


def _in_arena(view: View, program: Program) -> bool:
    return program.buffers[view.buffer].kind == "arena"


def as_text(held: tuple[Held, ...], steps: int) -> str:
    """Returns a line for each tensor, with its live range drawn as a bar."""
    lines = ["       bytes    offset  rows       steps  layer"]
    for one in held:
        rows = f"{one.kept}/{one.rows}" if one.kept else str(one.rows or "")
        lines.append(
            f"  {one.bytes:10} {one.offset:9}  {rows:>7} {one.first:4}-{one.last:<4} {_bar(one, steps)}  {one.layer}"
        )
    return "\n".join(lines) + "\n"


def _bar(one: Held, steps: int) -> str:
    begin, end = one.first * WIDTH // steps, max((one.last + 1) * WIDTH // steps, one.first * WIDTH // steps + 1)
    return "." * begin + "#" * (end - begin) + "." * (WIDTH - end)

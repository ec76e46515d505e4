"""The runs of a program's steps, loops unrolled."""

from collections.abc import Iterator

from hexane.program import Program


def runs(program: Program) -> Iterator[tuple[int, int, int]]:
    """Each run of a step, loops unrolled, with its range of rows; 0, 0 for a step in no loop."""
    yield from _walk(program, 0, len(program.steps), 0, {})


def _walk(program: Program, first: int, end: int, loop: int, shift: dict[int, int]) -> Iterator[tuple[int, int, int]]:
    step = first
    while step < end:
        while loop < len(program.loops) and program.loops[loop].first < step:
            loop += 1
        if loop == len(program.loops) or program.loops[loop].first != step:
            yield from _run(program, step, shift)
            step += 1
            continue
        found = program.loops[loop]
        for trip in range(found.trips):
            moved = {step + i: shift.get(step + i, 0) + trip * move for i, move in enumerate(found.moves)}
            yield from _walk(program, step, step + len(found.moves), loop + 1, moved)
        step += len(found.moves)


def _run(program: Program, step: int, shift: dict[int, int]) -> Iterator[tuple[int, int, int]]:
    cut = program.steps[step].cut
    if step not in shift or cut is None:
        yield step, 0, 0
        return
    extent = program.steps[step].outputs[0].type.shape[cut[0]]
    begin, end = (min(max(at + shift[step], 0), extent) for at in cut[1:])
    if begin < end:
        yield step, begin, end

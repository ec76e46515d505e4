"""Finds a program within a given amount of memory: with whole tensors if these fit, then a training step with
recomputed values, then row by row."""

from collections.abc import Iterator

from hexane.errors import Error
from hexane.memory import Memory
from hexane.planning.extra_memory import ExtraBytes, extra_text, smaller_text, whole_text
from hexane.planning.stages import in_stages
from hexane.planning.whole import computing_again
from hexane.program import Program
from hexane.stages.bufferize.allocate import live_bytes
from hexane.stages.bufferize.pools import into_pools, slow_bytes
from hexane.stages.stream.column_tile_choice import COST_STEP, StripeChoice
from hexane.stages.stream.stream import Streams, arena_bytes
from hexane.stages.stream.traffic import Traffic

ROWS = (8, 4, 2, 1)  # rows that are computed at a time, the fastest number first


def fitted(program: Program, extra_bytes: ExtraBytes, memory: Memory, order: str) -> Program:
    """Returns the program of whole tensors if it fits, else a program by the strategy of `memory`.

    With the strategy "stream", a training step recomputes values. If that is not enough, and for other graphs, parts
    are computed row by row (with the first of ROWS that fits), else in stripes of columns (with the least
    recomputation). If no number of rows fits and there is slow memory, the program has the least sum of traffic and
    recomputation. order: the argument of `place`. Raises Error if no program fits, and names the layer that needs the
    most.
    """
    if memory.sram is None:
        return program
    pools = len(memory.pools)

    def needed(one: Program) -> int:
        return arena_bytes(one) + extra_bytes(one, pools)

    if (result := _within(program, extra_bytes, memory)) is not None:
        return result
    if memory.strategy == "stages":
        return in_stages(program, extra_bytes, memory, order)
    budget = max(0, memory.bytes - extra_bytes(program, pools))
    best = program
    for again in computing_again(program, memory, budget):
        if (result := _within(again, extra_bytes, memory)) is not None:
            return result
        best = min(best, again, key=needed)
    streams = Streams(program, order, memory.hold_ports)
    smallest: Program | None = None
    for rows in ROWS:
        streamed = streams.stream(rows, budget)
        if arena_bytes(streamed) <= memory.bytes:
            result = _within(streamed, extra_bytes, memory)
            if result is not None:
                return result
        if smallest is None:
            smallest = streams.stream(ROWS[-1])
            if needed(smallest) > memory.bytes:  # one row at a time needs the least memory
                break
    assert smallest is not None
    if (result := _within(smallest, extra_bytes, memory)) is not None:
        return result
    choice = StripeChoice(program, order, memory.hold_ports)
    if memory.slow_bytes:
        tried = [program, smallest, *streams.for_slow(budget, memory.bytes + memory.slow_bytes)]
        if (result := _with_slow(tried, choice, extra_bytes, memory)) is not None:
            return result
    best = min(best, smallest, key=needed)
    for striped in _striped(choice, memory):
        if (result := _within(striped, extra_bytes, memory)) is not None:
            return result
        best = min(best, striped, key=needed)
    raise Error(f"[compile] memory: {_shortage(best, extra_bytes, memory)}")


def slow_traffic(program: Program, memory: Memory) -> Traffic | None:
    """Returns the traffic of one call from and to slow memory, for a program of `fitted`, or None without slow
    memory."""
    pools = len(memory.pools)
    return slow_bytes(program, pools + 1) if f"arena.{pools}" in program.extents and memory.slow_bytes else None


def _striped(choice: StripeChoice, memory: Memory) -> Iterator[Program]:
    """Yields programs in stripes of columns that may fit, with increasing recomputation. Yields the smallest program if
    none may fit."""
    chosen = None
    for chosen in choice.ways():
        if chosen.cost <= memory.bytes * COST_STEP:
            yield choice.streamed(chosen)
            chosen = None
    if chosen is not None:
        yield choice.streamed(chosen)


def _with_slow(
    programs: list[Program], choice: StripeChoice, extra_bytes: ExtraBytes, memory: Memory
) -> Program | None:
    """Returns the best of these programs and of programs in stripes of columns, or None. The best has the least sum of
    bytes moved from and to slow memory and repeated multiply-accumulates. A multiply-accumulate counts as one byte."""
    first, *rest = memory.pools
    best: tuple[int, int, Program] | None = None

    def better(program: Program) -> tuple[int, int, Program] | None:
        count = extra_bytes(program, len(memory.pools) + 1)
        sizes = (first - count, *rest, memory.slow_bytes)
        if (found := _within(program, extra_bytes, memory)) is not None:
            divided, moved = found, 0
        elif count > first or (in_pools := into_pools(program, sizes, slow=True)) is None:
            return best
        else:
            divided, moved = in_pools, sum(slow_bytes(in_pools, len(sizes)))
        cost = moved + program.repeated, arena_bytes(divided)
        return best if best is not None and best[:2] <= cost else (*cost, divided)

    for program in programs:
        best = better(program)
    for chosen in choice.ways():  # the fewest repeated multiply-accumulates first
        if best is not None and chosen.repeated >= best[0]:
            break
        best = better(choice.streamed(chosen))
    return None if best is None else best[2]


def _within(program: Program, extra_bytes: ExtraBytes, memory: Memory) -> Program | None:
    first, *rest = memory.pools
    count = extra_bytes(program, len(memory.pools))
    if not rest:
        return program if arena_bytes(program) + count <= first else None
    return None if count > first else into_pools(program, (first - count, *rest))


def _text(memory: Memory) -> str:
    pools = f" in {len(memory.pools)} memories" if len(memory.pools) > 1 else ""
    return f"{memory.bytes} bytes of sram{pools}" + (f" and {memory.slow_bytes} slow" if memory.slow_bytes else "")


def _shortage(program: Program, extra_bytes: ExtraBytes, memory: Memory) -> str:
    count = extra_bytes(program, len(memory.pools))
    live = live_bytes(program)
    peak = max(range(len(live)), key=lambda i: (live[i], operand_bytes(program, i)))
    step = program.steps[peak]
    operands = operand_bytes(program, peak)
    later = f"; the other {live[peak] - operands} wait for later steps" if live[peak] > operands else ""
    return (
        f"got {_text(memory)}, need at least {arena_bytes(program) + count}: {arena_bytes(program)} of arena,"
        f" {extra_text(count, memory.runs_on)}. Most is live at {step.node.where} ({step.kernel}),"
        f" whose operands take {operands}{later}.{whole_text(program)}"
        f" {smaller_text(program, memory.runs_on, extra_bytes.threads, count)}"
    )


def operand_bytes(program: Program, step: int) -> int:
    """Returns the bytes of the arena buffers that a step reads or writes."""
    views = (*program.steps[step].inputs, *program.steps[step].outputs)
    buffers = {view.buffer for view in views if view is not None}
    return sum(program.buffers[i].bytes for i in buffers if program.buffers[i].kind == "arena")

"""Finds a program within a given amount of memory, in stages that pass tensors through slow memory."""

from collections.abc import Iterator
from dataclasses import replace

from hexane.errors import Error
from hexane.memory import Memory
from hexane.planning.extra_memory import ExtraBytes, extra_text, smaller_text, whole_text
from hexane.program import Program
from hexane.stages.bufferize.allocate import allocate
from hexane.stages.stream.spill import Spilled, Spills, TooLarge
from hexane.stages.stream.stage import SLOW


def in_stages(program: Program, extra_bytes: ExtraBytes, memory: Memory, order: str) -> Program:
    """Returns the program of whole tensors, divided into stages. Fast memory, with the extra bytes, is at most
    `memory.sram`, slow memory at most `memory.slow`. Plans are computed for several sizes up to `memory.sram`, because
    a smaller plan leaves more room for scratch. The plan with the least traffic is returned. Every plan tried
    for some budget is also tried for any larger budget.

    Raises Error if no plan fits, with the layer that needs most.
    """
    sram, slow = memory.bytes, memory.slow_bytes
    spills = Spills(program, order, memory.hold_ports)
    least = spills.at(0)
    # Scratch has to fit even if all tensors are in slow memory.
    answers = [spills.at(room) for room in _rooms(least.bytes, sram)] if isinstance(least, TooLarge) else [least]
    spilled = [one for one in answers if isinstance(one, Spilled)]
    # Among plans of equal traffic and slow memory, the plan with the most fast memory is first, as it computes more
    # rows at a time.
    spilled.sort(key=lambda one: (sum(one.moved), one.slow, -one.fast))
    for one in spilled:
        count = extra_bytes(one.program, 2)
        if one.fast + count <= sram and one.slow <= slow:
            return _limited(one.program, sram - count, slow)
    raise Error(f"[compile] memory: {_shortage(spills, least, extra_bytes, memory)}")


def _rooms(least: int, most: int) -> Iterator[int]:
    """Yields sizes of memory for tensors: `least`, each power of two, and three sizes between it and the next power."""
    if least <= most:
        yield least
    for power in range(most.bit_length()):
        yield from (room for n in (4, 5, 6, 7) if least < (room := (n << power) // 4) <= most)


def _limited(program: Program, fast: int, slow: int) -> Program:
    sizes = {program.space("arena").name: fast, SLOW: slow}
    spaces = tuple(
        replace(space, limit=max(1, sizes[space.name])) if space.name in sizes else space for space in program.spaces
    )
    return allocate(replace(program, spaces=spaces))


def _shortage(spills: Spills, least: TooLarge | Spilled, extra_bytes: ExtraBytes, memory: Memory) -> str:
    spilled = spills.at(least.bytes) if isinstance(least, TooLarge) else least
    assert isinstance(spilled, Spilled)
    count = extra_bytes(spilled.program, 2)
    fast, tensors = 0, "0 for tensors"
    if isinstance(least, TooLarge):
        fast = least.bytes
        tensors = f"{fast} for the tensors of {least.step.node.where} ({least.step.kernel})"
    return (
        f"got {memory.bytes} bytes of sram and {memory.slow_bytes} slow, need in stages at least {fast + count}: "
        f"{tensors}, {extra_text(count, memory.runs_on)}; and then {spilled.slow} slow."
        f"{whole_text(spilled.program)} "
        f"{smaller_text(spilled.program, memory.runs_on, extra_bytes.threads, count)}"
    )

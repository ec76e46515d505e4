"""Compiles into a given amount of memory: in whole tensors if these fit, else row by row, else not at all."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from hexane import _core
from hexane.errors import Error
from hexane.program import Program
from hexane.stages.allocate import live_bytes
from hexane.stages.stream import arena_bytes, stream

ROWS = (8, 4, 2, 1)  # at a time: the more, the faster
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Memory:
    """What a model may take while it runs, beside its weights, states, inputs and outputs.

    sram: bytes of the arena and of the scratch that kernels use beside it, as a number or as "128K", "1.5M". Raises Error for what
    is none.
    """

    sram: int | str

    def __post_init__(self) -> None:
        self.bytes  # noqa: B018  raises Error

    @property
    def bytes(self) -> int:
        """sram as a number."""
        found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)([KMG]?)", str(self.sram), re.ASCII)
        if isinstance(self.sram, bool) or not isinstance(self.sram, (int, str)) or found is None:
            raise Error(f"[memory] sram: got {self.sram!r}, need a number of bytes, or one with K, M or G behind it")
        return int(float(found[1]) * _UNITS[found[2]])


Made = tuple[Program, _core.Program]


def fitted(made: Made, make: Callable[[Program], _core.Program], memory: Memory, order: str) -> Made:
    """A program of whole tensors if it fits, else one that computes parts row by row, of those that fit the first in the order of
    ROWS. order: by which `place` made it.

    Raises Error for one that does not fit in any way, with the layer that needs most.
    """
    program, core = made
    if _needed(made) <= memory.bytes:
        return made
    best = made
    for rows in ROWS:
        streamed = stream(program, rows, max(0, memory.bytes - core.scratch_bytes), order)
        found = streamed, make(streamed)
        if _needed(found) <= memory.bytes:
            return found
        best = min(best, found, key=_needed)
    raise Error(f"[compile] memory: {_shortage(best, memory)}")


def _needed(made: Made) -> int:
    program, core = made
    return arena_bytes(program) + core.scratch_bytes


def _shortage(made: Made, memory: Memory) -> str:
    program, core = made
    live = live_bytes(program)
    peak = max(range(len(live)), key=lambda i: (live[i], operand_bytes(program, i)))
    step = program.steps[peak]
    return (
        f"got {memory.bytes} bytes of sram, need {_needed(made)}: {arena_bytes(program)} of arena, "
        f"{core.scratch_bytes} of scratch. Most is live at {step.node.where} ({step.kernel}), whose operands take "
        f"{operand_bytes(program, peak)}. More sram, smaller images, fewer channels there or a narrower dtype would help, "
        "and threads=1 where scratch is most of it"
    )


def operand_bytes(program: Program, step: int) -> int:
    """Of the arena's buffers that a step reads or writes."""
    views = (*program.steps[step].inputs, *program.steps[step].outputs)
    buffers = {view.buffer for view in views if view is not None}
    return sum(program.buffers[i].bytes for i in buffers if program.buffers[i].kind == "arena")

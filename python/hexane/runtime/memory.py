"""Compiles into a given amount of memory: in whole tensors if these fit, else row by row, else not at all."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hexane import _core
from hexane.errors import Error
from hexane.program import Program
from hexane.runtime.beside import RUNTIMES, beside, beside_text, for_runtime, help_text, whole_text
from hexane.runtime.in_stages import in_stages
from hexane.stages.allocate import live_bytes
from hexane.stages.pools import into_pools, slow_bytes
from hexane.stages.stream import Streams, arena_bytes
from hexane.stages.stripe_choice import COST_STEP, StripeChoice
from hexane.stages.traffic import Traffic

ROWS = (8, 4, 2, 1)  # at a time: the more, the faster
MOST_POOLS = 8
STRATEGIES = ("stream", "stages")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Memory:
    """What a model may take while it runs, beside its states.

    sram: bytes of the arena and of what counts beside it, as a number or as "128K", "1.5M"; of several memories as in
    "128K+64K", of which the first has what is beside; None for any number. slow: bytes of one that is used only where sram is not enough.
    runtime: what runs the plan, and so what counts beside the arena. "host": the scratch of this CPU's kernels, but no inputs and
    outputs, which the caller has. "c99": inputs and outputs, unless they are streamed; kernels of the C99 runtime use no scratch.
    "cmsis-nn": these, and what the arena grows by for the scratch of CMSIS-NN (`hexane codegen --backend cmsis-nn`), most of which lies in
    gaps of the arena. "": "c99" with flash, else "host".
    flash: bytes of the plan and of the code that runs it on a microcontroller; 0 for any number. compress="lz4": weights that become
    smaller lie packed in the plan, and are unpacked into the arena before the steps that read them, as far as sram has room.
    xip: all weights are read where they lie in the plan; with compress, all but those that must be packed to fit the flash.
    strategy: what is done where whole tensors do not fit. "stream": parts of the program go row by row, and slow memory has what does not
    fit then. "stages": what fits is computed at a time, and all that passes between such stages goes through slow memory. Raises
    Error for what is none.
    """

    sram: int | str | None = None
    slow: int | str = 0
    flash: int | str = 0
    compress: str = ""
    xip: bool = False
    strategy: str = "stream"
    runtime: str = ""

    def __post_init__(self) -> None:
        self.pools  # noqa: B018  raises Error
        self.flash_bytes  # noqa: B018
        if self.slow_bytes and self.sram is None:
            raise Error("[memory] slow: got it alone, need sram as well")
        if self.compress not in ("", "lz4"):
            raise Error(f"[memory] compress: got {self.compress!r}, need 'lz4', or '' for none")
        if self.strategy not in STRATEGIES:
            raise Error(f"[memory] strategy: got {self.strategy!r}, need {' or '.join(map(repr, STRATEGIES))}")
        if self.runtime not in ("", *RUNTIMES):
            raise Error(f"[memory] runtime: got {self.runtime!r}, need {' or '.join(map(repr, RUNTIMES))}")
        if self.strategy == "stages" and len(self.pools) != 1:
            raise Error(f"[memory] strategy: got 'stages' with sram {self.sram!r}, need sram in one memory")

    @property
    def runs_on(self) -> str:
        """runtime, "host" or "c99"."""
        return self.runtime or ("c99" if self.flash_bytes else "host")

    @property
    def bytes(self) -> int:
        """sram as a number."""
        return sum(self.pools)

    @property
    def pools(self) -> tuple[int, ...]:
        """Bytes of each memory of sram."""
        if self.sram is None:
            return ()
        parts = self.sram.split("+") if isinstance(self.sram, str) else [self.sram]
        if len(parts) > MOST_POOLS:
            raise Error(f"[memory] sram: got {len(parts)} memories, need at most {MOST_POOLS}")
        return tuple(_count("sram", part, self.sram) for part in parts)

    @property
    def slow_bytes(self) -> int:
        """slow as a number."""
        return _count("slow", self.slow, self.slow)

    @property
    def flash_bytes(self) -> int:
        """flash as a number; 0 where there is no limit."""
        return _count("flash", self.flash, self.flash)


def _count(name: str, text: int | str, given: int | str) -> int:
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)([KMG]?)", str(text), re.ASCII)
    if isinstance(text, bool) or not isinstance(text, (int, str)) or found is None:
        raise Error(f"[memory] {name}: got {given!r}, need a number of bytes, or one with K, M or G behind it")
    return int(float(found[1]) * _UNITS[found[2]])


Made = tuple[Program, _core.Program]


def fitted(
    made: Made, make: Callable[[Program], _core.Program], memory: Memory, order: str, holds_ports: bool = False
) -> Made:
    """A program of whole tensors if it fits, else one in the strategy that `memory` names. "stream": it computes parts row by row, of
    those that fit the first in the order of ROWS, else in stripes of columns, of those that fit the one that repeats least. With slow
    memory, where no number of rows fits, the one that moves and repeats least. order: by which `place` made it. holds_ports: it has inputs
    and outputs in the arena.

    Raises Error for one that does not fit in any way, with the layer that needs most.
    """
    if memory.sram is None:
        return made
    program = for_runtime(made[0], memory.runs_on)
    made = program, made[1]
    if (found := _within(made, make, memory)) is not None:
        return found
    if memory.strategy == "stages":
        return in_stages(program, make, memory.bytes, memory.slow_bytes, order, holds_ports, memory.runs_on)
    streams = Streams(program, order, holds_ports)
    budget = max(0, memory.bytes - _beside(made, memory))
    smallest: Made | None = None
    for rows in ROWS:
        streamed = streams.stream(rows, budget)
        if arena_bytes(streamed) <= memory.bytes:
            found = _within((streamed, make(streamed)), make, memory)
            if found is not None:
                return found
        if smallest is None:
            streamed = streams.stream(ROWS[-1])
            smallest = streamed, make(streamed)
            if _needed(smallest, memory) > memory.bytes:  # no other choice needs less
                break
    assert smallest is not None
    if (found := _within(smallest, make, memory)) is not None:
        return found
    choice = StripeChoice(program, order, holds_ports)
    if memory.slow_bytes:
        tried = [program, smallest[0], *streams.for_slow(budget, memory.bytes + memory.slow_bytes)]
        if (found := _with_slow(tried, choice, make, memory)) is not None:
            return found
    best = min(made, smallest, key=lambda one: _needed(one, memory))
    for striped in _striped(choice, make, memory):
        if (found := _within(striped, make, memory)) is not None:
            return found
        best = min(best, striped, key=lambda one: _needed(one, memory))
    raise Error(f"[compile] memory: {_shortage(best, memory)}")


def slow_traffic(program: Program, memory: Memory) -> Traffic | None:
    """What a call of a program that `fitted` made moves from and to slow memory; None where it has none."""
    pools = len(memory.pools)
    return slow_bytes(program, pools + 1) if f"arena.{pools}" in program.extents and memory.slow_bytes else None


def _striped(choice: StripeChoice, make: Callable[[Program], _core.Program], memory: Memory) -> Iterator[Made]:
    """Programs in stripes of columns: those that may fit, what repeats least first, and where none may, the one that needs least."""
    chosen = None
    for chosen in choice.ways():
        if chosen.cost <= memory.bytes * COST_STEP:
            yield (program := choice.streamed(chosen)), make(program)
            chosen = None
    if chosen is not None:
        yield (program := choice.streamed(chosen)), make(program)


def _with_slow(
    programs: list[Program], choice: StripeChoice, make: Callable[[Program], _core.Program], memory: Memory
) -> Made | None:
    """Of these, and of programs in stripes of columns, the one that moves fewest bytes from and to slow memory, where a
    multiply-accumulate that is done more than once counts as a byte: it takes no less time."""
    first, *rest = memory.pools
    best: tuple[int, int, Program] | None = None

    def better(program: Program) -> tuple[int, int, Program] | None:
        core = make(program)
        count = beside(program, core, memory.runs_on, len(memory.pools) + 1)
        sizes = (first - count, *rest, memory.slow_bytes)
        if (found := _within((program, core), make, memory)) is not None:
            divided, moved = found[0], 0
        elif count > first or (in_pools := into_pools(program, sizes, slow=True)) is None:
            return best
        else:
            divided, moved = in_pools, sum(slow_bytes(in_pools, len(sizes)))
        cost = moved + program.repeated, arena_bytes(divided)
        return best if best is not None and best[:2] <= cost else (*cost, divided)

    for program in programs:
        best = better(program)
    for chosen in choice.ways():  # what repeats least first
        if best is not None and chosen.repeated >= best[0]:
            break
        best = better(choice.streamed(chosen))
    return None if best is None else (best[2], make(best[2]))


def _within(made: Made, make: Callable[[Program], _core.Program], memory: Memory) -> Made | None:
    """In the memories of sram; None where it does not fit."""
    program, _ = made
    first, *rest = memory.pools
    if not rest:
        return made if _needed(made, memory) <= first else None
    count = _beside(made, memory)
    if count > first:
        return None
    divided = into_pools(program, (first - count, *rest))
    return None if divided is None else (divided, make(divided))


def _needed(made: Made, memory: Memory) -> int:
    return arena_bytes(made[0]) + _beside(made, memory)


def _beside(made: Made, memory: Memory) -> int:
    return beside(*made, memory.runs_on, len(memory.pools))


def _text(memory: Memory) -> str:
    pools = f" in {len(memory.pools)} memories" if len(memory.pools) > 1 else ""
    return f"{memory.bytes} bytes of sram{pools}" + (f" and {memory.slow_bytes} slow" if memory.slow_bytes else "")


def _shortage(made: Made, memory: Memory) -> str:
    program, _ = made
    live = live_bytes(program)
    peak = max(range(len(live)), key=lambda i: (live[i], operand_bytes(program, i)))
    step = program.steps[peak]
    return (
        f"got {_text(memory)}, need {_needed(made, memory)}: {arena_bytes(program)} of arena, "
        f"{beside_text(_beside(made, memory), memory.runs_on)}. "
        f"Most is live at {step.node.where} ({step.kernel}), whose operands take {operand_bytes(program, peak)}."
        f"{whole_text(program, memory.runs_on)} "
        f"More sram, smaller images, fewer channels there or a narrower dtype would help, and {help_text(memory.runs_on)}"
    )


def operand_bytes(program: Program, step: int) -> int:
    """Of the arena's buffers that a step reads or writes."""
    views = (*program.steps[step].inputs, *program.steps[step].outputs)
    buffers = {view.buffer for view in views if view is not None}
    return sum(program.buffers[i].bytes for i in buffers if program.buffers[i].kind == "arena")

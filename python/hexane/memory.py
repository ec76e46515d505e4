"""The memory that a model may take, as its user states it."""

import re
from dataclasses import KW_ONLY, dataclass

from hexane.errors import Error
from hexane.system.field_docs import with_field_docs

RUNTIMES = ("host", "c99", "cmsis-nn")
STRATEGIES = ("stream", "stages")
MOST_POOLS = 8
MOST_ROWS = 1 << 20
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@with_field_docs
@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that a model may take while it runs, and the ways to need less. Its states are not counted, and
    weights only against `flash`. docs/memory.md has examples. All but `variants` and `call` is for the host as the
    target.

    Sizes are bytes, as a number or as in "128K" and "1.5M". Raises Error for a value that its field does not take.
    """

    sram: int | str | None = None
    """The arena, and the scratch of this CPU's kernels (for the C99 runtime: inputs and outputs instead). "128K+64K":
    two memories, of which the first has the scratch or the ports. Whole tensors where they fit; else a training step
    computes values again in place of keeping them; else parts of the program are computed 8, 4, 2 or 1 rows at a time;
    Error that names the layer which needs most where that does not fit either. None: no limit."""

    _: KW_ONLY

    slow: int | str = 0
    """A slower memory, used only where `sram` is not enough."""

    strategy: str = "stream"
    """Where whole tensors do not fit. "stream": parts of the program go row by row, and `slow` takes tensors that still
    do not fit. "stages": as much as fits is computed at a time, and all tensors between such stages go through
    `slow`."""

    rows: int = 0
    """Parts of the program that work on one image (convolutions, pools, elementwise ops, concatenations) compute this
    many rows at a time, with a few rows between their steps instead of whole tensors. The parts are those by which the
    arena becomes smallest; the results have the same bits. 0: whole tensors, or the rows that `sram` needs. Not
    together with a limit."""

    hold_ports: bool = False
    """Inputs and outputs lie in the arena and count there, each as long as the network needs it, in the dtype in which
    the network first or last computes with it (bytes, for an int8 network); the arrays of a call are only copied or
    cast."""

    stream_input: bool = False
    """For a device that has no memory for a whole input: its rows enter the arena in order, each once, and a program
    that goes row by row keeps few of them. The C99 runtime calls a hook for each row; here rows are copied from the
    array of the call."""

    stream_output: bool = False
    """The same for outputs."""

    runtime: str = ""
    """What runs the plan. "host": this CPU's kernels, whose scratch counts. "c99": the C99 runtime, whose kernels use
    no scratch, and whose inputs and outputs count unless they are streamed. "cmsis-nn": the same with the kernels of
    CMSIS-NN (`hexane codegen --backend cmsis-nn`), whose scratch counts as far as the arena has no gap for it. "":
    "c99" with `flash`, else "host"."""

    flash: int | str = 0
    """The plan, and the code that runs it on a microcontroller. 0: no limit."""

    compress: str = ""
    """How weights are packed. "lz4": those that become smaller lie packed in the plan, and are unpacked into the arena
    before the steps that read them, as far as `sram` has room."""

    xip: bool = False
    """Weights are read where they lie in the plan: all, or with `compress` all but those that must be packed to fit
    `flash`."""

    whole_weights: bool = False
    """Weights in few bits that no kernel reads so are decoded once, when the network is compiled, in place of in each
    call: a call takes less time, and the program more memory. So are they with a limit of `sram`, and for devices.
    Weights of many zeros are whole, too."""

    variants: int | str = 1 << 30
    """For a model of open shapes: the programs that it keeps for shapes it was called with, without the weights, which
    they share."""

    call: int | str = 0
    """For a model of open shapes: the most bytes that one call may take, inputs, outputs and what lies between them. A
    call of larger shapes is an InputError before memory is asked for. 0: no limit."""

    def __post_init__(self) -> None:
        self.pools, self.flash_bytes, self.variants_bytes, self.call_bytes  # noqa: B018  raise Error
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
        rows = self.rows
        if isinstance(rows, bool) or not isinstance(rows, int) or not 0 <= rows <= MOST_ROWS:
            raise Error(f"[memory] rows: got {rows!r}, need an integer from 0 on")
        for name in ("xip", "hold_ports", "stream_input", "stream_output", "whole_weights"):
            if not isinstance(getattr(self, name), bool):
                raise Error(f"[memory] {name}: got {getattr(self, name)!r}, need True or False")
        if rows and (limits := self.limits):
            raise Error(f"[memory] rows: got {rows} with {', '.join(limits)}, need one or the other")

    @property
    def limits(self) -> list[str]:
        """The fields given that limit the memory or ask for a device with little of it."""
        names = ("sram", "flash", "compress", "xip", "runtime")
        return [name for name in names if getattr(self, name) not in (None, 0, "", False)]

    @property
    def unlimited(self) -> "Memory":
        """The same ports, without a limit."""
        return Memory(
            hold_ports=self.hold_ports, stream_input=self.stream_input, stream_output=self.stream_output,
            variants=self.variants, call=self.call,
        )  # fmt: skip

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
        return tuple(byte_count("[memory] sram", part, self.sram) for part in parts)

    @property
    def slow_bytes(self) -> int:
        """slow as a number."""
        return byte_count("[memory] slow", self.slow)

    @property
    def flash_bytes(self) -> int:
        """flash as a number; 0 where there is no limit."""
        return byte_count("[memory] flash", self.flash)

    @property
    def variants_bytes(self) -> int:
        """variants as a number."""
        return byte_count("[memory] variants", self.variants)

    @property
    def call_bytes(self) -> int:
        """call as a number; 0 where there is no limit."""
        return byte_count("[memory] call", self.call)


def byte_count(where: str, text: int | str, given: int | str | None = None) -> int:
    """4096, "128K" or "1.5M" as a number of bytes. Raises Error, which begins with `where`, for anything else."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)([KMG]?)", str(text), re.ASCII)
    if isinstance(text, bool) or not isinstance(text, (int, str)) or match is None:
        given = text if given is None else given
        raise Error(f"{where}: got {given!r}, need a number of bytes, or one with K, M or G behind it")
    return int(float(match[1]) * _UNITS[match[2]])

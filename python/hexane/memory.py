"""The limits that a user sets on the memory of a model."""

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
    """The memory that a model may take while it runs, and ways to need less. States are not counted, and weights only
    count towards `flash`. docs/memory.md has examples. All fields except `variants` and `call` require the target
    "host".

    Sizes are bytes, as a number or as in "128K" and "1.5M". Raises Error for a value that its field does not take.
    """

    sram: int | str | None = None
    """The arena, and the scratch of this CPU's kernels (for the C99 runtime: inputs and outputs instead). "128K+64K":
    two memories; the scratch or the ports are in the first. Tensors are kept whole if they fit. If not, a training step
    computes values again instead of keeping them. If that is not enough, parts of the program are computed 8, 4, 2 or 1
    rows at a time. If that does not fit either, the Error names the layer that needs most. None: no limit."""

    _: KW_ONLY

    slow: int | str = 0
    """A slower memory, used only where `sram` is not enough."""

    strategy: str = "stream"
    """What to do if whole tensors do not fit. "stream": parts of the program are computed row by row, and `slow` takes
    tensors that still do not fit. "stages": the program is computed in stages, as large as fit, and all tensors between
    stages go through `slow`."""

    rows: int = 0
    """Parts of the program that work on one image (convolutions, pools, elementwise ops, concatenations) compute this
    many rows at a time, with only a few rows between their steps instead of whole tensors. The parts are chosen so that
    the arena becomes smallest; the results have the same bits. 0: whole tensors, or as many rows as `sram` needs. It
    cannot be combined with a limit."""

    hold_ports: bool = False
    """Inputs and outputs are in the arena and count there, each as long as the network needs it, and in the dtype in
    which the network first or last computes with it (bytes, for an int8 network). The arrays of a call are only copied
    or cast. They count in addition if `runtime` is "c99" or "cmsis-nn"."""

    stream_input: bool = False
    """For a device without memory for a whole input. The rows of an input enter the arena in order, each once, and a
    program that computes row by row keeps few of them. The C99 runtime calls a hook for each row; here, rows are copied
    from the array of the call."""

    stream_output: bool = False
    """The same for outputs."""

    runtime: str = ""
    """What runs the plan. "host": this CPU's kernels, whose scratch counts. "c99": the C99 runtime, whose kernels use
    no scratch, and whose inputs and outputs count unless they are streamed. "cmsis-nn": the same with the kernels of
    CMSIS-NN (`hexane codegen --backend cmsis-nn`), whose scratch counts if no gap of the arena can hold it. "": "c99"
    with `flash`, else "host"."""

    flash: int | str = 0
    """The limit for the plan together with the code that runs it on a microcontroller. 0: no limit."""

    compress: str = ""
    """How weights are packed. "lz4": weights that become smaller are packed in the plan, and unpacked into the arena
    before the steps that read them, as far as `sram` has room."""

    xip: bool = False
    """Weights are read in place in the plan: all of them, or with `compress` all except those that must be packed to
    fit `flash`."""

    whole_weights: bool = False
    """Weights in few bits that no kernel can read directly are decoded once, when the network is compiled, and not in
    each call. Weights with many zeros are stored with their zeros. A call then takes less time, and the program more
    memory. With a limit of `sram`, and for a runtime other than "host", weights in few bits are always decoded once."""

    variants: int | str = 1 << 30
    """For a model of open shapes: a limit for the programs that it keeps for the shapes of past calls. Their weights do
    not count, since the programs share them."""

    call: int | str = 0
    """For a model of open shapes: the most bytes that one call may take for inputs, outputs and everything in between.
    A call with larger shapes raises InputError before any memory is allocated. 0: no limit."""

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
        """The names of set fields that limit memory or are meant for devices with little memory."""
        names = ("sram", "flash", "compress", "xip", "runtime")
        return [name for name in names if getattr(self, name) not in (None, 0, "", False)]

    @property
    def unlimited(self) -> "Memory":
        """Only the settings of ports and the limits for models of open shapes."""
        return Memory(
            hold_ports=self.hold_ports, stream_input=self.stream_input, stream_output=self.stream_output,
            variants=self.variants, call=self.call,
        )  # fmt: skip

    @property
    def runs_on(self) -> str:
        """Where the program runs: `runtime` if it is given, else "c99" for a device with flash, else "host"."""
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
        """flash as a number; 0 for no limit."""
        return byte_count("[memory] flash", self.flash)

    @property
    def variants_bytes(self) -> int:
        """variants as a number."""
        return byte_count("[memory] variants", self.variants)

    @property
    def call_bytes(self) -> int:
        """call as a number; 0 for no limit."""
        return byte_count("[memory] call", self.call)


def byte_count(where: str, text: int | str, given: int | str | None = None) -> int:
    """4096, "128K" or "1.5M" as a number of bytes. Raises Error, which begins with `where`, for anything else."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)([KMG]?)", str(text), re.ASCII)
    if isinstance(text, bool) or not isinstance(text, (int, str)) or match is None:
        given = text if given is None else given
        raise Error(f"{where}: got {given!r}, need a number of bytes, such as 4096, '128K' or '1.5M'")
    return int(float(match[1]) * _UNITS[match[2]])

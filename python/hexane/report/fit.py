"""Finds whether a model fits into memory, which tensors fill the arena at its peak, and the costs of other ways of
computing it."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from typing import Any

from hexane import _core, sources
from hexane.emit.c99_check import why_refused
from hexane.emit.plan import emit_plan
from hexane.errors import Error
from hexane.graph.decisions import counted
from hexane.graph.printer import size_text
from hexane.memory import Memory
from hexane.options import Options
from hexane.planning.extra_memory import ExtraBytes
from hexane.planning.flash import Flash, flash_of
from hexane.planning.plan import plan
from hexane.planning.search import ROWS, operand_bytes, slow_traffic
from hexane.program import Program
from hexane.program.work import multiply_adds
from hexane.report.latency import CLOCK, Latency, latencies
from hexane.report.legend import legend
from hexane.runtime.compile import compile_whole
from hexane.runtime.model import Model
from hexane.runtime.open_model import shape_options
from hexane.runtime.timeline import Held, as_text, floor, peak, timeline
from hexane.stages.bufferize.allocate import live_bytes
from hexane.stages.stream.column_tile_choice import StripeChoice
from hexane.stages.stream.spill import Spilled, Spills
from hexane.stages.stream.stream import Streams, arena_bytes, stream

MOST_LAYERS = 5
WHOLE, AGAIN = "whole tensors", "whole tensors, some computed again"
STRIPES = "stripes of columns"
PORT_HELP = {
    "input": "--stream-input would help: then a hook brings its rows when they are needed",
    "output": "--stream-output would help: then a hook takes its rows when they are computed",
}
FLASH_HELP = "fewer channels or int8 would help, or `hexane compile --compress lz4` where weights repeat themselves"
MOST_CAUSES = 5
BUDGETS = tuple(1 << n for n in range(14, 27))  # sizes of fast memory for which stages are tried


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """A layer, its kernel, and the bytes of the arena that it reads and writes as whole tensors."""

    layer: str
    kernel: str
    bytes: int


@dataclass(frozen=True, slots=True)
class StepBytes:
    """A step of the streamed program: its layer and kernel, rows computed per run (0: all), live bytes of the arena,
    bytes of weights that it reads, and multiply-accumulates."""

    layer: str
    kernel: str
    rows: int
    live: int
    weights: int
    macs: int


@dataclass(frozen=True, slots=True)
class Cause:
    """A tensor in memory at the peak of the arena: a layer's result, its bytes in the arena, why it is live, and the
    remedy."""

    layer: str
    bytes: int
    why: str
    help: str


@dataclass(frozen=True, slots=True)
class Way:
    """A way of computing a model. total: bytes of arena, other counted memory, and slow memory. read, written: bytes
    per call from and to slow memory. runs: kernel runs per call. repeated: multiply-accumulates that are recomputed in
    stripes of columns."""

    name: str
    total: int
    slow: int = 0
    read: int = 0
    written: int = 0
    runs: int = 0
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class Fit:
    """Memory of a model on one thread. Sizes are in bytes.

    whole, streamed: the arena with whole tensors, and with one row at a time.
    bound: peak of the live bytes in the streamed program; no packing is smaller.
    floor: a bound that holds for every plan.
    scratch: working memory of kernels, in addition to the arena. inputs, outputs, weights: in addition to
        arena and scratch. Streamed ports are in the arena, as the rows in use.
    held: the streamed arena with hold_ports: with the network's own copies of inputs and outputs, without the arrays
        of the caller. Microcontrollers need both.
    layers: the layers that read and write most.
    causes: the contents of the streamed arena at its peak.
    ways: the Pareto-optimal ways by memory, traffic, repeated products and runs.
    striped: the smallest way in stripes of columns; None if stripes need no less than rows.
    each: the steps of the streamed program. timeline: its arena over `steps` steps.
    sram: the size of the memory for the arena and other counted bytes; None if not given.
    flash: the size of the memory for plan and code; None if not given. in_flash: the sizes of plan and code.
    runtime: the runtime of the plan (hx.Memory).
    flash_sets_runtime: the runtime is "c99" only because a size of flash is given.
    refused: why the C99 runtime, if asked for, cannot run the plan by rows; "" if it can.
    planned: the plan that `compile` makes with this memory, or the reason for none; None if no size is given.
    in_sram: as planned, but without a limit of flash.
    latency: estimates for microcontrollers.
    strategy: as in `memory`.
    """

    sram: int | None
    whole: int
    streamed: int
    bound: int
    floor: int
    scratch: int
    inputs: int
    outputs: int
    held: int
    weights: int
    layers: tuple[LayerBytes, ...]
    causes: tuple[Cause, ...]
    ways: tuple[Way, ...]
    timeline: tuple[Held, ...]
    steps: int
    in_flash: Flash
    each: tuple[StepBytes, ...]
    latency: tuple[Latency, ...]
    flash: int | None = None
    stream_input: bool = False
    slow: int = 0
    strategy: str = "stream"
    planned: Way | str | None = None
    in_sram: Way | str | None = None
    striped: Way | None = None
    runtime: str = "host"
    refused: str = ""
    flash_sets_runtime: bool = False

    @property
    def extra_bytes(self) -> int:
        """Bytes in addition to the arena: scratch, and on microcontrollers also inputs and outputs."""
        return self.scratch + (0 if self.runtime == "host" else self.inputs + self.outputs)

    @property
    def fits(self) -> bool | None:
        """True if `compile` finds a plan that fits; None if no size is given.

        False if the C99 runtime cannot run the plan."""
        if self.refused:
            return False
        return None if self.planned is None else isinstance(self.planned, Way)

    @property
    def fits_sram(self) -> bool | None:
        return None if self.in_sram is None else isinstance(self.in_sram, Way)

    @property
    def fits_flash(self) -> bool | None:
        """True if plan and code fit; False if the C99 runtime lacks a kernel; None if no size is given."""
        if self.flash is None:
            return None
        return self.in_flash.total <= self.flash and not self.in_flash.missing

    @property
    def verdict(self) -> str:
        """The result in one line."""
        if self.refused:
            return f"does not run on the C99 runtime: {self.refused.split(', need one of')[0]}"
        if self.flash is None:
            return self._memory_verdict()
        runtime = " (C99 runtime, because of --flash)" if self.flash_sets_runtime else ""
        return f"{self._memory_verdict()}{runtime}; {self._flash_verdict(self.flash)}"

    def _flash_verdict(self, limit: int) -> str:
        if self.in_flash.missing:
            return (
                f"cannot be counted against {_sized(limit)} of flash:"
                f" {self.in_flash.missing.removeprefix('[codegen] ').split(', need')[0]}"
            )
        total = self.in_flash.total
        over = "" if total <= limit else f", {total - limit} too many"
        return (
            f"{'does not fit' if over else 'fits'} {_sized(limit)} of flash: plan and code need {_sized(total)}{over}"
        )

    def _flash_text(self) -> str:
        flash = self.in_flash
        if flash.missing:
            where = flash.missing.removeprefix("[codegen] ").partition(": got")[0]
            other = "" if self.runtime != "host" else "; --runtime c99 shows the flash of a plan for it"
            return f"this plan does not run on the C99 runtime ({where}){other}"
        plan = f"plan {size_text(flash.plan)} (weights {size_text(flash.weights)})"
        return f"{plan}; code at most {size_text(flash.code)} (Cortex-M4, -Os)"

    @property
    def _what(self) -> str:
        """The memory that is counted."""
        return {
            "host": "arena and scratch",
            "c99": "arena, inputs and outputs",
            "cmsis-nn": "arena, inputs, outputs and CMSIS-NN's scratch",
        }[self.runtime]

    def _memory_verdict(self) -> str:
        whole, streamed = self.whole + self.extra_bytes, self.streamed + self.extra_bytes
        if self.sram is None:
            device = "; for a small device, give --runtime c99" if self.runtime == "host" else ""
            return f"{self._what} need {_sized(streamed)} row by row, {_sized(whole)} in whole tensors{device}"
        stripes, way, where = self.striped, self.in_sram, f"{_sized(self.sram)} of sram"
        if isinstance(way, Way):
            slow = f" with {_sized(self.slow)} of slow memory" if way.slow else ""
            if way.name == "stages":
                return f"fits {where}{slow}, in stages: {self._what} need {_way_bytes(way)}"
            if way.name == WHOLE:
                return f"fits {where}{slow} in whole tensors: {self._what} need {_sized(way.total)}"
            if way.name == AGAIN:
                again = f"{way.repeated} multiply-accumulates are done again"
                need = f"{_sized(way.total)}, {_sized(whole)} in whole tensors"
                return f"fits {where}{slow} where {again}: {self._what} need {need}"
            if way.name.endswith(STRIPES):
                need = f"{_sized(way.total)}, {_sized(streamed)} row by row"
                return f"fits {where}{slow} in {_stripes_text(way)}: {self._what} need {need}"
            if slow:
                return f"fits {where}{slow}, row by row: {self._what} need {_sized(way.total)}"
            alike = (one.name for one in self.ways if one.runs == way.runs and one.name.endswith(" rows at a time"))
            rows = next(alike, "row by row")
            return f"fits {where} {rows}: {self._what} need {_sized(way.total)}, {_sized(whole)} in whole tensors"
        if self.strategy == "stages":
            return f"does not fit in stages: {way}"
        if streamed <= self.sram + self.slow:
            return (
                f"does not fit {where} in several memories: {self._what} need {_sized(streamed)} row by row, in pieces"
                " that are too large"
            )
        least = (
            f", {_sized(stripes.total)} in {_stripes_text(stripes)}"
            if stripes is not None and stripes.total < streamed
            else ""
        )
        return (
            f"does not fit {where}: {self._what} need {_sized(streamed)} row by row, {streamed - self.sram} too many;"
            f" {_sized(whole)} in whole tensors{least}"
        )

    def to_json(self) -> dict[str, Any]:
        """Returns all fields, as JSON values."""
        flash = {**asdict(self.in_flash), "total": self.in_flash.total}
        return {
            "verdict": self.verdict,
            "fits": self.fits,
            **asdict(self),
            "extra_bytes": self.extra_bytes,
            "in_flash": flash,
        }

    def timeline_text(self) -> str:
        """Returns the streamed arena with a line per tensor: bytes, offset, rows kept of all rows, steps."""
        return as_text(self.timeline, self.steps) + f"\n{legend('columns', _TIMELINE)}\n"

    def __str__(self) -> str:
        lines = [self.verdict]
        for name in ("whole", "streamed", "bound", "floor", "scratch", "inputs", "outputs", "held", "weights"):
            means = _NO_SCRATCH if name == "scratch" and self.runtime == "c99" else _MEANS[name]
            lines.append(f"  {name:9} {size_text(getattr(self, name)):>10}  {getattr(self, name):<10} {means}")
        lines.append(f"  flash      {self._flash_text()}")
        cores: dict[str, list[str]] = {}  # the names of the cores with one estimate
        for core in self.latency:
            spans = f"{_span(core.cycles)} million cycles, {_span(core.milliseconds)} ms at {CLOCK} MHz"
            cores.setdefault(f"{spans}; {core.basis}", []).append(core.core)
        lines += [f"  {', '.join(names)}  {estimate}" for estimate, names in cores.items()]
        lines += [f"  {_causes_title(self)}:"]
        for one in self.causes:
            lines += [f"    {size_text(one.bytes):>10}  {one.layer}: {one.why}", f"                {one.help}"]
        lines += [
            "  ways to run the model, least memory first; a way that another way beats in every figure is left out:"
        ]
        lines += [f"    {size_text(one.total):>10}  {_way_text(one)}" for one in self.ways]
        lines += ["  layers with the largest operands in the arena:"]
        lines += [f"    {size_text(one.bytes):>10}  {one.layer} ({one.kernel})" for one in self.layers]
        return "\n".join(lines) + "\n"


def _span(numbers: tuple[float, float]) -> str:
    least, most = (f"{number:,.0f}" if number >= 100 else f"{number:.3g}" for number in numbers)
    return least if least == most else f"{least} to {most}"


def _causes_title(result: Fit) -> str:
    return (
        "layers with the largest weights, and what would make them smaller"
        if result.fits_flash is False and result.fits_sram is not False
        else "largest tensors in memory when the streamed arena is fullest, and what would make each smaller"
    )


_MEANS = {
    "whole": "arena (the memory of tensors between steps) with whole tensors",
    "streamed": "arena if images are computed one row at a time",
    "bound": "most bytes in use at once when streamed: no placement of these steps, one row at a time, takes less",
    "floor": "bytes of the largest step for one row or pixel of its result: no plan of these steps takes less",
    "scratch": "working memory of kernels, on one thread of this CPU; kernels of the C99 runtime need none",
    "inputs": "the caller's arrays, in addition to the arena; streamed inputs have none",
    "outputs": "the caller's arrays, in addition to the arena; streamed outputs have none",
    "held": "streamed arena with copies of inputs and outputs (compile --hold-ports); the caller's arrays come on top",
    "weights": "in addition to all others; on a C99 device in flash",
}

_TIMELINE = {
    "rows": "kept at once / of all; one number: all are kept; empty: no rows",
    "steps": "the first and the last step while the tensor is in memory; the bar shows them",
}
_NO_SCRATCH = "working memory of kernels: the C99 runtime's kernels need none"


def _sized(count: int) -> str:
    """A number of bytes, exact and short: 5928 bytes (5.79 KiB)."""
    return f"{count} bytes ({size_text(count)})" if count >= 1000 else counted(count, "byte")


def _stripes_text(way: Way) -> str:
    return f"{way.name} ({way.repeated} multiply-accumulates are done more than once)"


def _way_text(way: Way) -> str:
    slow = f": {_slow_text(way)}" if way.slow else ""
    repeated = f", {way.repeated} multiply-accumulates done more than once" if way.repeated else ""
    return f"{way.name}, {counted(way.runs, 'kernel call')}{repeated}{slow}"


def _way_bytes(way: Way) -> str:
    return f"{_sized(way.total - way.slow)} and {_slow_text(way)}"


def _slow_text(way: Way) -> str:
    moved = f"{size_text(way.read)} read there and {size_text(way.written)} written"
    return f"{_sized(way.slow)} of slow memory, {moved}"


def fit(
    model: Any,
    *,
    memory: Memory | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    input_values: Mapping[str, Any] | None = None,
    **options: Any,
) -> Fit:
    """Computes the memory of a model on one thread of this CPU, or with memory=hx.Memory(runtime="c99") on a
    microcontroller, and whether it fits into `memory`. options: of `compile`, except threads and target.

    Raises Error as `compile` does, and for a model with free dims.
    """
    memory = memory or Memory()
    # A microcontroller has no room to decode a weight in each call.
    whole = replace(memory.unlimited, whole_weights=True, runtime="" if memory.runs_on == "host" else memory.runs_on)
    given = Options(target="host", threads=1, memory=whole).given(options)
    compiled = compile_whole(sources.open_network(model, where="fit"), given, input_shapes, input_values)
    if not isinstance(compiled, Model):
        fixes = " ".join(
            [*shape_options(compiled.inputs), *(f"--value {name}=V" for name in sorted(compiled.value_inputs))]
        )
        raise Error(f"[fit] got a model of open shapes, need fixed ones: {fixes}, or input_shapes and input_values")
    program = compiled.program
    assert program is not None  # the host's
    runtime, order, extra_bytes = program.runtime, given.schedule, ExtraBytes(threads=1)
    in_sram = planned = None
    if memory.sram is not None:
        in_sram = _planned(
            program, replace(memory, flash=0, compress="", xip=False, runtime=runtime), order, extra_bytes
        )
    if memory.sram is not None or memory.flash_bytes:
        has_more = memory.flash_bytes or memory.compress or memory.xip
        planned = _planned(program, memory, order, extra_bytes) if has_more or in_sram is None else in_sram
    streams = Streams(program, order)
    streamed = {rows: streams.stream(rows) for rows in ROWS}
    extras = {rows: extra_bytes(one) for rows, one in streamed.items()}
    best, held = streamed[1], timeline(streamed[1])
    in_arena = arena_bytes(stream(program, 1, order=order, holds_ports=True))
    striped = list(_striped(program, order, extra_bytes))
    inputs, outputs = (
        sum(port.view.type.bytes for port in ports if not port.streamed) for ports in (program.inputs, program.outputs)
    )
    by_rows = {_runs(one) for one in streamed.values()}
    counted = planned
    if not isinstance(counted, Program):  # no plan fits, or no size is given: count the plan that `compile` would try
        counted = _least_flash(program, replace(memory, runtime=runtime), order, extra_bytes)
    in_flash = flash_of(counted or best)
    not_on_c99 = _refused(best, in_flash)
    if runtime == "host" and not_on_c99:
        in_flash = replace(in_flash, code=0, missing=not_on_c99)
    result = Fit(
        None if memory.sram is None else memory.bytes,
        compiled.memory["arena"],
        arena_bytes(best),
        max((e.bound for e in best.extents.values() if e.space.kind == "arena"), default=0),
        min(floor(program), arena_bytes(best)),
        extras[1] - (0 if runtime == "host" else inputs + outputs),
        inputs,
        outputs,
        in_arena,
        compiled.memory.get("weights", 0),
        _largest(program),
        _causes(best, held, runtime),
        _undominated([_whole(program, extra_bytes), *(_by_rows(streamed[n], extras[n], n) for n in ROWS), *striped, *_staged(program, order, extra_bytes)]),  # noqa: E501
        held,
        len(best.steps),
        in_flash,
        _each(best),
        latencies(best),
        flash=memory.flash_bytes or None,
        stream_input=memory.stream_input,
        slow=memory.slow_bytes,
        strategy=memory.strategy,
        planned=_way_of(planned, memory, extra_bytes, by_rows, striped),
        in_sram=_way_of(in_sram, memory, extra_bytes, by_rows, striped),
        striped=min(striped, key=lambda way: way.total, default=None),
        runtime=runtime,
        refused="" if runtime == "host" else not_on_c99,
        flash_sets_runtime=runtime == "c99" and not memory.runtime,
    )  # fmt: skip
    if result.fits_flash is False and result.fits_sram is not False:
        result = replace(result, causes=_flash_causes(result))
    return result


def _refused(program: Program, in_flash: Flash) -> str:
    if in_flash.missing:
        return in_flash.missing.removeprefix("[codegen] ")
    return why_refused(bytes(_core.plan_write(emit_plan(program))))


def _each(program: Program) -> tuple[StepBytes, ...]:
    live = live_bytes(program)
    return tuple(
        StepBytes(
            step.node.where, step.kernel, 0 if step.cut is None else step.cut[2] - step.cut[1], live[i],
            _weight_bytes(program, i), multiply_adds(step.node),
        )
        for i, step in enumerate(program.steps)
    )  # fmt: skip


def _weight_bytes(program: Program, step: int) -> int:
    buffers = {view.buffer for view in program.steps[step].inputs if view is not None}
    return sum(program.buffers[i].bytes for i in buffers if program.buffers[i].kind == "weights")


def _flash_causes(result: Fit) -> tuple[Cause, ...]:
    largest = sorted(result.each, key=lambda one: -one.weights)[:MOST_CAUSES]
    return tuple(
        Cause(one.layer, one.weights, f"weights of {one.kernel}", FLASH_HELP) for one in largest if one.weights
    )


def _planned(program: Program, memory: Memory, order: str, extra_bytes: ExtraBytes) -> Program | str:
    """Returns the plan that `compile` makes, or the reason for none."""
    try:
        return plan(program.graph, program.target, memory, order=order, extra_bytes=extra_bytes)
    except Error as error:
        return str(error).removeprefix("[compile] memory: ").removeprefix("[compile] ")


def _least_flash(program: Program, memory: Memory, order: str, extra_bytes: ExtraBytes) -> Program | None:
    """Returns the plan with the least flash if flash had no limit; None if sram has no room for any."""
    kinds = sorted({"", memory.compress})
    tried = [_planned(program, replace(memory, flash=0, xip=False, compress=one), order, extra_bytes) for one in kinds]
    plans = [one for one in tried if isinstance(one, Program)]
    return min(plans, key=lambda one: flash_of(one).total, default=None)


def _way_of(
    outcome: Program | str | None, memory: Memory, extra_bytes: ExtraBytes, by_rows: Set[int], striped: Sequence[Way]
) -> Way | str | None:
    """Returns the cost of a plan. by_rows: the kernel runs of the ways by rows; striped: the ways in stripes."""
    if not isinstance(outcome, Program):
        return outcome
    moved, pools = slow_traffic(outcome, memory), len(memory.pools) or 1
    slow = 0 if moved is None else outcome.extents[f"arena.{pools}"].bytes
    name = "rows"
    if moved is not None and memory.strategy == "stages":
        name = "stages"
    elif not outcome.loops:
        name = AGAIN if outcome.repeated else WHOLE
    elif outcome.repeated or _runs(outcome) not in by_rows:
        alike = (way.name for way in striped if (way.runs, way.repeated) == (_runs(outcome), outcome.repeated))
        name = next(alike, STRIPES if outcome.repeated else name)
    count = extra_bytes(outcome, pools + (moved is not None))
    total = arena_bytes(outcome) + count
    return Way(name, total, slow, *(moved or (0, 0)), runs=_runs(outcome), repeated=outcome.repeated)


def _largest(program: Program) -> tuple[LayerBytes, ...]:
    layers = [LayerBytes(s.node.where, s.kernel, operand_bytes(program, i)) for i, s in enumerate(program.steps)]
    return tuple(sorted(layers, key=lambda one: -one.bytes)[:MOST_LAYERS])


def _causes(program: Program, held: tuple[Held, ...], runtime: str) -> tuple[Cause, ...]:
    at = peak(program)
    causes = [
        Cause(one.layer, one.bytes, f"{one.type}, {one.why}", _help(one, runtime))
        for one in held
        if one.first <= at <= one.last
    ]
    if runtime != "host":
        for what, ports in (("input", program.inputs), ("output", program.outputs)):
            causes += [
                Cause(f"{what} {port.name}", port.view.type.bytes, f"{port.view.type}, all of it", PORT_HELP[what])
                for port in ports
                if not port.streamed
            ]
    return tuple(sorted(causes, key=lambda one: -one.bytes)[:MOST_CAUSES])


_QUANTIZED = "`hexane quantize` may help: int8 takes a quarter of fp32"
NARROWER = {"host": f"{_QUANTIZED}, --dtype fp16 half", "c99": _QUANTIZED, "cmsis-nn": _QUANTIZED}


def _help(one: Held, runtime: str) -> str:
    if one.type.startswith(("fp32", "fp64")):
        return NARROWER[runtime]
    if one.kept:
        return "narrower rows, fewer channels or a window of fewer rows would help"
    return "smaller images or fewer channels would help, or a next op that can run row by row"


def _whole(program: Program, extra_bytes: ExtraBytes) -> Way:
    return Way(WHOLE, arena_bytes(program) + extra_bytes(program), runs=len(program.steps))


def _by_rows(program: Program, count: int, rows: int) -> Way:
    return Way(f"{rows} row{'s' * (rows > 1)} at a time", arena_bytes(program) + count, runs=_runs(program))


def _runs(program: Program) -> int:
    """Returns the number of kernel runs in a call, including runs without remaining rows."""
    times = [1] * len(program.steps)
    for loop in program.loops:
        for i in range(loop.first, loop.first + len(loop.moves)):
            times[i] *= loop.trips
    return sum(times)


def _striped(program: Program, order: str, extra_bytes: ExtraBytes) -> Iterator[Way]:
    """Yields the ways in stripes of columns, in decreasing memory."""
    choice = StripeChoice(program, order)
    for chosen in choice.ways():
        streamed = choice.streamed(chosen)
        name = f"{max(part.stripes for part in chosen.parts)} {STRIPES}"
        yield Way(name, arena_bytes(streamed) + extra_bytes(streamed), runs=_runs(streamed), repeated=chosen.repeated)


def _staged(program: Program, order: str, extra_bytes: ExtraBytes) -> Iterator[Way]:
    """Yields the ways in stages, for each of BUDGETS that is smaller than the arena with whole tensors."""
    spills = Spills(program, order)
    for budget in (n for n in BUDGETS if n < arena_bytes(program)):
        spilled = spills.at(budget)
        if isinstance(spilled, Spilled):
            total = spilled.fast + spilled.slow + extra_bytes(spilled.program)
            yield Way(
                f"stages in {size_text(budget)}", total, spilled.slow, *spilled.moved, runs=_runs(spilled.program)
            )


def _undominated(ways: list[Way]) -> tuple[Way, ...]:
    """Returns the Pareto-optimal ways, smallest first."""
    costs = [(way.total, way.read + way.written, way.repeated, way.runs) for way in ways]
    kept = [
        way
        for i, (way, cost) in enumerate(zip(ways, costs, strict=True))
        if not any(
            all(a <= b for a, b in zip(other, cost, strict=True)) and (other != cost or j < i)
            for j, other in enumerate(costs)
            if j != i
        )
    ]
    return tuple(sorted(kept, key=lambda way: way.total))

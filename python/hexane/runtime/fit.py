"""Whether a model fits into memory, what lies there when most does, and what other ways of computing it would take."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.errors import Error
from hexane.printer import size_text
from hexane.program import Program
from hexane.runtime.compile import compile
from hexane.runtime.memory import ROWS, Memory, operand_bytes
from hexane.runtime.model import Model
from hexane.runtime.timeline import Held, as_text, floor, peak, timeline
from hexane.stages.allocate import bytes_with_ports
from hexane.stages.pools import into_pools
from hexane.stages.spill import Stages
from hexane.stages.stream import Streams, arena_bytes

MOST_LAYERS = 5
MOST_CAUSES = 5
BUDGETS = tuple(1 << n for n in range(14, 27))  # of fast memory, at which the stages are tried


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """A layer, its kernel, and the bytes of the arena that it reads and writes as whole tensors."""

    layer: str
    kernel: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Cause:
    """What takes memory when most of the arena is live: bytes of a layer's result, why they lie there, and what would help."""

    layer: str
    bytes: int
    why: str
    help: str


@dataclass(frozen=True, slots=True)
class Way:
    """A way of computing a model. total: bytes of arena, scratch and slow memory; read, written: bytes that a call moves from and
    to slow memory; runs: of kernels in a call. Nothing is computed twice in any. estimate: no program was made for it."""

    name: str
    total: int
    slow: int = 0
    read: int = 0
    written: int = 0
    runs: int = 0
    estimate: bool = False


@dataclass(frozen=True, slots=True)
class Fit:
    """Bytes that a model takes on one thread. whole, streamed: of arena, in whole tensors and at one row at a time. bound: that are live at
    once in the streamed program, below which no placement gets; floor: below which no plan gets that computes each row once. scratch:
    of kernels, beside the arena. inputs, outputs, weights: beside both. held: of one memory for arena, inputs and outputs, streamed.
    layers: those that read and write most. causes: what lies in the streamed arena when most does. ways: those that nothing beats in
    memory, traffic and runs. timeline: of the streamed program's arena, which has so many steps. sram: what there is for arena and
    scratch, None where nobody said."""

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
    divided: bool = True  # whether several memories of sram hold the streamed arena

    @property
    def fits(self) -> bool | None:
        """Whether some way of computing it fits; None where nobody said into what."""
        return None if self.sram is None else self.streamed + self.scratch <= self.sram and self.divided

    @property
    def verdict(self) -> str:
        """In a line."""
        whole, streamed = self.whole + self.scratch, self.streamed + self.scratch
        if self.sram is None:
            return f"needs {streamed} bytes row by row, {whole} in whole tensors"
        if whole <= self.sram:
            return f"fits {self.sram} bytes in whole tensors, which need {whole}"
        if streamed <= self.sram and not self.divided:
            return f"does not fit {self.sram} bytes in several memories: needs {streamed} row by row, in pieces that are too large"
        if streamed <= self.sram:
            return f"fits {self.sram} bytes row by row; whole tensors need {whole}"
        return f"does not fit {self.sram} bytes: needs {streamed} row by row, {streamed - self.sram} more; {whole} in whole tensors"

    def to_json(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {"verdict": self.verdict, "fits": self.fits, **asdict(self)}

    def timeline_text(self) -> str:
        """The streamed arena, a line for each tensor: bytes, offset, rows kept of all, steps."""
        return as_text(self.timeline, self.steps)

    def __str__(self) -> str:
        lines = [self.verdict]
        for name in ("whole", "streamed", "bound", "floor", "scratch", "inputs", "outputs", "held", "weights"):
            lines.append(f"  {name:9} {size_text(getattr(self, name)):>10}  {getattr(self, name):<10} {_MEANS[name]}")
        lines += ["  in the streamed arena when most is live:"]
        for one in self.causes:
            lines += [f"    {size_text(one.bytes):>10}  {one.layer}: {one.why}", f"                {one.help}"]
        lines += ["  ways that nothing beats in memory, traffic and runs of kernels:"]
        lines += [f"    {size_text(one.total):>10}  {_way_text(one)}" for one in self.ways]
        lines += ["  layers that read and write most:"]
        lines += [f"    {size_text(one.bytes):>10}  {one.layer} ({one.kernel})" for one in self.layers]
        return "\n".join(lines) + "\n"


_MEANS = {
    "whole": "arena, whole tensors",
    "streamed": "arena, one row at a time",
    "bound": "live at once there: no placement takes less",
    "floor": "of one step's rows: no plan takes less that computes each row once",
    "scratch": "of kernels on this CPU, one thread",
    "inputs": "",
    "outputs": "",
    "held": "one memory for inputs, outputs and the streamed arena",
    "weights": "read only",
}


def _way_text(way: Way) -> str:
    if not way.estimate:
        return f"{way.name}, {way.runs} runs"
    return f"{way.name} (estimate): {way.slow} slow, reads {way.read}, writes {way.written}"


def fit(model: Any, *, memory: Memory | None = None, **options: Any) -> Fit:
    """What a model takes on this CPU and one thread, and whether it fits; options: those of `compile`, beside threads and target.

    Raises Error as `compile` does, and for a model of open shapes.
    """
    made = compile(model, target="host", threads=1, **options)
    if not isinstance(made, Model) or made.program is None:
        raise Error("[fit] got a model of open shapes, need fixed ones: input_shapes says which")
    program = made.program
    streams = Streams(program, str(options.get("schedule", "")))
    streamed = {rows: streams.stream(rows) for rows in ROWS}
    scratch = {rows: _core.Program(emit_plan(one), 1).scratch_bytes for rows, one in streamed.items()}
    best, held = streamed[1], timeline(streamed[1])
    return Fit(
        None if memory is None else memory.bytes,
        made.memory["arena"],
        arena_bytes(best),
        max((e.bound for e in best.extents.values() if e.space.kind == "arena"), default=0),
        min(floor(program), arena_bytes(best)),
        scratch[1],
        sum(port.view.type.bytes for port in program.inputs),
        sum(port.view.type.bytes for port in program.outputs),
        bytes_with_ports(best),
        made.memory.get("weights", 0),
        _largest(program),
        _causes(best, held),
        _undominated([_whole(made), *(_by_rows(streamed[n], scratch[n], n) for n in ROWS), *_staged(program, scratch[1])]),
        held,
        len(best.steps),
        memory is None or _is_divided(best, memory, scratch[1]),
    )  # fmt: skip


def _is_divided(program: Program, memory: Memory, scratch: int) -> bool:
    first, *rest = memory.pools
    return not rest or (scratch <= first and into_pools(program, (first - scratch, *rest)) is not None)


def _largest(program: Program) -> tuple[LayerBytes, ...]:
    layers = [LayerBytes(s.node.where, s.kernel, operand_bytes(program, i)) for i, s in enumerate(program.steps)]
    return tuple(sorted(layers, key=lambda one: -one.bytes)[:MOST_LAYERS])


def _causes(program: Program, held: tuple[Held, ...]) -> tuple[Cause, ...]:
    at = peak(program)
    live = sorted((one for one in held if one.first <= at <= one.last), key=lambda one: -one.bytes)
    return tuple(Cause(one.layer, one.bytes, f"{one.type}, {one.why}", _help(one)) for one in live[:MOST_CAUSES])


def _help(one: Held) -> str:
    if one.type.startswith(("fp32", "fp64")):
        return "a narrower dtype would help: int8 takes a quarter of fp32"
    if one.kept:
        return "narrower rows, fewer channels or a lower window would help"
    return "smaller images or fewer channels would help, or a reader that goes by rows"


def _whole(made: Model) -> Way:
    return Way("whole tensors", made.memory["arena"] + made.memory["scratch"], runs=len(made.steps))


def _by_rows(program: Program, scratch: int, rows: int) -> Way:
    return Way(f"{rows} row{'s' * (rows > 1)} at a time", arena_bytes(program) + scratch, runs=_runs(program))


def _runs(program: Program) -> int:
    """Of kernels in a call, those that find no row left included."""
    times = [1] * len(program.steps)
    for loop in program.loops:
        for i in range(loop.first, loop.first + len(loop.moves)):
            times[i] *= loop.trips
    return sum(times)


def _staged(program: Program, scratch: int) -> Iterator[Way]:
    """The strategy of stages; its slow memory has inputs and outputs, which the other ways leave to the caller."""
    stages = Stages(program)
    ports = sum(port.view.type.bytes for port in (*program.inputs, *program.outputs))
    for budget in BUDGETS:
        found = stages.at(budget)
        if found.needs is None:
            yield Way(
                f"stages in {size_text(budget)}", found.total + scratch - ports, found.slow - ports, found.read, found.written,
                len(program.steps), estimate=True,
            )  # fmt: skip


def _undominated(ways: list[Way]) -> tuple[Way, ...]:
    """Those that no other is as good as in all and better in one, smallest first. A program beats an estimate."""
    costs = [(way.total, way.read + way.written, way.runs, way.estimate) for way in ways]
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

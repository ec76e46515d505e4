"""The estimate of a program: microseconds with an interval, layer by layer."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import fsum
from typing import Any

from hexane.cost.demand import Demand, LayerDemand, demand
from hexane.cost.formula import (
    BOUNDS,
    SAID,
    call_us,
    compute_us,
    engine_us,
    in_network,
    layer_us,
    transfer_us,
    weights_us,
)
from hexane.cost.parameters import Calibration, RateFacts, Rates, calibration, host_rates, power_mw, residuals
from hexane.graph import Value
from hexane.program import Program
from hexane.targets import Chip

BATCH = 16  # inputs of one call in `Estimate.batched_us`


@dataclass(frozen=True, slots=True)
class LayerCost:
    """The cost of a layer. us: its time within the program. In a network, the times alone of all layers are multiplied
    by one factor, which follows from `Estimate.further`. bound: what limits it: "compute", "weights" or "activations";
    "" for a layer that costs nothing. utilisation: its time at the compute rate over its time alone. traffic: bytes of
    activations from and to main memory; weights: bytes of weights."""

    index: int
    name: str
    kind: str
    us: float
    bound: str
    utilisation: float
    operations: int
    weights: int
    traffic: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes in main memory. weights: as the engine streams them. surfaces: the inputs and outputs of all submissions.
    spilled: tensors between layers that do not stay on chip. on_chip: the most bytes that are on chip at once."""

    weights: int
    surfaces: int
    spilled: int
    on_chip: int


@dataclass(frozen=True)
class Estimate:
    """An estimate of one call. latency_us: the time of one call, from and to the caller's arrays: floor_us + copies_us
    + engine_us + host_us. engine_us: the sum of the layers that compute, or of those that move data, whichever is
    larger. p10_us, p90_us: an 80 % interval for measured latencies of programs of this kind. measured_on: the product
    that the rates were measured on; extrapolated: true if it is not the product asked for; source, status: where the
    rates come from. batched_us: the time for each input of a call with BATCH inputs; None if the host computes as well.
    border_us: the part of copies_us for copies between segments. energy_uj: the engine's energy: latency_us times the
    median published power for programs of this kind on this product; energy_span_uj: p10_us times the least power and
    p90_us times the most. Both energies are None if fewer than two programs are published, if the rates are
    extrapolated, or if the host computes parts. further: in a network, the longest layer adds its time alone to
    engine_us, and each other layer this fraction of its time alone, by published networks on this product; 1 if none is
    published, and for programs of other kinds. open_loops: loops whose number of steps depends on data; the estimate
    leaves their time out."""

    target: str
    latency_us: float
    p10_us: float
    p90_us: float
    kind: str
    measured_on: str
    extrapolated: bool
    source: str
    status: str
    submissions: int
    floor_us: float
    copies_us: float
    engine_us: float
    host_us: float
    batched_us: float | None
    border_us: float
    layers: tuple[LayerCost, ...] = field(repr=False)
    memory: Memory
    energy_uj: float | None = None
    energy_span_uj: tuple[float, float] | None = None
    further: float = 1.0
    open_loops: int = 0

    @property
    def leaving_us(self) -> float:
        """The cost of leaving the engine: the additional submissions, the copies between segments, and the host's
        work."""
        return self.floor_us * (1 - 1 / max(self.submissions, 1)) + self.border_us + self.host_us

    @property
    def dominant(self) -> str:
        """What takes the most time: "dispatch", "copies", "host", or the bound of most of the layers' time."""
        parts = Counter({"dispatch": self.floor_us, "copies": self.copies_us, "host": self.host_us})
        for layer in self.layers:
            parts[layer.bound] += layer.us  # type: ignore[assignment]
        return max(parts, key=lambda name: parts[name])

    @property
    def mostly(self) -> str:
        """`dominant`, as reports say it."""
        return SAID.get(self.dominant, self.dominant)

    def record(self) -> dict[str, Any]:
        """The estimate as a JSON object."""
        return {**asdict(self), "leaving_us": self.leaving_us, "dominant": self.dominant}


def estimate_program(program: Program, chip: Chip, own: RateFacts | None = None) -> Estimate:
    """The cost of a call of a chip's program. own: rates by product, used instead of `shared/cost.toml`."""
    work, known = demand(program), calibration(chip, own)
    known = known if work.kind == "network" else replace(known, further=1.0)
    times = layer_times(work.layers, known)
    layers = tuple(
        _layer(i, program.layers[i].name, layer, us, known.rates)
        for i, (layer, us) in enumerate(zip(work.layers, times, strict=True))
    )
    return _total(work, known, layers, _memory(program), chip)


def _total(work: Demand, known: Calibration, layers: tuple[LayerCost, ...], memory: Memory, chip: Chip) -> Estimate:
    rates, host = known.rates, host_rates()
    floor = work.submissions * rates.floor_us
    copies = _copies_us(work.read, work.written, rates)
    on_host = max(compute_us(work.host_operations, host.gops), transfer_us(work.host_bytes, host.gbps))
    of_engine = _engine_us([(layer.kind, layer.us) for layer in layers])
    latency = floor + copies + on_host + of_engine
    plain = work.kind == "network" and known.further == 1
    low, high = residuals("plain_network" if plain else work.kind, known.extrapolated)
    power = None if known.extrapolated or on_host else power_mw(known.measured_on, work.kind)
    least, middle, most = (0.0, 0.0, 0.0) if power is None else power.value
    return Estimate(
        chip.label,
        latency,
        latency * low,
        latency * high,
        work.kind,
        known.measured_on,
        known.extrapolated,
        known.source,
        known.status,
        work.submissions,
        floor,
        copies,
        of_engine,
        on_host,
        None if on_host else floor / BATCH + copies + _batched_engine_us(work, known) / BATCH,
        _copies_us(work.border_read, work.border_written, rates),
        layers,
        memory,
        None if power is None else latency * middle / 1000,
        None if power is None else (latency * low * least / 1000, latency * high * most / 1000),
        known.further,
        work.open_loops,
    )


def predicted_us(work: Demand, rates: Rates) -> float:
    """The latency of a demand at these rates, without the host's part. Each layer counts its time when run alone."""
    layers = [(layer.kind, float(layer_us(*layer_parts(layer, rates).values()))) for layer in work.layers]
    return work.submissions * rates.floor_us + _copies_us(work.read, work.written, rates) + _engine_us(layers)


def _copies_us(read: int, written: int, rates: Rates) -> float:
    return float(call_us(0, read, written, rates.floor_us, rates.read_gbps, rates.write_gbps))


def _engine_us(layers: Sequence[tuple[str, float]]) -> float:
    """The engine's time for layers, given as their kinds and times."""
    moving = fsum(us for kind, us in layers if kind == "move")
    return float(engine_us(fsum(us for kind, us in layers if kind != "move"), moving))


def _batched_engine_us(work: Demand, known: Calibration) -> float:
    layers = [layer.batched(BATCH) for layer in work.layers]
    times = layer_times(layers, known)
    return _engine_us([(layer.kind, us) for layer, us in zip(layers, times, strict=True)])


def layer_times(layers: Sequence[LayerDemand], known: Calibration) -> list[float]:
    """The microseconds of each layer in a program."""
    alone = [float(layer_us(*layer_parts(layer, known.rates).values())) for layer in layers]
    computing = [us for layer, us in zip(layers, alone, strict=True) if layer.kind != "move"]
    if known.further == 1 or not any(computing):
        return alone
    part = in_network(fsum(computing), max(computing), known.further)
    return [us * part for us in alone]


def _layer(index: int, name: str, layer: LayerDemand, us: float, rates: Rates) -> LayerCost:
    parts = layer_parts(layer, rates)
    bound = max(parts, key=lambda part: parts[part]) if us else ""
    return LayerCost(
        index,
        name,
        layer.kind,
        us,
        bound,
        parts["compute"] / parts[bound] if us else 0.0,
        layer.operations,
        layer.weights,
        layer.traffic,
    )


def layer_parts(layer: LayerDemand, rates: Rates) -> Mapping[str, float]:
    """The microseconds of each of `BOUNDS`. The bounds overlap, so their times do not add up."""
    compute = 0.0 if layer.kind == "move" else compute_us(layer.operations, rates.gops(layer.kind))
    weights = weights_us(layer.weights, layer.data, rates.tile_bytes, rates.stream_gbps)
    activations = transfer_us(layer.traffic, rates.traffic_gbps)
    return dict(zip(BOUNDS, (float(compute), float(weights), float(activations)), strict=True))


def _memory(program: Program) -> Memory:
    engine = [s for s in program.segments if s.device == "ane"]
    surfaces = sum(port.type.bytes for s in engine for port in (*s.inputs, *s.outputs))
    spilled = sum(
        t.main_bytes
        for t in program.tensors
        if t.producer is not None and not t.kept and any(s.spilled for s in t.stays)
    )
    return Memory(
        sum(layer.weights.bytes for layer in program.layers if layer.weights is not None) + _operands(program),
        surfaces,
        spilled,
        max((row.bytes for row in program.occupancy()), default=0),
    )


def _operands(program: Program) -> int:
    """Bytes of products' constant operands that do not fit into kernel memory. They are tensors of the program, but the
    cost model counts them as weights."""
    by_tensor: dict[int, int] = {}
    for layer in program.layers:
        if layer.kind != "MatrixMult" or layer.weights is not None:
            continue
        read = [program.tensors[t] for t in layer.reads]
        for step in program.steps[slice(*layer.steps)]:
            if any(v is not None and _is_constant(v) for v in step.node.inputs):
                by_tensor |= {t.index: t.main_bytes for t in read[1:] if t.producer is None}
    return sum(by_tensor.values())


def _is_constant(value: Value) -> bool:
    node = value.node
    while node.op in ("reshape", "transpose", "cast") and node.inputs[0] is not None:
        node = node.inputs[0].node
    return node.op == "const" and value.type.rank > 1

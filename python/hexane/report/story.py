"""The compiler's decisions about one layer, or about one op of the user's model, by phase, with reasons."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar

from hexane.errors import Error
from hexane.graph import Graph, Node
from hexane.graph.decisions import Decision, counted
from hexane.ops import LEAVES
from hexane.passes.engine.lower_segment import PHASES
from hexane.passes.retarget import among_others, becomes
from hexane.program import Program
from hexane.program.layers import Layer, slot_text
from hexane.program.partitions import Allocation, Stay, Tensor
from hexane.report.report import DEVICES
from hexane.stages.engine.rules import IN_SENTENCES
from hexane.targets import Chip, Verdict

ABOUT_A_LAYER = {"schedule": "order", "partition": "partition", "co_issue": "co-issue", "pack": "weights"}
OTHERS = {"retarget": "retarget", "segment": "segment", "numerics": "this CPU", "place": "this CPU"}
ARITHMETICS = {"engine": "computed in the engine's arithmetic", "ieee": "computed in IEEE arithmetic"}
BEFORE = ("retarget", "simplify", "segment", "lowering", "fusion", "legalisation", "this CPU")
NEAREST = 5
Found = TypeVar("Found")
MEANING: dict[Allocation, str] = {
    "resident": "loaded once and read by several layers of one partition",
    "streamed": "in main memory: it crosses partitions, is a port, or is read once",
    "chained": "written and read by turns, tile by tile",
    "dependent": "made on chip and read on chip, in one partition",
    "in place": "rewrites a resident tensor",
    "in place, dependent": "rewrites a tensor that was made on chip",
    "ring": "in a ring buffer",
    "ring, dependent": "in a ring buffer, made on chip",
    "in place, main memory": (
        "rewrites a tensor in main memory, such as a state; writes to a state do not wrap around, so it is no ring"
    ),
}
TAKEN_IN = (
    "a pass before the lowering made the op part of another op (attention, norms, GELU), folded it into a constant or"
    " removed it; such passes record no decisions"
)
_TYPES = "guide ch22, table 22.2"


@dataclass(frozen=True, slots=True)
class Line:
    """A decision of the compiler, or a fact from its records, with its phase."""

    phase: str
    node: str
    verdict: str
    reason: str
    source: str

    def __str__(self) -> str:
        return f"{self.node}: {self.verdict}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True)
class Story:
    """The decisions about a subject. title: its name. sources: its places in the user's model. layers: the numbers of
    the layers computed from these places."""

    title: str
    sources: tuple[str, ...]
    layers: tuple[int, ...]
    lines: tuple[Line, ...]

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [self.title]
        phase = ""
        for line in self.lines:
            source = f" [{line.source}]" if line.source else ""
            rows.append(f"  {'' if line.phase == phase else line.phase:<13} {line}{source}")
            phase = line.phase
        return "\n".join(rows)


@cache
def phase_of(stage: str) -> str:
    """Returns the phase to which a stage of the decision log belongs."""
    if stage in ABOUT_A_LAYER or stage in OTHERS:
        return ABOUT_A_LAYER.get(stage) or OTHERS[stage]
    names = [phase.name for phase in PHASES]
    if stage not in names:
        return "simplify"
    if stage == names[0]:
        return "lowering"
    return "fusion" if names.index(stage) <= names.index("record_barriers") else "legalisation"


class Stories:
    """Finds the program's facts and decisions about a place in the model. A decision belongs to a place with which it
    shares a source."""

    def __init__(self, graph: Graph, program: Program, chip: Chip) -> None:
        self.program, self.chip = program, chip
        self._in_network = among_others(graph, chip)
        self.ops = [node for node in graph.nodes if node.op not in LEAVES]
        self.known = {source for node in self.ops for source in node.sources}
        self.of_layer = _by_layer(program)
        self.sources = [self._sources(layer.name) for layer in program.layers]
        self.layers: dict[str, list[int]] = {}
        for layer, sources in zip(program.layers, self.sources, strict=True):
            for source in sources:
                self.layers.setdefault(source, []).append(layer.index)
        self.ops_of, self.segments_of = dict[str, list[int]](), dict[str, list[int]]()
        for number, node in enumerate(self.ops):
            for source in node.sources:
                self.ops_of.setdefault(source, []).append(number)
        for segment in program.segments:
            for source in dict.fromkeys(source for node in segment.nodes for source in node.sources):
                self.segments_of.setdefault(source, []).append(segment.index)
        self.decisions: dict[str, list[Decision]] = {}
        for decision in program.decisions:
            if decision.stage not in (*ABOUT_A_LAYER, "allocate"):  # facts of tensors replace "allocate"
                for source in self._sources(decision.node):
                    self.decisions.setdefault(source, []).append(decision)

    def becomes(self, node: Node) -> Verdict:
        """Returns the verdict on an op of the model."""
        return self._in_network(node, becomes(node, self.chip))

    def find(self, wanted: str) -> Story:
        """Returns the story of the layer with this number, of the op `op3` as numbered by `hexane check`, or of all
        layers from this source. Raises Error if there is none."""
        if wanted in self.known:
            return self.of_source(wanted)
        kind, number = ("op", wanted[2:]) if wanted.startswith("op") else ("layer", wanted)
        count = len(self.ops) if kind == "op" else len(self.program.layers)
        if number.isdecimal() and number.isascii() and int(number) < count:
            return self.of_op(int(number)) if kind == "op" else self.of_layer_number(int(number))
        near = get_close_matches(wanted, sorted(self.known), NEAREST) or sorted(self.known)[:NEAREST]
        raise Error(
            f"[explain] --node: got {wanted!r}, need the number of a layer below {len(self.program.layers)}, an op"
            f" below op{len(self.ops)}, or a name in the model, for example"
            f" {', '.join(near) or 'none: this model names none'}"
        )

    def of_layer_number(self, number: int) -> Story:
        layer = self.program.layers[number]
        title = f"layer {number}: {layer.name}: {layer.kind} ({layer.op}), engine {layer.engine}"
        sources = self.sources[number]
        return Story(title, sources, (number,), (*self._before(sources), *self._layer(layer)))

    def of_op(self, number: int) -> Story:
        node = self.ops[number]
        if not node.sources:
            verdict = self.becomes(node)
            line = Line("retarget", node.where, verdict.verdict, verdict.reason, f"{verdict.source}, {verdict.status}")
            left = Line(
                "layers", node.where, "not known", "the model names no source, by which its layers would be found", ""
            )
            return Story(f"op{number}: {typed(node)}", (), (), (line, left))
        return self._of_sources(f"op{number}: {typed(node)}", node.sources)

    def of_source(self, source: str) -> Story:
        return self._of_sources(source, (source,))

    def _of_sources(self, title: str, sources: tuple[str, ...]) -> Story:
        layers = _of_all(self.layers, sources)
        lines = [*self._before(sources)]
        for number in layers:
            lines += self._layer(self.program.layers[number])
        if not layers and not self._on_host(sources):
            lines.append(Line("layers", sources[0], "none of its own", TAKEN_IN, "hexane"))
        return Story(title, sources, tuple(layers), tuple(lines))

    # ---- lines ----

    def _before(self, sources: tuple[str, ...]) -> Iterator[Line]:
        """Yields the decisions about ops before lowering, and about layers before scheduling."""
        lines, alike = [], dict[str, list[int]]()
        for number in _of_all(self.ops_of, sources):
            node = self.ops[number]
            alike.setdefault(typed(node), []).append(number)
            verdict = self.becomes(node)
            if verdict.verdict == "native":
                source = f"{verdict.source}, {verdict.status}"
                lines.append(Line("retarget", node.where, "native", verdict.reason, source))
        for text, numbers in alike.items():
            more = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
            yield Line("model", f"op{numbers[0]}{more}", text, "", "")
        for index in _of_all(self.segments_of, sources):
            segment = self.program.segments[index]
            lines.append(Line("segment", f"segment {index}", DEVICES[segment.device], segment.why, ""))
        for d in _of_all(self.decisions, sources):
            decided, reason = d.verdict, d.reason
            if d.stage == "numerics":
                decided, reason = ARITHMETICS[d.verdict], _arithmetic(d.reason)
            lines.append(Line(phase_of(d.stage), d.node, decided, reason, f"{d.stage}; {d.source}"))
        yield from sorted(dict.fromkeys(lines), key=lambda line: BEFORE.index(line.phase))

    def _on_host(self, sources: tuple[str, ...]) -> bool:
        return any(self.program.segments[i].device == "host" for i in _of_all(self.segments_of, sources))

    def _layer(self, layer: Layer) -> Iterator[Line]:
        name = f"layer {layer.index}"
        slots = "; ".join(map(slot_text, layer.slots)) or "no slots"
        yield Line(
            "layer",
            name,
            f"{layer.kind} ({layer.op}), engine {layer.engine}",
            slots,
            "guide ch22, listings 22.1 to 22.3",
        )
        log = self.of_layer[layer.index]
        for stage, phase in ABOUT_A_LAYER.items():
            if stage == "partition":
                p = self.program.partitions[layer.partition]
                which = f"layers {p.first} to {p.end - 1}" if p.end - p.first > 1 else f"layer {p.first}"
                words = (
                    f"{which}: at most {p.peak} bytes in use at once (a partition ends before {p.limit}), {p.height}"
                    f" bytes after packing (the chip has {p.capacity})"
                )
                yield Line(phase, name, f"partition {p.index}", words, self._source("memory.partition_percent"))
            elif stage in log:
                d = log[stage]
                yield Line(phase, name, d.verdict, d.reason, d.source)
        tensors = self.program.tensors
        comes_in = [t for t in layer.reads if tensors[t].producer is None and tensors[t].readers[:1] == (layer.index,)]
        for number in (*comes_in, *layer.makes):
            yield from self._tensor(tensors[number])
        weights = 0 if layer.weights is None else layer.weights.bytes
        words = f"{layer.loaded} bytes loaded, {layer.stored} stored, {weights} of weights"
        yield Line("main memory", name, "traffic", words, "hexane")

    def _tensor(self, t: Tensor) -> Iterator[Line]:
        name = f"tensor {t.index}"
        which = ", ".join(map(str, t.readers))
        readers = f"read by {'layers' if len(t.readers) > 1 else 'layer'} {which}" if which else "read by no layer"
        kept = ", kept in main memory" if t.kept else ""
        yield Line("allocation", name, t.allocation, f"{t.type}, {readers}{kept}: {MEANING[t.allocation]}", _TYPES)
        for stay in t.stays:
            yield Line(
                "allocation",
                name,
                f"offset {place_text(stay)}",
                f"{stay.bytes} bytes in partition {stay.partition}",
                "hexane",
            )
        if t.rows:
            best = -(-t.rows // self.chip.memory.banks)
            rows = f"{counted(t.rows, 'row')} of {t.row_bytes} bytes, {t.stride} bytes apart"
            fewest = "the fewest possible" if t.conflicts == best else f"{best} would be the fewest"
            words = (
                "read in 1 access, without bank conflicts"
                if t.conflicts == 1
                else f"bank conflicts turn 1 access into {t.conflicts}, {fewest}"
            )
            yield Line("banks", name, rows, words, self._source("memory.banks"))
        if t.producer is not None:
            chained = "not chained" if t.not_chained else "chained"
            yield Line("chain", name, chained, t.not_chained, _TYPES)

    def _source(self, fact: str) -> str:
        known = self.chip.facts[fact]
        return f"{known.source}, {known.status}"

    def _sources(self, where: str) -> tuple[str, ...]:
        """Returns the sources in a node's name ("conv at a, b"). A source may contain commas."""
        rest, result = where.partition(" at ")[2], []
        while rest:
            end = len(rest)
            while end > 0 and rest[:end] not in self.known:
                end = rest.rfind(", ", 0, end)
            if end <= 0:
                rest = rest.partition(", ")[2]
                continue
            result.append(rest[:end])
            rest = rest[end + 2 :]
        return tuple(result)


def place_text(stay: Stay) -> str:
    """Returns in words the offset of a tensor in a partition, and its live range."""
    if stay.spilled:
        at = ", ".join(f"{offset} at layer {layer}" for offset, layer in zip(stay.offsets, stay.touches, strict=True))
        return f"of a tile: {at}; the tensor is spilled, {stay.cost} bytes of traffic more"
    return f"{stay.offsets[0]} from layer {stay.first} to layer {stay.last}"


def orders(program: Program) -> dict[int, Decision]:
    """Returns for each segment on the engine the decision about the order of its layers."""
    decisions = [d for d in program.decisions if d.stage == "schedule" and not d.verdict.startswith("step ")]
    return dict(zip([s.index for s in program.segments if s.device == "ane"], decisions, strict=True))


def _of_all(by_source: Mapping[str, Sequence[Found]], sources: Sequence[str]) -> list[Found]:
    """Returns the entries of these sources without duplicates."""
    return list(dict.fromkeys(one for source in sources for one in by_source.get(source, ())))


def typed(node: Node) -> str:
    return f"{node.where} -> {', '.join(map(str, node.types))}"


def _by_layer(program: Program) -> list[dict[str, Decision]]:
    """Returns the decisions about each layer by stage. Layers with equal names are told apart by their order in the
    log."""
    waiting: dict[tuple[str, str], deque[Decision]] = {}
    for decision in program.decisions:
        if decision.stage in ABOUT_A_LAYER and (decision.stage != "schedule" or decision.verdict.startswith("step ")):
            waiting.setdefault((decision.stage, decision.node), deque()).append(decision)
    result: list[dict[str, Decision]] = []
    whole = orders(program)
    for layer in program.layers:
        last = layer.index + 1 == len(program.layers) or program.layers[layer.index + 1].segment != layer.segment
        asked = {
            "schedule": bool(layer.rule),
            "co_issue": not last,
            "pack": layer.weights is not None,
        }
        mine = {stage: waiting[stage, layer.name].popleft() for stage, wanted in asked.items() if wanted}
        result.append({"schedule": whole[layer.segment], **mine})
    return result


def _arithmetic(reason: str) -> str:
    """Returns the rule of a step, with how it is known: "one rounding to fp16 (measured)"."""
    status, _, rule = reason.partition(": ")
    return (
        f"how the chip does it is not known; computed here as: {rule}"
        if status == "open"
        else f"{rule} ({IN_SENTENCES.get(status, status)})"
    )

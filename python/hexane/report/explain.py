"""The compiler's result for a network on a chip: layers, partitions, on-chip memory and traffic, and the decisions
about each node."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from html import escape
from typing import Any

from hexane import sources
from hexane.cost import Estimate, estimate_program
from hexane.errors import Error, UnsupportedError
from hexane.graph import Graph
from hexane.graph.decisions import counted
from hexane.graph.printer import size_text
from hexane.options import SCHEDULES, Options
from hexane.pipeline import compile_segments, divide
from hexane.program import Program
from hexane.program.layers import Layer
from hexane.program.partitions import Occupancy, Stay
from hexane.program.work import OPERATIONS, Work, total
from hexane.report.latency_text import latency_text
from hexane.report.legend import legend
from hexane.report.preflight import Model
from hexane.report.report import DEVICES, MOST_ROWS, segment_record
from hexane.report.rules import Finding, find_rules
from hexane.report.story import MEANING, Stories, Story, orders
from hexane.runtime.chip import listed
from hexane.targets import Chip
from hexane.targets.hypotheses import HYPOTHESES, with_hypotheses
from hexane.targets.query import load_chip

HEAD = (
    "layer",
    "kind",
    "where",
    "slots",
    "engine",
    "partition",
    "result",
    "allocation",
    "offset",
    "bytes",
    "moved",
    "operations",
    "us",
)
PARTITION_HEAD = ("partition", "layers", "peak", "highest offset", "loaded", "stored", "spills", "weights")
PARTITION_MEANINGS = {
    "partition": "layers whose tensors are in on-chip memory together; tensors between partitions are in main memory",
    "peak": (
        "most bytes that tensors in use take at one layer, if all were on chip; a layer beyond the limit is a partition"
        " of its own"
    ),
    "highest offset": "bytes of on-chip memory up to the last one in use, after spills",
    "loaded, stored": "bytes of tensors read from and written to main memory, with the padding of rows",
    "spills": "more bytes from and to main memory, of tensors for which on-chip memory has no room",
    "weights": "bytes of weights read from main memory",
}
MEANINGS = {
    "kind": "of layer, by the compiler's name",
    "where": (
        "ops of the model that the layer comes from, not all of them: an attention, norm or GELU has the name of its"
        " last op, a transpose the name of the op that it was made for"
    ),
    "slots": "what the layer does to its result before it is stored",
    "engine": "NE: multiply-accumulate array; PE: planar engine, for pooling and elementwise ops; DMA: transfers",
    "allocation": "where the result is stored",
    "offset": "address in on-chip memory; tile at: the tensor is spilled, and one tile at a time is at the address",
    "bytes": "of the result in on-chip memory, with the padding of rows, or of its tile",
    "moved": "bytes from and to main memory: tensors, with the padding of rows, and weights",
    "operations": OPERATIONS,
    "us": "estimated microseconds (docs/cost.md)",
}
MOST_SHOWN = 3  # number of layers shown, by most operations or bytes


def explain(
    model: Model,
    target: str | Chip,
    *,
    schedule: str = "apple",
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    hypotheses: Sequence[str] = (),
) -> "Explanation":
    """Returns the result of compiling a network for a chip, with reasons. Nothing runs, and no chip is needed.

    model, input_shapes: see `estimate`. target: a chip in any spelling. schedule: "apple" or "optimal", as `compile`
    has it. hypotheses: what the chip is supposed to do although no source says so, of `targets.hypotheses`; the
    explanation then says what they change. Raises Error for a target that is no chip, for a model without fixed shapes,
    for a model without an op on the engine, and for an unknown hypothesis.
    """
    chip = load_chip(target)
    opened = sources.open_network(model, where="explain")
    return examine(opened.graph(input_shapes), chip, schedule, opened.name, hypotheses)


def examine(
    graph: Graph, chip: Chip, schedule: str = "apple", name: str = "", hypotheses: Sequence[str] = ()
) -> "Explanation":
    """Returns the explanation of a graph. name: used in place of the graph's. hypotheses: as `explain` has them."""
    if hypotheses:
        without = examine(graph, chip, schedule, name)
        supposed = examine(graph, with_hypotheses(chip, hypotheses), schedule, name)
        return replace(supposed, hypotheses=tuple(dict.fromkeys(hypotheses)), without=without)
    if schedule not in SCHEDULES:
        raise Error(f"[explain] schedule: got {schedule!r}, need one of {', '.join(SCHEDULES)}")
    divided, segments = divide(graph, chip)
    if not any(segment.device == "ane" for segment in segments):
        left = listed([d for d in divided.decisions if d.verdict in ("host", "border")]) or "it computes nothing"
        raise UnsupportedError(
            f"[explain] {chip.label}: got a network of which no op runs on the engine: {left}; need one with such an op"
        )
    program = compile_segments(divided, segments, chip, Options(schedule=schedule))
    return Explanation(name or graph.name, chip, schedule, graph, program)


@dataclass(frozen=True)
class Explanation:
    """A network as compiled for a chip, in words. program: its layers, tensors, partitions and decisions. hypotheses:
    what the chip is supposed to do although no source says so. without: the explanation without them."""

    name: str
    chip: Chip
    schedule: str
    graph: Graph = field(repr=False)
    program: Program = field(repr=False)
    hypotheses: tuple[str, ...] = ()
    without: "Explanation | None" = field(default=None, repr=False)

    @cached_property
    def stories(self) -> Stories:
        return Stories(self.graph, self.program, self.chip)

    def story(self, wanted: str | int) -> Story:
        """Returns the story of one or more layers. wanted: a layer's number, an op as `op3` with its number in the
        graph, or a name in the model, for all layers computed from it."""
        return self.stories.find(str(wanted))

    @cached_property
    def occupancy(self) -> list[Occupancy]:
        return self.program.occupancy()

    @cached_property
    def work(self) -> list[Work]:
        """The work of each layer."""
        return [layer.work for layer in self.program.layers]

    @cached_property
    def estimate(self) -> Estimate:
        """The latency of a call on the chip, with an interval: docs/cost.md."""
        return estimate_program(self.program, self.chip)

    @cached_property
    def host_operations(self) -> dict[int, int]:
        """The operations of each segment on the host, by the segment's number."""
        return {s.index: s.work.operations for s in self.program.segments if s.device == "host"}

    @property
    def peak(self) -> Occupancy:
        """The layer with the most bytes on chip."""
        return max(self.occupancy, key=lambda row: row.bytes)

    @property
    def traffic(self) -> dict[str, int]:
        """Bytes from and to main memory: tensors loaded and stored by partitions, additional bytes by spills, and
        weights."""
        parts = self.program.partitions
        return {name: sum(getattr(p, name) for p in parts) for name in ("loaded", "stored", "spilled", "weights")}

    # ---- text ----

    @property
    def summary(self) -> str:
        """The chip, and the numbers of segments, layers and partitions, in one line."""
        p = self.program
        counts = (
            f"{counted(len(p.segments), 'segment')}, {counted(len(p.layers), 'layer')},"
            f" {counted(len(p.partitions), 'partition')}"
        )
        return f"{self.name} on {self.chip.title}, schedule {self.schedule}: {counts}"

    @property
    def lines(self) -> list[str]:
        """Lines of text on the chip, its latency, segments, layers, on-chip memory, main memory, the dominant layers
        and the known facts about ops."""
        known = (f"known: {finding}" for finding in self.findings)
        sections = (self._segment_lines, self._layer_lines, self._memory_lines, self._dominant_lines, known)
        return [
            self._chip_line,
            *self._hypothesis_lines,
            f"latency: {latency_text(self.estimate)}",
            *(line for lines in sections for line in lines),
        ]

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Known failures of ops of this network: a finding for each rule and op."""
        return find_rules(self.graph, self.program.segments)

    @property
    def _chip_line(self) -> str:
        cores, clock = self.chip.facts["cores"], self.chip.facts["clocks.engine"]
        known = f"{self.chip.cores} cores ({cores.source}, {cores.status})"
        if clock.value:
            known += f", clocks up to {max(clock.value)} MHz ({clock.source}, {clock.status})"
        return f"chip: {known}"

    @property
    def _hypothesis_lines(self) -> Iterator[str]:
        for name in self.hypotheses:
            yield f"hypothesis {name}: {HYPOTHESES[name]}; no source says whether {self.chip.label} does"
        if self.without is not None:
            changes = [
                f"{what} {before} -> {after}" if before != after else f"{what} {before} either way"
                for (what, before), after in zip(self.without._effects.items(), self._effects.values(), strict=True)
            ]
            yield f"what it changes: {', '.join(changes)}"

    @property
    def _effects(self) -> dict[str, str]:
        """What a hypothesis may change, in words."""
        return {
            "chained tensors": str(sum(tensor.allocation == "chained" for tensor in self.program.tensors)),
            "partitions": str(len(self.program.partitions)),
            "pairs of layers at once": str(sum(layer.partner is not None for layer in self.program.layers) // 2),
            "on-chip memory at most": size_text(self.peak.bytes),
            "main memory": size_text(sum(self.traffic.values())),
            "estimated latency": f"{self.estimate.latency_us:.0f} us",
        }

    @property
    def _segment_lines(self) -> Iterator[str]:
        for s in self.program.segments:
            which = tally(node.op for node in s.nodes)
            crossing = f"; reads {size_text(s.crossing_bytes)} of other segments" if s.crossings else ""
            yield f"segment {s.index}: {DEVICES[s.device]}, {counted(len(s.nodes), 'op')}: {which}{crossing}" + (
                f"; {s.why}" if s.why else ""
            )
        for decision in orders(self.program).values():
            yield f"order: {decision.verdict}: {decision.reason} ({decision.source})"

    @property
    def _layer_lines(self) -> Iterator[str]:
        layers = self.program.layers
        yield f"layers: {tally(layer.kind for layer in layers)}"
        yield f"engines: {tally(layer.engine for layer in layers)}"

    @property
    def _memory_lines(self) -> Iterator[str]:
        peak, memory, traffic = self.peak, self.chip.memory, self.traffic
        limit = self.program.partitions[0].limit
        yield (
            f"on-chip memory: at most {size_text(peak.bytes)} at once, {percent(peak.bytes, peak.capacity)} of"
            f" {size_text(peak.capacity)}, at layer {peak.layer}; the limit of a partition is {size_text(limit)}"
            f" ({memory.partition_percent} %)"
        )
        activations = f"{size_text(traffic['loaded'])} of tensors loaded, {size_text(traffic['stored'])} stored"
        everything = sum(traffic.values())
        yield (
            f"main memory: {size_text(everything)}: {activations}, {size_text(traffic['spilled'])} more by spills, "
            f"{size_text(traffic['weights'])} of weights ({percent(traffic['weights'], everything)})"
        )

    @property
    def _dominant_lines(self) -> Iterator[str]:
        every = total(self.work)
        yield (
            f"operations: {every.operations:,}, {every.operations / max(every.bytes, 1):.1f} for each byte from or to"
            " main memory"
        )
        for what in ("operations", "bytes"):
            whole = getattr(every, what)
            largest = [
                f"layer {i} {self.program.layers[i].name} ({percent(getattr(self.work[i], what), whole)})"
                for i in self.dominant(what)
            ]
            yield f"most {'bytes moved' if what == 'bytes' else what}: {', '.join(largest)}"

    def dominant(self, what: str) -> list[int]:
        """Returns the layers with the most "operations" or "bytes". Layers with equal numbers stay in order."""
        most = sorted(range(len(self.work)), key=lambda i: -getattr(self.work[i], what))
        return [i for i in most[:MOST_SHOWN] if getattr(self.work[i], what)]

    def partition_rows(self) -> Iterator[tuple[str, ...]]:
        """Yields the rows of partitions under PARTITION_HEAD."""
        for p in self.program.partitions:
            numbers = (p.loaded, p.stored, p.spilled, p.weights)
            layers = f"{p.first} to {p.end - 1}" if p.end - p.first > 1 else str(p.first)
            peak = f"{p.peak} ({percent(p.peak, p.limit)} of limit)"
            offset = f"{p.height} ({percent(p.height, p.capacity)} of memory)"
            yield str(p.index), layers, peak, offset, *map(str, numbers)

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yields the rows of layers under HEAD. A layer with several results has a row for each."""
        for layer, work, cost in zip(self.program.layers, self.work, self.estimate.layers, strict=True):
            where = layer.name.partition(" at ")[2]
            head = (str(layer.index), layer.kind, where, slots_text(layer), layer.engine, str(layer.partition))
            rest = (str(work.bytes), f"{work.operations}", f"{cost.us:.1f}")
            for first, number in enumerate(layer.makes or (None,)):
                yield (
                    *(head if first == 0 else ("",) * len(head)),
                    *self._made(number, layer),
                    *(rest if first == 0 else ("",) * len(rest)),
                )

    def _made(self, number: int | None, layer: Layer) -> tuple[str, str, str, str]:
        if number is None:
            return "", "", "", ""
        tensor = self.program.tensors[number]
        stay = next((s for s in tensor.stays if s.partition == layer.partition), None)
        return str(tensor.type), tensor.allocation, offset_text(stay), "" if stay is None else str(stay.bytes)

    @property
    def partition_legend(self) -> str:
        """The meanings of the columns of partitions."""
        return legend("columns", PARTITION_MEANINGS)

    @property
    def legend(self) -> str:
        """The meanings of the columns of layers, and of the allocations in use."""
        used = {cell for row in self.rows() if (cell := row[HEAD.index("allocation")])}
        stored = "; ".join(f"{word}: {meaning}" for word, meaning in MEANING.items() if word in used)
        meanings = {**MEANINGS, "allocation": f"where the result is stored; {stored}"}
        if any(layer.kind == "GOC" for layer in self.program.layers):
            meanings["kind"] += "; GOC: a gain and an offset for each channel, then an activation (slots)"
        return legend("columns", meanings)

    def __str__(self) -> str:
        return "\n".join(
            [
                self.summary,
                *(f"  {line}" for line in self.lines),
                "",
                text_table(PARTITION_HEAD, list(self.partition_rows())),
                "",
                self.partition_legend,
                "",
                text_table(HEAD, list(self.rows())),
                "",
                self.legend,
            ]
        )

    def print(self) -> None:
        """Prints the whole explanation."""
        print(self)

    def __repr__(self) -> str:
        return f"<Explanation {self.summary}>"

    def _repr_html_(self) -> str:
        lines = "<br>".join(map(escape, self.lines))
        rows = list(self.rows())
        shown = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[:MOST_ROWS]
        )
        head = "".join(f"<th>{escape(name)}</th>" for name in HEAD)
        left = len(rows) - MOST_ROWS
        more = f"<p>and {left} more: print() shows all</p>" if left > 0 else ""
        return f"<p><b>{escape(self.summary)}</b><br>{lines}</p><table><thead><tr>{head}</tr></thead><tbody>{shown}</tbody></table>{more}"  # noqa: E501

    # ---- JSON ----

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        p, every = self.program, total(self.work)
        return {
            "model": self.name,
            "target": self.chip.name,
            "asked": self.chip.asked,
            "products": list(self.chip.products),
            "schedule": self.schedule,
            "hypotheses": list(self.hypotheses),
            **({} if self.without is None else {"without": self.without.record()}),
            "segments": [self._segment_record(i) for i in range(len(p.segments))],
            "partitions": [asdict(part) for part in p.partitions],
            "peak": asdict(self.peak),
            "traffic": self.traffic,
            "operations": every.operations,
            "latency": {key: value for key, value in self.estimate.record().items() if key not in ("layers", "memory")},
            "dominant": {what: self.dominant(what) for what in ("operations", "bytes")},
            "layers": [
                {
                    **asdict(layer),
                    "operations": work.operations,
                    "moved": work.bytes,
                    "us": cost.us,
                    "bound": cost.bound,
                }
                for layer, work, cost in zip(p.layers, self.work, self.estimate.layers, strict=True)
            ],
            "tensors": [{**_fields(t), "type": str(t.type), "stays": [asdict(s) for s in t.stays]} for t in p.tensors],
            "occupancy": [row.bytes for row in self.occupancy],
            "decisions": [d._asdict() for d in p.decisions],
            "rules": [finding.record() for finding in self.findings],
        }

    def _segment_record(self, index: int) -> dict[str, Any]:
        record = segment_record(self.program.segments[index])
        host = self.host_operations.get(index)
        return record if host is None else {**record, "operations": host}

    def to_json(self) -> str:
        return json.dumps(self.record(), indent=2, ensure_ascii=False)


def _fields(thing: Any) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in thing.__dataclass_fields__}


def tally(words: Iterable[str]) -> str:
    """Returns the counts of words, such as "28 Conv, 8 ElementWise", the most frequent first."""
    return ", ".join(f"{number} {word}" for word, number in Counter(words).most_common())


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "0 %"


def offset_text(stay: Stay | None) -> str:
    if stay is None:
        return "main memory"
    return f"tile at {stay.offsets[0]}" if stay.spilled else str(stay.offsets[0])


def slots_text(layer: Layer) -> str:
    """Returns the names of slots, with activations in parentheses: gain_offset, post_activation(relu)."""
    return ", ".join(_short(slot) for slot in layer.slots)


def _short(slot: str) -> str:
    name, _, rest = slot.partition("(")
    mode = rest.partition("mode=")[2]
    return f"{name}({mode.partition(',')[0].rstrip(')')})" if mode else name


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table as plain text. Columns of numbers are right-aligned."""
    columns = list(zip(head, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(cell.replace(".", "", 1).isdecimal() or not cell for cell in column[1:]) for column in columns]
    lines = [
        "  ".join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in (head, *rows)
    ]
    return "\n".join(lines)

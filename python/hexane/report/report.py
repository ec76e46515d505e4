"""The verdicts for a network on one chip, op by op: as values, text, HTML and JSON."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from typing import Any, NamedTuple

from hexane.compression.stored import stored_kernels
from hexane.cost import Least, least
from hexane.cost.parameters import unmeasured
from hexane.graph import Graph, Node
from hexane.graph.decisions import counted
from hexane.graph.printer import size_text
from hexane.ops.encodings import encoding_of, is_encoded
from hexane.pipeline import divide
from hexane.program import Segment, SegmentPort
from hexane.report.advice import Advice, others_known, told, what_to_do
from hexane.report.latency_text import rates_text, rounded_parts
from hexane.report.legend import legend, source_meanings
from hexane.report.outcome import Outcome, outcome
from hexane.report.placement import doubts
from hexane.report.rules import Finding, find_rules
from hexane.targets import Chip, Verdict
from hexane.targets.floors import route_of
from hexane.targets.legality import mil_status
from hexane.targets.verdict import KINDS

HEAD = ("what", "op", "where", "why", "source", "instead")
SEGMENT_HEAD = ("segment", "device", "ops", "which", "reads of others", "why")
DEVICES = {"ane": "engine", "host": "CPU"}
LEAST_PARTS = ("dispatch", "copies", "multiply-adds")
FITTED = "made to fit"  # The verdict on an op that is too large, and that the chip runs in pieces.
WORDS = ("native", "decomposed", FITTED, "oversize", "host", "rejected")  # Verdicts from the best to the worst.
VERDICTS = {
    "native": "the engine runs the op as it is",
    "decomposed": "the engine runs the op, written as other ops",
    FITTED: "larger than the chip takes; the engine runs it in pieces",
    "oversize": "larger than the chip takes; the CPU runs it",
    "host": "the engine cannot run it; the CPU does",
    "rejected": "the engine's compiler refuses it; the CPU runs it",
}
SEGMENT_MEANINGS = {
    "segment": "neighbouring ops on one device; a call runs the segments in order",
    "device": "engine: the Neural Engine; CPU: the host",
    "reads of others": "results of other segments, copied from one device to the other",
}
MOST_ROWS = 200  # most rows of a table in a notebook


def word_of(verdict: Verdict) -> str:
    """Returns the word of WORDS that reports print for a verdict."""
    return FITTED if verdict.verdict == "oversize" and verdict.runs else verdict.verdict


def verdict_legend(verdicts: Iterable[str], cited: Iterable[str]) -> str:
    """Returns the meanings of verdicts, and of sources and statuses such as "guide app. A, measured"."""
    shown = set(verdicts)
    return legend("words", {**{w: VERDICTS[w] for w in WORDS if w in shown}, **source_meanings(cited)})


def no_mil(reject: str, chips: int) -> str:
    """Returns the reason why chips need a netplist. reject: the compiler's message."""
    return f'the compiler refuses MIL for {"this chip" if chips == 1 else "these chips"} ("{reject}")'


class Entry(NamedTuple):
    """One op of the network. number: its index in the order of the graph."""

    number: int
    node: Node
    verdict: Verdict

    @property
    def op(self) -> str:
        return self.node.op

    @property
    def where(self) -> str:
        """The op's place in the user's model."""
        return self.node.source

    @property
    def type(self) -> str:
        return ", ".join(map(str, self.node.types))

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        v = self.verdict
        return {
            "number": self.number,
            "op": self.op,
            "where": self.where,
            "type": self.type,
            "verdict": v.verdict,
            "reason": v.reason,
            "rule": v.rule,
            "reject": v.reject,
            "published": v.published,
            "source": v.source,
            "status": v.status,
            "change": v.change,
            "form": v.form,
            "claims": [{"says": c.value, "source": c.source, "status": c.status} for c in v.claims],
        }


@dataclass(frozen=True, slots=True)
class Weights:
    """Size of the constants and params of a network. bytes: as stored in the model; engine_bytes: with floats as
    fp16."""

    tensors: int
    numbers: int
    bytes: int
    engine_bytes: int

    def __str__(self) -> str:
        size = f"{size_text(self.bytes)} in the model, {size_text(self.engine_bytes)} with floats as fp16"
        return f"{self.numbers:,} numbers, {size}"


def weights_of(nodes: Iterable[Node]) -> Weights:
    """Returns the size of the constants and params among the nodes."""
    nodes = list(nodes)
    encodings = [encoding_of(node.values[0]) for node in nodes if is_encoded(node)]
    # In the graph, indices take 8 or 32 bits, and integers 8 bits.
    indices = {e.stored.node: e.bytes for e in encodings if e.kind in ("palette", "blocks")}
    stored = [node for node in nodes if node.op in ("const", "param")]
    types = [node.types[0] for node in stored if node not in indices]
    packed = sum(indices[node] for node in stored if node in indices)
    engine = sum((t.size * min(t.dtype.bits, 16) + 7) // 8 if t.dtype.kind == "float" else t.bytes for t in types)
    numbers = sum(node.types[0].size for node in stored)
    return Weights(len(stored), numbers, sum(t.bytes for t in types) + packed, engine + packed)


def packed_kinds(streams: Sequence[str]) -> list[str]:
    """Returns the weight encodings that a chip reads, as `hexane compress` names them. streams: as in the chips' facts,
    where int4 is a palette."""
    return ["palette" if name == "int4" else name for name in streams]


def reads_packed(streams: Sequence[str], several: bool = False) -> str:
    """Returns in words the weight encodings that a chip reads, or that several chips read, whatever the network's
    weights are. streams: see `packed_kinds`."""
    which = "these chips" if several else "this chip"
    if not streams:
        return f"{which} {'read' if several else 'reads'} no packed weights"
    named = packed_kinds(streams)
    kinds = " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))
    return f"{which} can read {kinds} weights without unpacking"


@dataclass(frozen=True)
class Report:
    """A chip's verdict on every op of a network. Lists are in the order of the graph.

    native: runs unchanged. decomposed: runs on the engine as other ops. oversize: exceeds a limit of the chip. host:
    computed outside the engine. rejected: refused by the engine's compiler. ok: the whole network runs on the engine,
    and the host does not even cut or join pieces.
    """

    name: str
    chip: Chip
    entries: tuple[Entry, ...]
    graph: Graph = field(repr=False)

    @cached_property
    def weights(self) -> Weights:
        return weights_of(self.graph.nodes)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The network's parts in execution order, each for one device, as `compile` makes them."""
        return divide(self.graph, self.chip)[1]

    @cached_property
    def latency(self) -> Least | None:
        """A lower bound of the estimated time of a call on the chip; None if the engine computes nothing. `hx.estimate`
        compiles the network and estimates more precisely."""
        return least(self.segments, self.chip)

    @property
    def latency_line(self) -> str:
        """The latency in one line; "" if the engine computes nothing."""
        latency = self.latency
        if latency is None:
            return ""
        whole, *each = rounded_parts(latency.us, (latency.floor_us, latency.copies_us, latency.products_us))
        parts = ", ".join(f"{name} {us}" for name, us in zip(LEAST_PARTS, each, strict=True))
        rates = rates_text(latency.measured_on, ", ".join(unmeasured(self.chip)))
        bound = f"estimate at least: {whole} us ({parts})"
        return f"{bound}, {rates}; a real call may be faster (p10 of `hexane estimate`)"

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Known failures of the network's ops, and of the layers that they become: one finding per rule and op."""
        return find_rules(self.graph, self.segments)

    @property
    def legend(self) -> str:
        """The meanings of the verdicts, sources and statuses that the report prints; "" if it prints none."""
        return verdict_legend((row[0] for row in self.rows()), self.cited)

    @property
    def cited(self) -> list[str]:
        """The sources of the rows and findings, with their statuses."""
        return [*(row[HEAD.index("source")] for row in self.rows()), *(finding.cited for finding in self.findings)]

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """The advice, with the largest gain first."""
        return what_to_do([self])

    @cached_property
    def doubts(self) -> tuple[str, ...]:
        """Reasons why a system may leave an eligible program to the CPU, a sentence each."""
        return doubts(self.segments)

    @property
    def engine_segments(self) -> int:
        """The number of segments on the engine. Core AI compiles each segment as a region."""
        return sum(segment.device == "ane" for segment in self.segments)

    @property
    def crossings(self) -> list[SegmentPort]:
        """The values that a segment reads from another, once per reader."""
        return [port for segment in self.segments for port in segment.crossings]

    @cached_property
    def native(self) -> list[Entry]:
        return self._of("native")

    @cached_property
    def decomposed(self) -> list[Entry]:
        return self._of("decomposed")

    @cached_property
    def oversize(self) -> list[Entry]:
        return self._of("oversize")

    @cached_property
    def host(self) -> list[Entry]:
        return self._of("host")

    @cached_property
    def rejected(self) -> list[Entry]:
        return self._of("rejected")

    @cached_property
    def outcome(self) -> Outcome:
        """Where the network runs, with a `str` that all reports print."""
        return outcome(self.segments)

    @property
    def ok(self) -> bool:
        return self.outcome.kind == "whole"

    @property
    def host_nodes(self) -> list[Node]:
        """The host's nodes in the network as written for the chip."""
        return [node for segment in self.segments if segment.device == "host" for node in segment.nodes]

    @property
    def counts(self) -> dict[str, int]:
        """The number of ops that are native, decomposed, oversize, host and rejected."""
        return {kind: len(getattr(self, kind)) for kind in KINDS}

    @property
    def told_counts(self) -> dict[str, int]:
        """The number of ops by the words of WORDS."""
        counter = Counter(word_of(entry.verdict) for entry in self.entries)
        return {word: counter[word] for word in WORDS}

    def _of(self, kind: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.verdict.verdict == kind]

    @property
    def summary(self) -> str:
        """Where the network runs, and the verdicts on the model's ops, in one line."""
        route = "" if self.mil is None else f"; needs a netplist: {no_mil(self.mil.reject, 1)}"
        return f"{self.name} on {self.chip.title}: {self.outcome}{self._verdicts_text}{route}"

    @property
    def _verdicts_text(self) -> str:
        """The verdicts with their counts. Names both sets of ops if the outcome counts the ops of the chip's program,
        and the program has other ops than the model."""
        counts = ", ".join(f"{count} {word}" for word, count in self.told_counts.items() if count) or "no ops"
        kept_off = sum(not entry.verdict.runs for entry in self.entries)
        alike = (self.outcome.engine, self.outcome.host) == (len(self.entries) - kept_off, kept_off)
        if alike or self.outcome.kind == "whole":
            return f": {counts}"
        ops = self.outcome.engine + self.outcome.host
        return f"; these {ops} are the model's {counted(len(self.entries), 'op')} as written for the chip: {counts}"

    @property
    def mil(self) -> Verdict | None:
        """The verdict if MIL programs do not reach the chip; the report is then for programs in netplist format."""
        return None if route_of(self.chip) == "mil" else mil_status("add", self.chip)

    @property
    def streams(self) -> tuple[str, ...]:
        """The encodings that the engine decodes itself. Other encodings only make files smaller."""
        return self.chip.formats.streams

    @property
    def weights_line(self) -> str:
        """The weights, the encodings that the chip decodes, and their use in this network, in one line."""
        return f"weights: {self.weights}; {reads_packed(self.streams)}{self._stored}"

    @cached_property
    def compressed(self) -> tuple[int, int]:
        """How many encoded weights of products this chip reads as stored (streams), and how many it decodes first
        (folds)."""
        streamed = [does for _, _, does in stored_kernels(self.graph, self.chip)]
        return sum(streamed), len(streamed) - sum(streamed)

    @property
    def _stored(self) -> str:
        streamed, folded = self.compressed
        parts = [f"{streamed} of the network's {'stream' if streamed > 1 else 'streams'}"] if streamed else []
        if folded:
            parts.append(f"{folded} of the network's {'fold' if folded > 1 else 'folds'}: no bandwidth gained")
        return "".join(f"; {part}" for part in parts)

    @property
    def cut_summary(self) -> str:
        """The number of segments, and the values that cross between them, in one line."""
        total = sum(port.type.bytes for port in self.crossings)
        crossing = f"; what crosses between them: {counted(len(self.crossings), 'value')}, {total} bytes"
        return f"{counted(len(self.segments), 'segment')}{crossing if self.crossings else ''}"

    def segment_rows(self) -> Iterator[tuple[str, ...]]:
        """Yields the rows of segments under SEGMENT_HEAD."""
        for s in self.segments:
            ops = ", ".join(dict.fromkeys(node.op for node in s.nodes))
            crossing = f"{counted(len(s.crossings), 'value')}, {s.crossing_bytes} bytes" if s.crossings else ""
            yield str(s.index), DEVICES[s.device], str(len(s.nodes)), ops, crossing, s.why

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yields rows under HEAD for all ops that are not native, the worst first. Ops of one name with the same
        reason share a row."""
        for kind in reversed(WORDS[1:]):
            shared: dict[tuple[str, str], list[Entry]] = {}
            for entry in (entry for entry in self.entries if word_of(entry.verdict) == kind):
                shared.setdefault((entry.op, entry.verdict.reason), []).append(entry)
            for (op, reason), entries in shared.items():
                v = entries[0].verdict
                said = f' (the compiler says "{v.reject}")' if v.published and v.reject not in reason else ""
                more = f" (1 of {len(entries)} ops)" if len(entries) > 1 else ""
                yield kind, op, entries[0].where + more, reason + said, f"{v.source}, {v.status}", v.change

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {
            "target": self.chip.name,
            "asked": self.chip.asked,
            "products": list(self.chip.products),
            "ok": self.ok,
            **self.outcome.record(),
            "route": route_of(self.chip),
            "counts": self.counts,
            "weights": asdict(self.weights),
            "streams": list(self.streams),
            "latency": None if self.latency is None else self.latency.record(),
            **(
                {"compressed": dict(zip(("stream", "fold"), self.compressed, strict=True))}
                if any(self.compressed)
                else {}
            ),
            "segments": [segment_record(segment) for segment in self.segments],
            "crossings": len(self.crossings),
            "crossing_bytes": sum(port.type.bytes for port in self.crossings),
            **({"placement": list(self.doubts)} if self.doubts else {}),
            "what_to_do": [one.record() for one in self.advice],
            "rules": [finding.record() for finding in self.findings],
            "nodes": [entry.record() for entry in self.entries],
        }

    def to_json(self) -> str:
        return json.dumps(self.record(), indent=2, ensure_ascii=False)

    def __str__(self) -> str:
        blocks = [
            "\n".join(
                filter(None, (self.summary, *told(self.advice, 1), self.weights_line, self.latency_line, *self.doubts))
            )
        ]
        for what, op, where, why, source, change in self.rows():
            lines = [f"{what}: {op}" + (f" at {where}" if where else ""), f"  {why}", f"  source: {source}"]
            blocks.append("\n".join([*lines, f"  instead: {change}"] if change else lines))
        if self.legend:
            blocks.append(self.legend)
        if len(self.segments) > 1:
            rows = [
                f"  {number} {device}: {ops}" + (f"; {why}" if why else "")
                for number, device, _, ops, _, why in self.segment_rows()
            ]
            blocks.append("\n".join([f"{self.cut_summary}:", *rows]))
        if known := others_known([self]):
            blocks.append("\n".join(["known of these ops:", *(f"  {text}" for text in known)]))
        return "\n\n".join(blocks)

    def __repr__(self) -> str:
        return f"<Report {self.summary}>"

    def _repr_html_(self) -> str:
        rows = list(self.rows())
        shown = "".join(
            "<tr>"
            + "".join(f'<td style="text-align:left;vertical-align:top">{escape(cell)}</td>' for cell in row)
            + "</tr>"
            for row in rows[:MOST_ROWS]
        )
        head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in HEAD)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{shown}</tbody></table>" if rows else ""
        left = len(rows) - MOST_ROWS
        more = f"<p>and {left} more: print(report) shows all</p>" if left > 0 else ""
        lines = "<br>".join(map(escape, (*told(self.advice, 1), self.weights_line)))
        return f"<p><b>{escape(self.summary)}</b><br>{lines}</p>{table}{more}"


def segment_record(segment: Segment) -> dict[str, Any]:
    """A dict for JSON."""
    return {
        "device": segment.device,
        "ops": len(segment.nodes),
        "why": segment.why,
        "moved": [node.where for node in segment.moved],
        "inputs": [_port_record(port) for port in segment.inputs],
        "outputs": [_port_record(port) for port in segment.outputs],
        "crossing_bytes": segment.crossing_bytes,
    }


def _port_record(port: SegmentPort) -> dict[str, Any]:
    return {"name": port.name, "type": str(port.type), "from": port.source, "to": list(port.readers)}

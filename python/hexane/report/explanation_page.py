"""The explanation of a network as one HTML file that works offline: layers, on-chip memory over the schedule, and
decisions."""

from dataclasses import asdict
from typing import Any

from hexane.graph import Node
from hexane.program.layers import Layer
from hexane.program.partitions import Stay, Tensor
from hexane.program.work import Work
from hexane.report.explain import Explanation
from hexane.report.html_document import Table, html_document
from hexane.report.report import DEVICES
from hexane.report.story import ABOUT_A_LAYER, MEANING, phase_of, typed

STYLES = ("page.css", "explanation.css")
SCRIPTS = ("common.js", "timeline.js", "explanation.js")


def explanation_page(explanation: Explanation) -> str:
    """Returns the page of an explanation: `hexane explain --html`."""
    return html_document(
        f"{explanation.name} on {explanation.chip.label}",
        f"{explanation.summary}.",
        _Data(explanation).record(),
        STYLES,
        SCRIPTS,
    )


class _Data:
    """Records as rows. Repeated texts are indices of `words`, and names in the model are indices of `sources`."""

    def __init__(self, explanation: Explanation) -> None:
        self.explanation, self.program, self.stories = explanation, explanation.program, explanation.stories
        self.words, self.sources = Table(), Table()
        self.number = {id(decision): i for i, decision in enumerate(self.program.decisions)}

    def record(self) -> dict[str, Any]:
        explanation, program = self.explanation, self.program
        layers = [self._layer(layer, work) for layer, work in zip(program.layers, explanation.work, strict=True)]
        tensors = [self._tensor(tensor) for tensor in program.tensors]
        decisions = [[self.words.place(text) for text in _texts(d)] for d in program.decisions]
        return {
            "model": explanation.name,
            "target": explanation.chip.name,
            "title": explanation.chip.title,
            "schedule": explanation.schedule,
            "lines": explanation.lines,
            "segments": [
                [
                    DEVICES[s.device],
                    len(s.nodes),
                    ", ".join(dict.fromkeys(n.op for n in s.nodes)),
                    s.why,
                    s.crossing_bytes,
                ]
                for s in program.segments
            ],
            "partitions": [asdict(partition) for partition in program.partitions],
            "traffic": explanation.traffic,
            "meaning": MEANING,
            "layers": layers,
            "tensors": tensors,
            "decisions": decisions,
            "phases": {stage: phase_of(stage) for stage in dict.fromkeys(d.stage for d in program.decisions)},
            "ops": [self._op(node) for node in self.stories.ops],
            "decided": {
                self.sources.place(source): [self.number[id(d)] for d in decided]
                for source, decided in self.stories.decisions.items()
            },
            "sources": self.sources.items,
            "words": self.words.items,
        }

    def _op(self, node: Node) -> list[Any]:
        """[op with its place and result, verdict, reason, evidence, sources]"""
        v = self.stories.becomes(node)
        texts = (typed(node), v.verdict, v.reason, f"{v.source}, {v.status}")
        return [*map(self.words.place, texts), [self.sources.place(source) for source in node.sources]]

    def _layer(self, layer: Layer, work: Work) -> list[Any]:
        """[name, kind, slots, engine, segment, partition, reads, makes, operations, loaded, stored, weights, bytes on
        chip, sources, decisions about itself]"""
        log = self.stories.of_layer[layer.index]
        own = [self.number[id(log[stage])] for stage in ABOUT_A_LAYER if stage in log]
        sources = [self.sources.place(source) for source in self.stories.sources[layer.index]]
        slots = [self.words.place(slot) for slot in layer.slots]
        weights = work.bytes - layer.loaded - layer.stored
        return [
            self.words.place(layer.name), self.words.place(layer.kind), slots, layer.engine, layer.segment, layer.partition,  # noqa: E501
            layer.reads, layer.makes, work.operations, layer.loaded, layer.stored, weights, self.explanation.occupancy[layer.index].bytes,  # noqa: E501
            sources, own,
        ]  # fmt: skip

    def _tensor(self, t: Tensor) -> list[Any]:
        """[name, type, producer, readers, kept, allocation, why not chained, rows, bytes of a row, stride, turns,
        stays]"""
        place = self.words.place
        return [
            place(t.name), place(str(t.type)), t.producer, t.readers, int(t.kept), place(t.allocation), place(t.not_chained),  # noqa: E501
            t.rows, t.row_bytes, t.stride, t.conflicts, [_stay(stay) for stay in t.stays],
        ]  # fmt: skip


def _texts(decision: Any) -> tuple[str, str, str, str, str]:
    return decision.stage, decision.node, decision.verdict, decision.reason, decision.source


def _stay(stay: Stay) -> list[Any]:
    """[partition, bytes, [first layer, last layer, offset] for each rectangle, cost of a spill, or -1]"""
    if stay.spilled:
        places = [[layer, layer, offset] for layer, offset in zip(stay.touches, stay.offsets, strict=True)]
        return [stay.partition, stay.bytes, places, stay.cost]
    return [stay.partition, stay.bytes, [[stay.first, stay.last, stay.offsets[0]]], -1]

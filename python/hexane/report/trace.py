"""The schedule of a chip's program as a Chrome trace: a process per segment, with a lane for each of its engines, or
one for the host.

No source gives times, so the unit is a share: the length of a bar is the layer's share of the program's operations (NE,
PE, host) or of its bytes from and to main memory (DMA), in millionths and at least 1. A layer's transfers and its
computation begin together, and the next layer begins after both. Arrows lead from the layer that computes a tensor to
its readers.
"""

import json
from typing import Any

from hexane.program.layers import Layer
from hexane.program.work import total
from hexane.report.explain import Explanation

UNIT = "millionths of the operations, or of the bytes moved, of the whole program; no time"
LANES = {"NE": 1, "PE": 2, "DMA": 3, "host": 1}


def chrome_trace(explanation: Explanation) -> str:
    """Returns the text of a JSON object for chrome://tracing and Perfetto."""
    return json.dumps(
        {
            "traceEvents": _Trace(explanation).events(),
            "displayTimeUnit": "ms",
            "otherData": {
                "unit": UNIT,
                "model": explanation.name,
                "target": explanation.chip.name,
                "schedule": explanation.schedule,
            },
        }
    )


class _Trace:
    def __init__(self, explanation: Explanation) -> None:
        self.explanation, self.program = explanation, explanation.program
        every = total(explanation.work)
        self.operations = max(every.operations + sum(explanation.host_operations.values()), 1)
        self.bytes = max(every.bytes, 1)
        self.bars: dict[int, dict[str, Any]] = {}

    def events(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        at = 0
        layers: dict[int, list[Layer]] = {}
        for layer in self.program.layers:
            layers.setdefault(layer.segment, []).append(layer)
        for segment in self.program.segments:
            host = segment.device == "host"
            name = f"segment {segment.index}: {'host' if host else 'engine'} (shares, no time)"
            events.append(_named("process_name", segment.index, 0, name))
            for lane in ("host",) if host else ("NE", "PE", "DMA"):
                events.append(_named("thread_name", segment.index, LANES[lane], lane))
            if host:
                operations = self.explanation.host_operations[segment.index]
                long = self._share(operations, self.operations)
                words = {"ops": [node.where for node in segment.nodes], "operations": operations, "why": segment.why}
                events.append(_bar("host", segment.index, "host", at, long, words))
                at += long
            for layer in layers.get(segment.index, ()):
                at = self._layer(layer, at, events)
        return events + self._arrows()

    def _arrows(self) -> list[dict[str, Any]]:
        """Returns arrows from the end of the bar that computes a tensor to the beginning of each bar that reads it."""
        result: list[dict[str, Any]] = []
        for tensor in self.program.tensors:
            if tensor.producer is None:
                continue
            for reader in tensor.readers:
                first, last = self.bars[tensor.producer], self.bars[reader]
                ends = {"cat": "tensor", "id": len(result) // 2}
                words = {"tensor": tensor.index, "type": str(tensor.type), "allocation": tensor.allocation}
                begin = _event("s", tensor.name, first["pid"], first["ts"] + first["dur"] - 1, words)
                end = _event("f", tensor.name, last["pid"], last["ts"], words)
                result += [{**begin, **ends, "tid": first["tid"]}, {**end, **ends, "tid": last["tid"], "bp": "e"}]
        return result

    def _layer(self, layer: Layer, at: int, events: list[dict[str, Any]]) -> int:
        """Adds the bars of a layer that begins at `at`. Returns the time at which the next layer begins."""
        work, weights = self.explanation.work[layer.index], 0 if layer.weights is None else layer.weights.bytes
        occupancy = self.explanation.occupancy[layer.index]
        events.append(_event("C", "bytes on chip", layer.segment, at, args={"bytes": occupancy.bytes}))
        long = self._share(work.operations, self.operations)
        words = {
            "layer": layer.index, "kind": layer.kind, "slots": list(layer.slots), "partition": layer.partition,
            "operations": work.operations, "order": layer.rule, "co-issue": layer.co_issue,
        }  # fmt: skip
        self.bars[layer.index] = _bar(layer.name, layer.segment, layer.engine, at, long, words)
        events.append(self.bars[layer.index])
        end = at + long
        moves = at + long if layer.engine == "DMA" else at
        for what, size in (("load", layer.loaded), ("weights", weights), ("store", layer.stored)):
            if size:
                long = self._share(size, self.bytes)
                events.append(
                    _bar(
                        f"{what}: {layer.name}",
                        layer.segment,
                        "DMA",
                        moves,
                        long,
                        {"layer": layer.index, "bytes": size},
                    )
                )
                moves += long
        return max(end, moves)

    def _share(self, part: int, whole: int) -> int:
        return max(round(1_000_000 * part / whole), 1)


def _bar(name: str, segment: int, lane: str, at: int, long: int, args: dict[str, Any]) -> dict[str, Any]:
    return {**_event("X", name, segment, at, args), "cat": lane, "tid": LANES[lane], "dur": long}


def _event(kind: str, name: str, segment: int, at: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": kind, "name": name, "pid": segment, "tid": 0, "ts": at, "args": args}


def _named(what: str, segment: int, lane: int, name: str) -> dict[str, Any]:
    return {**_event("M", what, segment, 0, {"name": name}), "tid": lane}

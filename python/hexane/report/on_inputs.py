"""Compares a chip's results on given inputs with the model in its own dtypes: the distance of the outputs, the op that
breaks them, and the ranges that fp16 cannot hold. Without inputs, finds the ops whose result may overflow for some
inputs, and the scales that are inputs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hexane.bounds.interval import LARGEST
from hexane.graph import Array, Graph, Node, Port, Value
from hexane.graph.decisions import counted
from hexane.ops import LEAVES
from hexane.passes.repair.scales import is_safe
from hexane.passes.repair.squares import squares
from hexane.report.compare import TOLERANCE, Comparison, Parting, compare
from hexane.report.difference import Difference
from hexane.runtime import compile
from hexane.targets import Chip
from hexane.validate import is_constant

SHOWN = 5
MOST_BYTES = 1 << 28  # The most bytes of results that one program keeps.
TINY = 2.0**-14  # The smallest normal number of fp16.
STEEP = ("exp", "exp2", "pow", "square", "cumsum", "cumprod", "reduce_prod", "reduce_sum_square", "sinh", "cosh",
         "inverse", "rsqrt", "log")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seen:
    """The range of a layer in the model's own dtypes. beyond: its largest numbers overflow fp16; tiny: all of its
    numbers are subnormal in fp16."""

    number: int
    node: Node
    low: float
    high: float

    @property
    def beyond(self) -> bool:
        return max(-self.low, self.high) > LARGEST

    @property
    def tiny(self) -> bool:
        return 0 < max(-self.low, self.high) < TINY

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {
            "number": self.number,
            "op": self.node.op,
            "where": self.node.source,
            "range": [self.low, self.high],
            "fp16": "beyond" if self.beyond else "tiny" if self.tiny else "held",
        }


@dataclass(frozen=True, slots=True)
class OnInputs:
    """The comparison for a chip. The chip's program ran on this CPU in the engine's arithmetic. infinite: the number of
    infinite elements of each input that has some."""

    chip: Chip
    comparison: Comparison
    infinite: Mapping[str, int] = field(default_factory=dict)

    @property
    def parting(self) -> Parting:
        """How the outputs differ. It names no op if they differ only where the model's own outputs are not finite."""
        return self.comparison.partings[0]

    @property
    def _differences(self) -> list[Difference]:
        return [output.differences[self.chip.name] for output in self.comparison.outputs]

    @property
    def _not_finite(self) -> bool:
        """True if an output differs from an infinite number or a NaN of the model in its own dtypes."""
        return any(d.unlike for d in self._differences)

    @property
    def reason(self) -> str:
        """What the inputs and the model's own outputs have to do with wrong outputs; "" for nothing."""
        held = [f"input {name} holds {counted(count, 'infinite number')}" for name, count in self.infinite.items()]
        own = ["the outputs of the model in its own dtypes are not finite either"] if self._not_finite else []
        return "; ".join(held + own)

    @property
    def ok(self) -> bool:
        """True if all outputs are within 1 % of the model's own dtypes."""
        return self.comparison.ok

    @property
    def lines(self) -> list[str]:
        """The lines that the terminal shows."""
        outputs = "; ".join(output.said(self.chip.name) for output in self.comparison.outputs)
        verdict = f"outputs within {TOLERANCE:.0%}" if self.ok else f"outputs off by more than {TOLERANCE:.0%}"
        lines = [f"{self.chip.label}: {verdict}: {outputs}"]
        if not self.ok:
            lines += [f"  {self.reason}"] if self.reason else []
            if not self.parting.reason:
                lines += self.parting.lines(self.comparison.labels)[1:]
        return lines

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {
            "ok": self.ok,
            "outputs": [output.record() for output in self.comparison.outputs],
            "parting": self.parting.record(),
            "infinite_inputs": dict(self.infinite),
            "model_is_finite": not self._not_finite,
        }


def on_inputs(graph: Graph, chip: Chip, inputs: Mapping[str, Array]) -> OnInputs:
    """Runs a chip's program and the model in its own dtypes. inputs: by name. Raises Error if the model does not
    compile for the chip, and for inputs of another shape or dtype."""
    infinite = {name: int(np.isinf(array).sum()) for name, array in inputs.items() if array.dtype.kind == "f"}
    held = {name: count for name, count in infinite.items() if count}
    return OnInputs(chip, compare(graph, [chip, "ieee"], inputs), held)


def ranges_of(graph: Graph, inputs: Mapping[str, Array]) -> tuple[Seen, ...]:
    """Returns the range of every float op of the user's graph on these inputs, in its own dtypes, in order. Results
    become outputs of programs for the host, so that none is fused away; memory limits the results of one program."""
    result: list[Seen] = []
    for group in _groups(graph):
        outputs = tuple(Port(str(n), node.values[0]) for n, node in group)
        net = compile(replace(graph, outputs=outputs, updates=(), taps=()), target="host")
        returned = net(**{port.name: inputs[port.name] for port in net.inputs})
        arrays = returned if isinstance(returned, Mapping) else {outputs[0].name: returned}
        for n, node in group:
            numbers = np.asarray(arrays[str(n)], np.float64)
            finite = numbers[np.isfinite(numbers)]
            if finite.size:
                result.append(Seen(n, node, float(finite.min()), float(finite.max())))
    return tuple(result)


def _groups(graph: Graph) -> Iterator[list[tuple[int, Node]]]:
    group: list[tuple[int, Node]] = []
    size = 0
    for n, node in enumerate(graph.nodes):
        if node.op in LEAVES or node.types[0].dtype.kind != "float" or is_constant(node) or node.op == "write_state":
            continue
        group.append((n, node))
        size += node.types[0].bytes
        if size > MOST_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def range_lines(ranges: Sequence[Seen]) -> list[str]:
    """Returns lines on the layers whose numbers fp16 cannot hold, the same lines for every chip."""
    lines = []
    for words, spans in (
        ("beyond fp16 (65504)", [s for s in ranges if s.beyond]),
        ("below fp16's full digits (6.1e-5)", [s for s in ranges if s.tiny]),
    ):
        if spans:
            shown = "; ".join(f"{s.node.where} ({s.low:.3g} to {s.high:.3g})" for s in spans[:SHOWN])
            more = f"; and {len(spans) - SHOWN} more" if len(spans) > SHOWN else ""
            lines.append(f"{words}, {counted(len(spans), 'layer')}: {shown}{more}")
    return lines


def depends_on_numbers(graph: Graph) -> list[Node]:
    """Returns the ops whose results may exceed fp16, depending on the inputs. graph: after `repair`."""
    result = []
    for node in graph.nodes:
        if node.op in LEAVES or is_constant(node) or node.types[0].dtype.kind != "float":
            continue
        computed = sum(v is not None and not is_constant(v.node) for v in node.inputs)
        if node.op in STEEP or (node.op in ("mul", "real_div") and computed == 2) or node.op == "reduce_sum":
            sums = squares(node.values[0])
            if sums is None or not is_safe(sums):
                result.append(node)
    return result


def unknown_line(graph: Graph) -> str:
    """Returns a line about the ops of `depends_on_numbers`; "" if there are none."""
    nodes = depends_on_numbers(graph)
    if not nodes:
        return ""
    ops = dict.fromkeys(node.op for node in nodes)
    return (
        f"unknown without inputs: whether fp16 holds the results of {counted(len(nodes), 'op')}"
        f" ({', '.join(list(ops)[:SHOWN])}{', ..' if len(ops) > SHOWN else ''}): --input F.npz tells"
    )


SCALES = {"mul": (0, 1), "real_div": (1,), "dequantize": (1,), "quantize": (1,)}
MOVES = ("reshape", "expand_dims", "squeeze", "transpose", "broadcast_to", "identity", "cast")


def scales_given(graph: Graph) -> dict[str, Node]:
    """Returns the inputs that are scales, by name, with the first op that each scales: a scale is one number, or one
    number per row or channel. graph: the user's."""
    result: dict[str, Node] = {}
    for node in graph.nodes:
        if node.op in LEAVES or node.op not in SCALES:
            continue
        for place in SCALES[node.op]:
            scale, others = node.inputs[place], [v for i, v in enumerate(node.inputs) if i != place and v is not None]
            if scale is None or not any(v.type.size > _source(scale).type.size for v in others):
                continue
            if (name := _input_of(scale)) and scale.dtype.kind == "float":
                result.setdefault(name, node)
    return result


def _source(value: Value) -> Value:
    while value.node.op in MOVES and value.node.inputs[0] is not None:
        value = value.node.inputs[0]
    return value


def _input_of(value: Value) -> str:
    node = _source(value).node
    return str(node.attrs["name"]) if node.op == "input" else ""


def scale_line(graph: Graph) -> str:
    """Returns a line about the inputs of `scales_given`; "" if there are none."""
    scales = scales_given(graph)
    if not scales:
        return ""
    shown = ", ".join(f"{name!r} ({node.where})" for name, node in list(scales.items())[:SHOWN])
    more = f" and {len(scales) - SHOWN} more" if len(scales) > SHOWN else ""
    return (
        f"depends on the inputs: the scale {shown}{more} is rounded to fp16 where it enters a chip: it loses digits"
        " below 6.1e-5 and is infinite beyond 65504"
    )

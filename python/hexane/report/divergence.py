"""Predicts from the graph alone where numbers may differ between two chips, and where they may overflow."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import prod
from typing import Any

from hexane import sources
from hexane.bounds import Bound, analyse
from hexane.graph import Graph, Node
from hexane.graph.printer import html_table
from hexane.ops import LEAVES, OPS
from hexane.ops.match import made_by
from hexane.ops.predicates import has_winograd_s_shape
from hexane.report.preflight import Model
from hexane.targets import Chip, fp16_divergence
from hexane.targets.divergence import SLICES, Divergence
from hexane.targets.query import load_chip

STRENGTH: tuple[Divergence, ...] = ("none", "ulp1", "round1", "saturation")
HEAD = ("verdict", "op", "field", "why", "overflow")


@dataclass(frozen=True, slots=True)
class Judged:
    """One op. verdict: see `predict_fp16_divergence`. field: the fact of the chips that decides it, or "". values: the
    fact's value on both chips. bound: of the op's result; None if it has no floats."""

    number: int
    node: Node
    verdict: Divergence
    field: str
    values: tuple[Any, Any]
    why: str
    bound: Bound | None

    @property
    def overflow(self) -> str:
        return "" if self.bound is None or OPS[self.node.op].moves else str(self.bound)

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        b = self.bound
        numbers = (
            None
            if b is None
            else {"low": _finite(b.low), "high": _finite(b.high), "overflow": b.overflow, "limit": b.limit}
        )
        return {
            "number": self.number,
            "op": self.node.op,
            "where": self.node.source,
            "verdict": self.verdict,
            "field": self.field,
            "values": list(self.values),
            "why": self.why,
            "bound": numbers,
        }


@dataclass(frozen=True)
class DivergenceReport:
    """Possible differences between two chips and possible overflows, op by op in the order of the graph."""

    name: str
    first: Chip
    second: Chip
    ops: tuple[Judged, ...]

    @property
    def verdict(self) -> Divergence:
        """The strongest verdict of all ops."""
        return max((op.verdict for op in self.ops), key=STRENGTH.index, default="none")

    @property
    def divergent(self) -> list[Judged]:
        """The ops that may differ, the strongest verdicts first."""
        return sorted((op for op in self.ops if op.verdict != "none"), key=lambda op: -STRENGTH.index(op.verdict))

    @property
    def overflowing(self) -> list[Judged]:
        """The ops that will overflow, or may, in the order of the graph."""
        return [op for op in self.ops if op.overflow and op.bound is not None and op.bound.overflow != "cannot"]

    @property
    def summary(self) -> str:
        """The verdict and the counts in one line."""
        counts = Counter(op.verdict for op in self.ops)
        said = ", ".join(f"{counts[v]} {v}" for v in reversed(STRENGTH) if counts[v]) or "no ops"
        overflows = Counter(op.bound.overflow for op in self.ops if op.overflow and op.bound is not None)
        bounds = (
            ", ".join(f"{overflows[o]} {o}" for o in ("will", "may", "cannot") if overflows[o])
            or "none computes floats"
        )
        return (
            f"{self.name or 'network'} on {self.first.label} and {self.second.label}: {self.verdict} ({said});"
            f" overflow: {bounds}"
        )

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yields the rows under HEAD: ops that may differ, then ops that will overflow, and the first op that may."""
        shown = self.divergent
        for op in shown:
            yield op.verdict, op.node.where, f"{op.field}: {op.values[0]} and {op.values[1]}", op.why, op.overflow
        left = [op for op in self.overflowing if op not in shown]
        will = [op for op in left if op.bound is not None and op.bound.overflow == "will"]
        may = [op for op in left if op not in will]
        for op in [*will, *may[:1]]:
            more = f", and {len(may) - 1} ops after it" if op in may and len(may) > 1 else ""
            yield op.verdict, op.node.where, "", "", op.overflow + more

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        pair = [self.first.name, self.second.name]
        return {"model": self.name, "targets": pair, "verdict": self.verdict, "ops": [op.record() for op in self.ops]}

    def to_json(self) -> str:
        return json.dumps(self.record(), indent=2, ensure_ascii=False)

    def __str__(self) -> str:
        blocks = [self.summary]
        for verdict, where, field, why, overflow in self.rows():
            lines = [f"{verdict}: {where}", f"  {why} ({field})" if why else "", f"  {overflow}" if overflow else ""]
            blocks.append("\n".join(line for line in lines if line))
        return "\n\n".join(blocks)

    def __repr__(self) -> str:
        return f"<DivergenceReport {self.summary}>"

    def _repr_html_(self) -> str:
        return f"<p><b>{escape(self.summary)}</b></p>{html_table(HEAD, list(self.rows()))}"


def predict_fp16_divergence(
    model: Model,
    first: str | Chip,
    second: str | Chip,
    *,
    ranges: Mapping[str, Any] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> DivergenceReport:
    """Predicts which ops may give different numbers on two chips, and which may overflow. Nothing is run or compiled.

    Verdicts, strongest first. "saturation": one chip makes numbers above a limit infinite in a slice. The bounds of the
    op may rule infinity out. "round1": one chip rounds once more. Examples are a squared reduction, Winograd's
    transforms of a 3x3 convolution, and scaled weights, if the other chip adds products of bytes as integers. "ulp1":
    one chip adds a reduction in another order. "none": no known fact of the two chips differs.

    ranges: by name of an input: (smallest, largest), or an array of the input's shape with its exact values, or samples
    with an extra first axis. An input without a range may hold any finite fp16. The bounds of the ops follow from the
    ranges and are never too narrow: an op that "cannot" overflow does not, in the engine's arithmetic as Hexane knows
    it; one that "will" does for all inputs in the ranges. Params have their current values. model, input_shapes: see
    `preflight`. Raises Error for targets that are no chips, and for ranges of another shape than the input's.
    """
    a, b = load_chip(first), load_chip(second)
    opened = sources.open_network(model, where="predict_fp16_divergence")
    graph = opened.graph(input_shapes)
    bounds = {bound.number: bound for bound in analyse(graph, ranges, bool(a.gates.winograd or b.gates.winograd))}
    ops = tuple(
        _judge(number, node, a, b, bounds.get(number))
        for number, node in enumerate(graph.nodes)
        if node.op not in LEAVES
    )
    return DivergenceReport(opened.name or _named(graph), a, b, ops)


def _named(graph: Graph) -> str:
    return "" if graph.name == "graph" else graph.name


def _judge(number: int, node: Node, a: Chip, b: Chip, bound: Bound | None) -> Judged:
    size = None if bound is None else max(abs(bound.low), abs(bound.high))
    verdict = fp16_divergence(node.op, a, b, begin=_begin(node), largest=size, extent=_extent(node))
    if verdict == "saturation":
        field, why = (
            "hazards.width_slice_limit",
            "a slice that begins inside its last axis makes numbers above the limit infinite",
        )
    elif _multiplies_bytes(node) and a.gates.double_int8 != b.gates.double_int8:
        verdict, field, why = (
            "round1",
            "gates.double_int8",
            "one adds these products of bytes as integers, the other rounds the scaled weights",
        )
    elif has_winograd_s_shape(node) and a.gates.winograd != b.gates.winograd:
        verdict, field, why = (
            "round1",
            "gates.winograd",
            "one computes this 3x3 convolution by Winograd's transforms, which it rounds",
        )
    elif verdict == "round1" or (
        _squares_a_reduction(node) and a.gates.square_after_reduction != b.gates.square_after_reduction
    ):
        verdict, field, why = (
            "round1",
            "gates.square_after_reduction",
            "one squares the reduction without rounding it first",
        )
    elif verdict == "ulp1":
        field, why = (
            "extents.reduction_route",
            "from this extent on a reduction is transposed, and added in another order",
        )
    else:
        return Judged(number, node, "none", "", (None, None), "", bound)
    group, name = field.split(".")
    return Judged(
        number, node, verdict, field, (getattr(getattr(a, group), name), getattr(getattr(b, group), name)), why, bound
    )


def _begin(node: Node) -> Sequence[int]:
    if node.op not in SLICES:
        return ()
    begin: Sequence[int] = node.attrs["crop_width"][:1] if node.op == "crop" else node.attrs["begin"]
    return begin


def _extent(node: Node) -> int | None:
    """Returns how many elements a reduction adds; None if the op has no axes."""
    value = node.inputs[0] if node.inputs else None
    if value is None:
        return None
    axes = node.attrs.get("axes", (node.attrs["axis"],) if node.op in ("softmax", "log_softmax") else None)
    return None if axes is None else prod(value.shape[a] for a in axes)


def _multiplies_bytes(node: Node) -> bool:
    """True if both operands are int8 without zero points: one operand has a single scale, and the other operand is
    constant."""
    if node.op not in ("conv", "linear", "matmul"):
        return False
    makers = []
    for value in node.inputs[:2]:
        while value is not None and value.node.op in ("reshape", "transpose"):
            value = value.node.inputs[0]
        makers.append(made_by(value, "dequantize"))
    x, weight = makers
    if x is None or weight is None:
        return False
    for maker in (x, weight):
        q, scale, zero = maker.inputs
        if q is None or scale is None or q.dtype.name != "int8" or scale.node.data is None:
            return False
        if zero is not None and (zero.node.data is None or zero.node.data.any()):
            return False
    (q, scale, _), (w, _, _) = x.inputs, weight.inputs
    return scale is not None and scale.type.size == 1 and w is not None and w.node.data is not None


def _squares_a_reduction(node: Node) -> bool:
    ops = [v.node.op for v in node.inputs if v is not None]
    return (node.op == "square" or (node.op == "mul" and ops[0] == ops[1])) and ops[0].startswith("reduce_")


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None

"""Predicts a chip's verdicts on a network from the graph alone: nothing is compiled, and no chip is needed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hexane import sources
from hexane.graph import Graph, Node, Port, Value
from hexane.ops import LEAVES
from hexane.passes.legalize.to_fp16 import lost_factors, may_lose_factors
from hexane.passes.repair import repair as repaired
from hexane.passes.repair import without_repair
from hexane.passes.retarget import among_others, border_of, operands_of_form, retarget, rewritten
from hexane.passes.retarget.borders import BORDER, BORDERS, FIT
from hexane.passes.retarget.view_chains import VIEWS, has_too_many_axes
from hexane.passes.retarget.views import ROUNDING, join_views
from hexane.pipeline import divide, engine_form
from hexane.report.report import Entry, Report
from hexane.stages.segments.devices import COMPUTING
from hexane.stages.segments.join import SegmentParts
from hexane.targets import Chip, Verdict
from hexane.targets.floors import op_unit
from hexane.targets.query import load_chip
from hexane.validate import judge_all
from hexane.validate.constants import FOLDED
from hexane.validate.host_numbers import host_numbers
from hexane.validate.run_time_scales import REASON, scales_of_run_time

IN_PIECES = "cut with the pieces around it"
BY_READERS = "not needed by what is written for its readers"
Model = Any  # a model that hexane.sources.open takes


def preflight(
    model: Model,
    target: str | Chip,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    repair: bool = True,
) -> Report:
    """Predicts for each op of a network whether a chip runs it: native, decomposed, oversize, on the host or rejected,
    with rule and source.

    model: anything that `hx.compile` opens, such as a Graph, tensors (one, a sequence, or a mapping of names), the path
    of MIL text (.mil) or of a netplist (.plist), or an ONNX path, bytes or ModelProto. The input_shapes fix its free
    dims. repair: as in hx.Options. target: a chip in any spelling. Raises Error for a target that is no chip and for a
    model without fixed shapes.
    """
    chip = load_chip(target)
    opened = sources.open_network(model, where="preflight")
    given = opened.graph(input_shapes)
    return examine(given if repair else without_repair(given), [chip], opened.name)[0]


def examine(model: Graph, chips: Sequence[Chip], name: str = "") -> list[Report]:
    """Returns a report on a graph per chip. Chips with equal verdicts share their entries, unless segments decide some
    verdicts. The entries are the ops after `repair`."""
    model = repaired(model, chips[0]) if chips else model
    nodes = [node for node in model.nodes if node.op not in LEAVES]
    by_segments = scales_of_run_time(model.nodes)
    loses = any(may_lose_factors(node) for node in nodes)
    shared: dict[tuple[int, str], tuple[Entry, ...]] = {}
    reports = []
    for chip, verdicts in zip(chips, judge_all(model.nodes, chips, rewritten), strict=True):
        borders = any(_may_be_borders(node, verdict, chip) for node, verdict in zip(nodes, verdicts, strict=True))
        key = id(verdicts), chip.name if by_segments or borders else ""
        if key not in shared:
            known = _written_without(model, nodes, _joined(model, nodes, verdicts, chip), chip)
            known = list(map(among_others(model, chip), nodes, known))
            known = _within_fp16(model, nodes, known)
            known = _within_fp16_as_written(model, nodes, known, chip)
            known = _with_lost_factors(model, nodes, known, chip) if loses else known
            known = _apart_from_products(model, nodes, known, chip) if by_segments else known
            known = _left_by_borders(model, nodes, known, chip) if borders else known
            shared[key] = tuple(map(Entry, range(len(nodes)), nodes, known))
        reports.append(Report(name or model.name, chip, shared[key], model))
    return reports


def _joined(model: Graph, nodes: Sequence[Node], verdicts: Sequence[Verdict], chip: Chip) -> Sequence[Verdict]:
    """Returns the verdicts. Views with too many axes become decomposed if neighbouring views cancel them."""
    joined = join_views(model, chip)
    if joined is model:
        return verdicts
    left = {(node.op, node.types, node.sources) for node in joined.nodes if has_too_many_axes(node, chip)}
    how = "joined with the views around it"

    def told(node: Node, verdict: Verdict) -> Verdict:
        known = node.op not in (*VIEWS, *ROUNDING, "transpose") or not has_too_many_axes(node, chip)
        if known or verdict.verdict == "native" or (node.op, node.types, node.sources) in left:
            return verdict
        return replace(verdict, verdict="decomposed", form=how, reason=f"{how}: {verdict.reason}", change="")

    return [told(node, verdict) for node, verdict in zip(nodes, verdicts, strict=True)]


def _written_without(model: Graph, nodes: Sequence[Node], verdicts: Sequence[Verdict], chip: Chip) -> Sequence[Verdict]:
    """Returns the verdicts. A refused view becomes decomposed if no consumer's form reads it: a form may begin with the
    inverse of the view."""
    refused = {node for node, verdict in zip(nodes, verdicts, strict=True) if node.op in VIEWS and not verdict.runs} - {
        port.value.node for port in model.outputs
    }
    if not refused:
        return verdicts
    of_model = frozenset(model.nodes)
    for node, verdict in zip(nodes, verdicts, strict=True):
        if reads := {v.node for v in node.inputs if v is not None} & refused:
            form = operands_of_form(node, chip, of_model) if verdict.verdict == "decomposed" else reads
            refused -= form
    return [
        replace(verdict, verdict="decomposed", form=BY_READERS, reason=f"{BY_READERS}: {verdict.reason}", change="")
        if node in refused
        else verdict
        for node, verdict in zip(nodes, verdicts, strict=True)
    ]


def _within_fp16(model: Graph, nodes: Sequence[Node], verdicts: Sequence[Verdict]) -> Sequence[Verdict]:
    """Returns the verdicts. Nodes whose numbers would exceed fp16 are on the host."""
    wide = host_numbers(model.nodes, _running(nodes, verdicts), model.use_counts())
    if not wide:
        return verdicts

    def told(node: Node, verdict: Verdict) -> Verdict:
        reason = wide.get(id(node))
        if reason is None or op_unit(node.op) not in COMPUTING:
            return verdict  # moving elements is exact on both devices
        return Verdict(verdict="host", reason=reason, rule="range of fp16", source="hexane", status="inferred")

    return [told(node, verdict) for node, verdict in zip(nodes, verdicts, strict=True)]


def _within_fp16_as_written(
    model: Graph, nodes: Sequence[Node], verdicts: Sequence[Verdict], chip: Chip
) -> Sequence[Verdict]:
    """Returns the verdicts. A node is on the host if a part of its form is, because the numbers would exceed fp16: a
    batch norm may become a product beyond fp16 and a sum."""
    forms = [node for node, verdict in zip(nodes, verdicts, strict=True) if verdict.runs and verdict.form]
    if not any(op_unit(node.op) in COMPUTING for node in forms):
        return verdicts
    places = _places(nodes)
    retargeted = retarget(model.annotated(taps=_marks(places)), chip)
    (judged,) = judge_all(retargeted.nodes, [chip], rewritten)
    computed = [node for node in retargeted.nodes if node.op not in LEAVES]
    wide = host_numbers(retargeted.nodes, _running(computed, judged), retargeted.annotated(taps=()).use_counts())
    order = {node: i for i, node in enumerate(retargeted.nodes) if id(node) in wide and op_unit(node.op) in COMPUTING}
    if not order:
        return verdicts
    became = _marked(retargeted)

    def told(node: Node, verdict: Verdict) -> Verdict:
        if not verdict.runs or verdict is FOLDED or op_unit(node.op) not in COMPUTING:
            return verdict
        parts = [one for one in _written_for(node, places, became) if one in order]
        if not parts:
            return verdict
        widest = min(parts, key=order.__getitem__)
        reason = wide[id(widest)] if widest.op == node.op else f"{widest.op} in it: {wide[id(widest)]}"
        return Verdict(verdict="host", reason=reason, rule="range of fp16", source="hexane", status="inferred")

    return [told(node, verdict) for node, verdict in zip(nodes, verdicts, strict=True)]


def _places(nodes: Sequence[Node]) -> dict[Value, str]:
    return {value: f"{i}.{value.output}" for i, node in enumerate(nodes) for value in node.values}


def _marks(places: Mapping[Value, str]) -> tuple[Port, ...]:
    """Returns taps that identify a value in a graph rewritten from this one."""
    return tuple(Port(place, value) for value, place in places.items())


def _marked(graph: Graph) -> dict[str, Node]:
    return {port.name: port.value.node for port in graph.taps}


def _written_for(node: Node, places: Mapping[Value, str], became: Mapping[str, Node]) -> set[Node]:
    """Returns the nodes of a rewritten graph that replace a node. Taps mark the replacements of its operands and
    results."""
    ends = {became.get(places[v]) for v in node.inputs if v is not None and v in places}
    written, ahead = set[Node](), [became[places[v]] for v in node.values if places[v] in became]
    while ahead:
        one = ahead.pop()
        if one not in written and one not in ends and one.op not in LEAVES:
            written.add(one)
            ahead.extend(v.node for v in one.inputs if v is not None)
    return written


def _with_lost_factors(
    model: Graph, nodes: Sequence[Node], verdicts: Sequence[Verdict], chip: Chip
) -> Sequence[Verdict]:
    """Returns the verdicts, with the compiler's warnings about factors that keep few digits in fp16 or overflow it."""
    divided, segments = divide(model, chip)
    lost = list[tuple[str, frozenset[str], str]]()
    for segment, piece in zip(segments, SegmentParts(divided, segments).graphs(), strict=True):
        for said in lost_factors(engine_form(piece, chip).decisions) if segment.device == "ane" else ():
            op, _, places = said.node.partition(" at ")
            lost.append((op, frozenset(places.split(", ")), said.reason))

    def told(node: Node, verdict: Verdict) -> Verdict:
        reasons = [why for op, places, why in lost if op == node.op and places.issuperset(node.sources)]
        if not reasons or not verdict.runs:
            return verdict
        return replace(verdict, reason="; ".join(filter(None, (verdict.reason, *dict.fromkeys(reasons)))))

    return [told(node, verdict) for node, verdict in zip(nodes, verdicts, strict=True)]


def _may_be_borders(node: Node, verdict: Verdict, chip: Chip) -> bool:
    """True if the engine runs the op in a form that may slice and join tensors on the host."""
    return verdict.runs and verdict.verdict != "native" and verdict is not FOLDED and bool(border_of(node, chip))


def _left_by_borders(model: Graph, nodes: Sequence[Node], verdicts: Sequence[Verdict], chip: Chip) -> Sequence[Verdict]:
    """Returns the verdicts. An op becomes the host's if all its parts are on the host: a border, or an op between
    borders. A slice or view of a tensor in pieces is decomposed if no part of this op is on the host. The segments
    decide."""
    with_borders = [node for node, verdict in zip(nodes, verdicts, strict=True) if _may_be_borders(node, verdict, chip)]
    if not with_borders:
        return verdicts
    places = _places(nodes)
    divided, segments = divide(model.annotated(taps=_marks(places)), chip)
    device = {node: segment.device for segment in segments for node in segment.nodes}
    became, left = _marked(divided), set[Node]()
    of_host = {
        source for segment in segments if segment.device == "host" for one in segment.nodes for source in one.sources
    }
    for node in with_borders:
        where = {device[one] for one in _written_for(node, places, became) if one in device}
        if where == {"host"}:
            left.add(node)

    def told(node: Node, verdict: Verdict) -> Verdict:
        if not verdict.runs and node.op in BORDERS and node not in device and of_host.isdisjoint(node.sources):
            return replace(
                verdict, verdict="decomposed", form=IN_PIECES, reason=f"{IN_PIECES}: {verdict.reason}", change=""
            )
        if node not in left:
            return verdict
        large = border_of(node, chip)
        reason = f"{BORDER}: {large}; the ops between go with them: {verdict.reason}"
        return replace(verdict, verdict="host", form="", reason=reason, change=f"{FIT}: {large}")

    return [told(node, verdict) for node, verdict in zip(nodes, verdicts, strict=True)]


def _apart_from_products(
    model: Graph, nodes: Sequence[Node], verdicts: Sequence[Verdict], chip: Chip
) -> Sequence[Verdict]:
    """Returns the verdicts. A node is on the host if no product of the engine is next to it. The node's segment tells,
    because neighbours may be written as other ops."""
    _, segments = divide(model, chip)
    where = {node: segment.device for segment in segments for node in segment.nodes}
    kept = [node for node, device in where.items() if device == "ane"]
    as_they_are = {(node.op, node.types, node.sources) for node in kept}
    sources = {source for node in kept for source in node.sources}

    def told(node: Node, verdict: Verdict) -> Verdict:
        if not verdict.runs or verdict is FOLDED or where.get(node) == "ane":
            return verdict
        if node not in where and (node.op, node.types, node.sources) in as_they_are:
            return verdict
        if verdict.verdict != "native" and not sources.isdisjoint(node.sources):
            return verdict
        return Verdict(
            verdict="host", reason=REASON, rule="scales of run time", source="hexane", status="inferred",
            change="quantise with scales from calibration (static), or compile the network of floats",
        )  # fmt: skip

    return [told(node, verdict) for node, verdict in zip(nodes, verdicts, strict=True)]


def _running(nodes: Sequence[Node], verdicts: Sequence[Verdict]) -> Callable[[Node], bool]:
    """Returns a predicate: by these verdicts, the engine computes the node at run time."""
    runs = {id(node) for node, verdict in zip(nodes, verdicts, strict=True) if verdict.runs and verdict is not FOLDED}
    return lambda node: id(node) in runs

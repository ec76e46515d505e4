"""Divides a network into segments. A segment runs on one device without interruption; segments run one after another.

       engine 0    host 1     engine 2
    x -> conv -> relu |-> topk -> gather |-> linear -> y

Each node gets a level: an even one on the engine, an odd one on the host, and at least the level of its operands. The
nodes of a level are a segment. So the number of segments is one more than the largest number of changes between engine
and host on a path. An op that the engine runs alone (an attention) is a segment after its level. A segment with more
weights than the system runs on the engine is split.
"""

from collections.abc import Iterator, Sequence, Set

from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.graph.printer import size_text
from hexane.passes.legalize.save_states import save_states
from hexane.passes.overwrites import overwrites
from hexane.passes.retarget.borders import BORDER, is_border
from hexane.program import Segment, SegmentPort
from hexane.stages.bufferize.order import schedule
from hexane.stages.segments.crossings import crosses, crossing_type, is_leaf
from hexane.stages.segments.devices import COMPUTING, Devices, Programs, assign_devices, type_between
from hexane.stages.segments.levels import pieces_of, predecessors
from hexane.stages.segments.program_size import within_limit
from hexane.targets import Chip
from hexane.targets.floors import op_unit
from hexane.targets.placement import placement
from hexane.validate.hazards import hazard
from hexane.validate.run_time_scales import REASON

TO_HOST = "to the host: "  # The first words of the reason for ops that move elements.
FEWER = f"{TO_HOST}it gives the same bits there, and fewer values cross this way"


def segment(graph: Graph, chip: Chip, programs: Programs | None = None) -> tuple[Graph, tuple[Segment, ...]]:
    """Returns the graph with decisions, and its segments in execution order. programs: the limits of the engine's
    programs; None if the CPU, which has no limits, runs them instead.

    Every node that computes something is in one segment. Constants belong to their readers. No segment needs a later
    segment.
    """
    graph = save_states(graph, chip)
    devices = assign_devices(graph, chip)
    if programs is not None:
        refused = programs.refused(graph, [node for node in devices.nodes if devices.verdicts[id(node)].runs])
        devices = assign_devices(graph, chip, refused) if refused else devices
    segments = _divided(graph, devices)
    return graph.decided(*_decisions(segments, devices, chip)), segments


def _divided(graph: Graph, devices: Devices) -> tuple[Segment, ...]:
    readers = overwrites(graph).readers
    order = [node for node in (schedule(graph) if readers else graph.nodes) if not is_leaf(node)]
    if len(set(devices.device.values())) == 1 and not devices.alone:
        pieces = [order]
    else:
        pieces = pieces_of(graph, order, predecessors(order, readers), devices)
    small, cut = _small_enough(pieces, devices)
    return tuple(_segments(graph, small, devices, cut))


def _small_enough(pieces: Sequence[list[Node]], devices: Devices) -> tuple[list[list[Node]], set[int]]:
    """Splits segments of the engine to the size that systems run on it. Returns the pieces, and the id of the first
    node after each split."""
    most = placement().most_program_bytes
    small: list[list[Node]] = []
    cut: set[int] = set()
    for piece in pieces:
        runs_on_engine = devices.device[id(piece[0])] == "ane"
        parts = list(within_limit(piece, most)) if runs_on_engine else [piece]
        cut.update(id(part[0]) for part in parts[1:])
        small += parts
    return small, cut


def _segments(graph: Graph, pieces: Sequence[Sequence[Node]], devices: Devices, cut: Set[int]) -> Iterator[Segment]:
    home = {id(node): i for i, piece in enumerate(pieces) for node in piece}
    wanted: dict[Value, dict[int, None]] = {}  # value -> the segments, except its own, that read it
    for i, piece in enumerate(pieces):
        for node in piece:
            for value in node.inputs:
                if value is not None and not _in_memory(value) and home.get(id(value.node)) != i:
                    wanted.setdefault(value, {})[i] = None
    ports = {port.value for port in graph.outputs}
    names = _names(graph, wanted.keys() | ports)
    for i, piece in enumerate(pieces):
        device = devices.device[id(piece[0])]
        inputs, outputs = [], []
        for value in dict.fromkeys(v for node in piece for v in node.inputs if v is not None):
            if i in wanted.get(value, ()):
                kind = crossing_type(value.type) if device == "ane" else type_between(devices, value)
                inputs.append(SegmentPort(names[value], value, kind, home.get(id(value.node))))
        for value in (v for node in piece for v in node.values):
            if value in wanted or value in ports:
                readers = tuple(wanted.get(value, ()))
                kind = crossing_type(value.type) if device == "ane" else value.type
                outputs.append(SegmentPort(names[value], value, kind, i, readers))
        moved = tuple(node for node in piece if id(node) in devices.moved)
        why = "" if i == 0 else _too_large() if id(piece[0]) in cut else _why(piece, devices, inputs)
        yield Segment(i, device, tuple(piece), tuple(inputs), tuple(outputs), why, moved)


def _too_large() -> str:
    facts = placement()
    return (
        f"since {facts.limit_since} a program with more than {size_text(facts.most_program_bytes)} of weights runs on"
        " the CPU"
    )


def _in_memory(value: Value) -> bool:
    """True if the value is read in place, without a port: a constant, param or state."""
    return value.node.op != "input" and not crosses(value)


def _names(graph: Graph, wanted: Set[Value]) -> dict[Value, str]:
    """Returns a name for each of these values, as in the printed graph: the input's own name, else %number."""
    names, number = {}, 0
    for node in graph.nodes:
        for value in node.values:
            if value in wanted:
                names[value] = str(node.attrs["name"]) if node.op == "input" else f"%{number}"
            number += node.op != "input"
    return names


def _why(piece: Sequence[Node], devices: Devices, inputs: Sequence[SegmentPort]) -> str:
    """Returns why a segment, which is not the first, is separate from the previous segment."""
    first = piece[0]
    if id(first) in devices.alone:
        return devices.alone[id(first)].reason
    if devices.device[id(first)] == "host":
        forced = next((n for n in piece if not devices.verdicts[id(n)].runs or id(n) in devices.refused), first)
        reason = devices.refused.get(id(forced), devices.verdicts[id(forced)].reason)
        return f"{forced.where} does not run on the engine: {reason}"
    sources = [str(source) for source in sorted({port.source for port in inputs if port.source is not None})]
    if len(sources) > 1:
        return f"it reads what segments {', '.join(sources[:-1])} and {sources[-1]} compute"
    return f"it reads what segment {sources[0]} computes" if sources else "another device runs before it"


def _decisions(segments: Sequence[Segment], devices: Devices, chip: Chip) -> Iterator[Decision]:
    """Yields a decision for each node not simply on the engine. host: the host computes the node. border: the host
    cuts, joins or views tensors for an op that the engine computes in pieces. moved: the host runs it although the
    engine could."""
    engine_sources = {source for s in segments if s.device == "ane" for node in s.nodes for source in node.sources}
    for part in segments:
        first = part.nodes[0]
        if part.index:
            cut = devices.alone.get(id(first))
            reason = f"segment {part.index} on the {'engine' if part.device == 'ane' else 'host'}: {part.why}"
            yield Decision("segment", first.where, "cut", reason, cut.source if cut else "hexane")
        for node in part.nodes:
            verdict = devices.verdicts[id(node)]
            if id(node) in devices.moved:
                yield Decision("segment", node.where, "moved", FEWER)
            elif (why := devices.refused.get(id(node))) is not None:
                if op_unit(node.op) in COMPUTING or why == REASON:
                    yield Decision("segment", node.where, "host", why)
                else:
                    yield Decision("segment", node.where, "moved", f"{TO_HOST}{why}")
            elif verdict.verdict != "native" and is_border(node, chip):
                # The op whose tensors this node cuts or joins runs on the engine ("border") or on the host ("host").
                kind = "host" if engine_sources.isdisjoint(node.sources) else "border"
                reason = f"{BORDER}: {verdict.reason}"
                yield Decision("segment", node.where, kind, reason, f"{verdict.source}, {verdict.status}")
            elif part.device == "host":
                yield Decision("segment", node.where, "host", verdict.reason, f"{verdict.source}, {verdict.status}")
            elif danger := hazard(node, chip):
                yield Decision("segment", node.where, "hazard", danger.reason, danger.source)

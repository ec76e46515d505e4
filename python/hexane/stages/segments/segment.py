"""Divides a network into segments. A segment runs on one device without interruption; segments run one after another.

       engine 0    host 1     engine 2
    x -> conv -> relu |-> topk -> gather |-> linear -> y

Each node gets a level: an even one on the engine, an odd one on the host, and at least the level of its operands. The
nodes of a level are a segment. So the number of segments is one more than the largest number of changes between engine
and host on a path. An op that the engine runs alone (an attention) is a segment after its level. A segment with more
weights than the system runs on the engine is split.
"""

from collections.abc import Iterator, Mapping, Sequence, Set

from hexane.graph import Graph, Node, TensorType, Value
from hexane.graph.decisions import Decision
from hexane.graph.printer import size_text
from hexane.passes.legalize.save_states import save_states
from hexane.passes.overwrites import overwrites
from hexane.passes.retarget.borders import BORDER, is_border
from hexane.program import Segment, SegmentPort
from hexane.stages.bufferize.order import schedule
from hexane.stages.segments.devices import COMPUTING, Devices, Programs, assign_devices, crosses, crossing_type, is_leaf
from hexane.stages.segments.program_size import within_limit
from hexane.targets import Chip
from hexane.targets.legality import op_unit
from hexane.targets.placement import placement
from hexane.validate.hazards import hazard
from hexane.validate.run_time_scales import REASON

TO_HOST = "to the host: "  # The first words of the reason for ops that move elements.
FEWER = f"{TO_HOST}it gives the same bits there, and fewer values cross this way"
Level = tuple[int, int]  # (level, 0), or (level, n) for the n-th op that runs alone after this level, from 1 on.
Group = tuple[Level, int]  # The level, and the number of a node that runs alone or of a marked program; else -1.


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
        pieces = _pieces(graph, order, _before(order, readers), devices)
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


def _pieces(
    graph: Graph, order: Sequence[Node], before: Mapping[int, list[Node]], devices: Devices
) -> list[list[Node]]:
    """Returns the nodes of each level, and each op that runs alone, in execution order."""
    levels = min(
        (_levels(order, before, devices, start) for start in (1, -1)), key=lambda by_node: len(set(by_node.values()))
    )
    _move_later(graph, order, before, devices, levels)
    if devices.marked:
        _run_beside(order, before, devices, levels)
    groups: dict[Group, list[Node]] = {}
    home: dict[int, Group] = {}
    for node in order:
        key = id(node)
        own = key if key in devices.alone else devices.marked.get(key, -1) if devices.device[key] == "ane" else -1
        home[key] = levels[key], own
        groups.setdefault(home[key], []).append(node)
    # The sort is stable: independent groups of one level keep the order of the graph.
    by_level = sorted(groups, key=lambda key: key[0])
    return [groups[key] for key in _operands_first(by_level, groups, home, before)]


def _operands_first(
    order: Sequence[Group],
    groups: Mapping[Group, list[Node]],
    home: Mapping[int, Group],
    before: Mapping[int, list[Node]],
) -> list[Group]:
    """Returns the groups in topological order within each level: a marked program may read a result of another program
    of the same level."""
    result: dict[Group, None] = {}

    def add(key: Group, ahead: tuple[Group, ...]) -> None:
        needed = dict.fromkeys(home[id(n)] for node in groups[key] for n in before[id(node)])
        for other in needed:
            if other[0] == key[0] and other != key and other not in result and other not in ahead:
                add(other, (*ahead, key))
        result[key] = None

    for key in order:
        if key not in result:
            add(key, ())
    return list(result)


def _before(order: Sequence[Node], readers: Mapping[int, list[Node]]) -> dict[int, list[Node]]:
    """Returns the predecessors of each node: its operands, and for a write the readers of the old contents."""
    result = {}
    for node in order:
        operands = [v.node for v in node.inputs if v is not None]
        result[id(node)] = [n for n in dict.fromkeys((*operands, *readers.get(id(node), ()))) if not is_leaf(n)]
    return result


def _levels(order: Sequence[Node], before: Mapping[int, list[Node]], devices: Devices, start: int) -> dict[int, Level]:
    """Returns the lowest possible level of each node. start: the lowest level of the host."""
    levels: dict[int, Level] = {}
    for node in order:
        key = id(node)
        host, alone = devices.device[key] == "host", key in devices.alone
        least = (start, 0) if host else (0, int(alone))
        for earlier in before[key]:
            level, later = levels[id(earlier)]
            if host:
                least = max(least, (level if level % 2 else level + 1, 0))
            elif level % 2:
                least = max(least, (level + 1, int(alone)))
            elif alone:
                least = max(least, (level, later + 1))
            else:
                least = max(least, (level + 2 if later else level, 0))
        levels[key] = least
    return levels


def _move_later(
    graph: Graph, order: Sequence[Node], before: Mapping[int, list[Node]], devices: Devices, levels: dict[int, Level]
) -> None:
    """Moves nodes to the level of their readers if no more values cross then, so that values needed late are computed
    late. A node that should not move alone moves with the nodes that only it needs, if fewer values cross then."""
    after: dict[int, list[Node]] = {}
    for node in order:
        for earlier in before[id(node)]:
            after.setdefault(id(earlier), []).append(node)
    users = graph.users()
    ends: dict[int, int] = {}  # marked program -> its level
    for key, number in devices.marked.items():
        ends[number] = max(ends.get(number, 0), levels[key][0])
    for node in reversed(order):
        key = id(node)
        if key in devices.alone or key not in after:
            continue
        host, here = devices.device[key] == "host", levels[key][0]
        latest = min(_latest(levels[id(n)][0], devices.device[id(n)] == "host", host) for n in after[key])
        latest = min(latest, ends.get(devices.marked.get(key, -1), latest))
        if latest <= here:
            continue
        stays, moves = (_cost([node], users, devices, levels, at) for at in (here, latest))
        if moves <= stays:
            levels[key] = (latest, 0)
            continue
        together = _with_its_own(node, before, after, devices, levels)
        stays, moves = (_cost(together, users, devices, levels, at) for at in (here, latest))
        if moves < stays:
            levels.update((id(n), (latest, 0)) for n in together)


def _with_its_own(
    node: Node,
    before: Mapping[int, list[Node]],
    after: Mapping[int, list[Node]],
    devices: Devices,
    levels: Mapping[int, Level],
) -> list[Node]:
    """Returns a node with all nodes of its level and device that only it needs."""
    result, there = [node], {id(node)}
    for one in result:
        for earlier in before[id(one)]:
            key = id(earlier)
            alike = levels[key] == levels[id(node)] and devices.device[key] == devices.device[id(node)]
            bound = key in there or key in devices.alone or key in devices.marked
            if alike and not bound and all(id(n) in there for n in after[key]):
                result.append(earlier)
                there.add(key)
    return result


def _run_beside(
    order: Sequence[Node], before: Mapping[int, list[Node]], devices: Devices, levels: dict[int, Level]
) -> None:
    """Moves host work that no later program of the engine needs, such as gradients of weights, after the start of the
    next program. The host then computes it while the engine runs that program."""
    needed: set[int] = set()
    for node in reversed(order):
        if devices.device[id(node)] == "ane" or id(node) in needed:
            needed.update(id(n) for n in before[id(node)])
    last = max((levels[id(n)][0] for n in order if devices.device[id(n)] == "ane"), default=0)
    for node in order:
        key = id(node)
        if devices.device[key] == "ane" or key in needed:
            continue
        ready = 1
        for earlier in before[key]:
            level, later = levels[id(earlier)]
            runs_on_engine = devices.device[id(earlier)] == "ane"
            ready = max(ready, level + 1 if runs_on_engine else level - 1 if later else level)
        levels[key] = (ready + 1, 1) if ready < last else (last + 1, 0)


def _latest(reader: int, reader_on_host: bool, host: bool) -> int:
    """Returns the last level of a node that a reader at this level allows."""
    return reader if reader_on_host == host else reader - 1


def _cost(
    nodes: Sequence[Node], users: Mapping[Value, Sequence[Node]], devices: Devices, levels: Mapping[int, Level], at: int
) -> tuple[int, int]:
    """Returns the number and the bytes of values that cross if these nodes are at level `at`. Counts the nodes'
    results, and their operands unless another reader makes the operand cross anyway."""
    own = {id(n) for n in nodes}

    def place(n: Node) -> tuple[int, int]:
        return (at, 0) if id(n) in own else levels[id(n)]

    crossing = [v for n in nodes for v in n.values if crosses(v) and any(place(u) != (at, 0) for u in users.get(v, ()))]
    for value in dict.fromkeys(v for n in nodes for v in n.inputs):
        if (
            value is None
            or not crosses(value)
            or any(place(n) != place(value.node) for n in users[value] if id(n) not in own)
        ):
            continue
        if place(value.node) != (at, 0):
            crossing.append(value)
    return len(crossing), sum(_type_between(devices, v, nodes[0]).bytes for v in crossing)


def _type_between(devices: Devices, value: Value, *readers: Node) -> TensorType:
    """Returns the type in which a value crosses: fp16 if the engine computes or reads it, else the model's type."""
    engine = any(devices.device.get(id(n)) == "ane" for n in (value.node, *readers))
    return crossing_type(value.type) if engine else value.type


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
                kind = crossing_type(value.type) if device == "ane" else _type_between(devices, value)
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

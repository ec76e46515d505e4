"""The level of each node, and the pieces that levels make: nodes move to a later level if fewer values cross then."""

from collections.abc import Mapping, Sequence

from hexane.graph import Graph, Node, Value
from hexane.stages.segments.crossings import crosses, is_leaf
from hexane.stages.segments.devices import Devices, type_between

Level = tuple[int, int]  # (level, 0), or (level, n) for the n-th op that runs alone after this level, from 1 on.
Group = tuple[Level, int]  # The level, and the number of a node that runs alone or of a marked program; else -1.


def pieces_of(
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


def predecessors(order: Sequence[Node], readers: Mapping[int, list[Node]]) -> dict[int, list[Node]]:
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
    return len(crossing), sum(type_between(devices, v, nodes[0]).bytes for v in crossing)

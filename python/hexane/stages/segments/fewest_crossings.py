"""Moves ops that give the same bits on both devices to the host where fewer values cross: a minimum cut."""

from collections.abc import Container, Mapping, Sequence

from hexane.graph import Graph, Node, Value
from hexane.stages.segments.crossings import Device, crosses, crossing_type
from hexane.stages.segments.max_flow import Network


def moved_to_host(
    graph: Graph, nodes: Sequence[Node], device: Mapping[int, Device], free: set[int], alone: Container[int]
) -> set[int]:
    """Returns the free nodes on the host's side of a minimum cut."""
    readers: dict[Value, list[Node]] = {}
    for node in nodes:
        for value in dict.fromkeys(node.inputs):
            if value is not None and crosses(value):
                readers.setdefault(value, []).append(node)
    # A value across a hard cut crosses in any case. A value between two nodes on different fixed devices crosses too.
    open_values = {}
    for value, users in readers.items():
        group = [value.node, *users]
        given = {device[id(n)] for n in group if id(n) not in free}
        source_given = id(value.node) not in free
        decided = source_given and len(given) == 2
        if not decided and any(id(n) in free for n in group) and not any(id(n) in alone for n in group):
            open_values[value] = users
    moved: set[int] = set()
    for values in _components(open_values, free):
        if any(device[id(n)] == "host" for v in values for n in (v.node, *open_values[v])):
            moved |= _cut({v: open_values[v] for v in values}, device, free)
    return moved


def _components(values: Mapping[Value, list[Node]], free: set[int]) -> list[list[Value]]:
    """Returns the values in groups that share no free node, so that each group can be solved separately."""
    touching: dict[int, list[Value]] = {}
    for value, users in values.items():
        for node in (value.node, *users):
            if id(node) in free:
                touching.setdefault(id(node), []).append(value)
    seen: set[Value] = set()
    groups = []
    for first in values:
        if first in seen:
            continue
        seen.add(first)
        group = [first]
        for value in group:  # the loop extends `group`
            for node in (value.node, *values[value]):
                for other in touching.get(id(node), ()):
                    if other not in seen:
                        seen.add(other)
                        group.append(other)
        groups.append(group)
    return groups


def _cut(values: Mapping[Value, list[Node]], device: Mapping[int, Device], free: set[int]) -> set[int]:
    """Returns the free nodes on the host's side of the cheapest cut. The host is the source, the engine the sink.

    A value costs once, however many nodes read it on the other device:

        host --cost--> a --never--> every reader        if it is computed on the host and read on the engine
        every reader --never--> b --cost--> engine      if it is computed on the engine and read on the host

    If the node that computes the value is free, the edge starts or ends at that node instead of at the host or engine.
    """
    more = 1 + sum(crossing_type(v.type).bytes for v in values)  # a crossing costs more than all bytes together
    never = 1 + sum(more + crossing_type(v.type).bytes for v in values)
    network, place = Network(), {}
    for value, users in values.items():
        for node in (value.node, *users):
            if id(node) in free and id(node) not in place:
                place[id(node)] = network.node()

    def at(node: Node) -> int:
        return place.get(id(node), Network.SOURCE if device[id(node)] == "host" else Network.SINK)

    for value, users in values.items():
        cost, maker = more + crossing_type(value.type).bytes, at(value.node)
        if len(users) == 1:
            network.edge(maker, at(users[0]), cost, back=cost)
            continue
        if maker != Network.SINK:
            forth = network.node()
            network.edge(maker, forth, cost)
            for user in users:
                if at(user) != Network.SOURCE:
                    network.edge(forth, at(user), never)
        if maker != Network.SOURCE:
            back = network.node()
            network.edge(back, maker, cost)
            for user in users:
                if at(user) != Network.SINK:
                    network.edge(at(user), back, never)
    side = network.source_side()
    return {key for key, node in place.items() if node in side}

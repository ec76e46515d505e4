"""Programs of the engine that somebody has cut out before: taps of a graph say where each begins and ends."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from hexane.graph import Graph, Node, Port, Value

BEGIN, END = "program begins: ", "program ends: "
LEFT_OUT = "in no program"  # the verdict on an op that was to be in one
HOST = "it is in none of the programs that the graph was cut into"


class Marked(NamedTuple):
    """The nodes of programs, by `id()`, with the number of the program; programs: their names in order."""

    number: Mapping[int, int] = MappingProxyType({})
    names: tuple[str, ...] = ()


def mark_programs(graph: Graph, programs: Mapping[str, tuple[Value, Value]]) -> Graph:
    """The graph with programs, by name: the value that a program begins with and the value that it makes. Everything
    between depends on the first alone, besides params, states and constants. All other ops are the host's."""
    taps = [
        Port(kind + name, value)
        for name, ends in programs.items()
        for kind, value in zip((BEGIN, END), ends, strict=True)
    ]
    return graph.annotated(taps=(*graph.taps, *taps))


def boundaries(graph: Graph) -> frozenset[Value]:
    """The values at which programs begin and end."""
    return frozenset(port.value for port in graph.taps if port.name.startswith((BEGIN, END)))


def marked_programs(graph: Graph) -> Marked:
    """The programs of a graph that has such taps. A node that several could have belongs to the first one."""
    begins = {port.name.removeprefix(BEGIN): port.value for port in graph.taps if port.name.startswith(BEGIN)}
    ends = {port.name.removeprefix(END): port.value for port in graph.taps if port.name.startswith(END)}
    if not begins:
        return Marked()
    number: dict[int, int] = {}
    place = {id(node): i for i, node in enumerate(graph.nodes)}
    for i, (name, begin) in enumerate(begins.items()):
        for node in _between(place, begin.node, ends[name].node):
            number.setdefault(id(node), i)
    return Marked(number, tuple(begins))


def _between(place: Mapping[int, int], begin: Node, end: Node) -> Iterator[Node]:
    """Yields, in order of place (by `id()`), the nodes between `begin` and `end` that depend on `begin`, or on params,
    states and constants alone."""
    needed, stack = dict[int, Node](), [end]
    while stack:
        node = stack.pop()
        if node is not begin and id(node) not in needed:
            needed[id(node)] = node
            stack += [v.node for v in node.inputs if v is not None]
    depends, fixed = {id(begin)}, set()
    for key in sorted(needed.keys() & place.keys(), key=place.__getitem__):
        node = needed[key]
        operands = [id(v.node) for v in node.inputs if v is not None]
        if any(key in depends for key in operands):
            depends.add(id(node))
            yield node
        elif node.op != "input" and all(key in fixed for key in operands):
            fixed.add(id(node))
            yield node

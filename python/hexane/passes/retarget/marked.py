"""Programs of the engine that have been separated already: taps of a graph mark where each begins and ends."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from hexane.graph import Graph, Node, Port, Value

BEGIN, END = "program begins: ", "program ends: "
LEFT_OUT = "in no program"  # the verdict on an op that should be in a program
HOST = "it is in none of the programs that the graph was cut into"


class Marked(NamedTuple):
    """number: the id of each node in a program -> the number of the program. names: of the programs, in order."""

    number: Mapping[int, int] = MappingProxyType({})
    names: tuple[str, ...] = ()


def mark_programs(graph: Graph, programs: Mapping[str, tuple[Value, Value]]) -> Graph:
    """Returns the graph with marks for programs. programs: for each name the value that the program starts from, and
    the value that it computes. The ops of a program may depend on its first value, and on params, states and constants.
    Ops outside the programs run on the host."""
    taps = [
        Port(kind + name, value)
        for name, ends in programs.items()
        for kind, value in zip((BEGIN, END), ends, strict=True)
    ]
    return graph.annotated(taps=(*graph.taps, *taps))


def boundaries(graph: Graph) -> frozenset[Value]:
    """Returns the values at which programs begin and end."""
    return frozenset(port.value for port in graph.taps if port.name.startswith((BEGIN, END)))


def marked_programs(graph: Graph) -> Marked:
    """Returns the programs that the taps of a graph mark. A node that fits several programs belongs to the first."""
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
    """Yields the nodes between `begin` and `end` in the order of `place`. Each node depends on `begin`, or only on
    params, states and constants."""
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

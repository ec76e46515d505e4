"""Programs of the engine that somebody has cut out before: taps of a graph say where each begins and ends."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from hexane.graph import Graph, Node, Port, Value

BEGIN, END = "program begins: ", "program ends: "
HOST = "it is in none of the programs that the graph was cut into"


class Marked(NamedTuple):
    """The nodes of programs, by id, with the number of the program; programs: their names in order."""

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
    return replace(graph, taps=(*graph.taps, *taps))


def marked_programs(graph: Graph) -> Marked:
    """The programs of a graph that has such taps. A node that several could have belongs to the first one."""
    begins = {port.name.removeprefix(BEGIN): port.value for port in graph.taps if port.name.startswith(BEGIN)}
    ends = {port.name.removeprefix(END): port.value for port in graph.taps if port.name.startswith(END)}
    if not begins:
        return Marked()
    number: dict[int, int] = {}
    for i, (name, begin) in enumerate(begins.items()):
        for node in _between(graph.nodes, begin.node, ends[name].node):
            number.setdefault(id(node), i)
    return Marked(number, tuple(begins))


def _between(nodes: Sequence[Node], begin: Node, end: Node) -> Iterator[Node]:
    """Of these nodes those that the end is made of: which depend on the begin, or read params, states and constants
    alone."""
    needed, stack = {id(begin)}, [end]
    while stack:
        node = stack.pop()
        if id(node) not in needed:
            needed.add(id(node))
            stack += [v.node for v in node.inputs if v is not None]
    depends, fixed = {id(begin)}, set()
    for node in nodes:
        if id(node) not in needed or node is begin:
            continue
        operands = [id(v.node) for v in node.inputs if v is not None]
        if any(key in depends for key in operands):
            depends.add(id(node))
            yield node
        elif node.op != "input" and all(key in fixed for key in operands):
            fixed.add(id(node))
            yield node

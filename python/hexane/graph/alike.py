"""Tells whether two graphs have the same results, as the equal layers of a network do."""

from collections.abc import Hashable

from hexane.graph.graph import Graph
from hexane.graph.node import Value


def what_it_says(graph: Graph) -> Hashable:
    """A key that is equal for graphs of the same ops, attributes, constants, params and states, if their inputs and
    outputs have the same names and types in the same order. The key ignores the sources of nodes and the name of the
    graph."""
    number: dict[Value, int] = {}
    rows: list[Hashable] = []
    for node in graph.nodes:
        if node.inputs:
            rows.append((node._kind, tuple([None if v is None else number[v] for v in node.inputs])))
        else:  # constants, params and states are the same objects in both graphs
            rows.append(("input", node.attrs["name"], node.types) if node.op == "input" else node)
        for value in node.values:
            number[value] = len(number)
    outputs = tuple([port._replace(value=number[port.value]) for port in graph.outputs])  # type: ignore[arg-type]
    taken, updates = (tuple([number[v] for v in values]) for values in (graph.inputs, graph.updates))
    return tuple(rows), taken, outputs, updates

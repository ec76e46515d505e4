"""Graphs: `hx.graph`, `hx.parse`, `hx.from_torch`."""

from hexane.graph import Graph
from hexane.sources.format import Format
from hexane.sources.module import fixed_function

GRAPH = Format(
    "graph",
    "a Graph",
    lambda seen: isinstance(seen.value, Graph),
    lambda seen: {"main": fixed_function(lambda: seen.value)},
)

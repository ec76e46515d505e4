"""MIL programs of graphs, and what is read back from them."""

from hexane.emit.mil import Mil
from hexane.emit.mil.write import write_mil
from hexane.graph import Graph
from hexane.graph.printer import print_graph
from hexane.importers.mil import load_mil
from hexane.passes.mil_form import mil_form
from hexane.targets import load_target

H13 = load_target("h13")


def program(graph: Graph) -> Mil:
    """Whatever can be written, though no engine may take it."""
    return write_mil(mil_form(graph, H13))


def assert_read_back(mil: Mil) -> None:
    """The text says the graph: read back, it is the same one."""
    again = load_mil(mil.text, mil.weights)
    assert print_graph(again, sources=False) == print_graph(mil.graph, sources=False)
    for theirs, ours in zip(again.nodes, mil.graph.nodes, strict=True):
        assert theirs.types == ours.types
        if theirs.op == "const":
            assert theirs is ours

"""Graphs in which values are computed again, as programs of this CPU."""

from hexane.graph import Graph
from hexane.memory import Memory
from hexane.pipeline import lower
from hexane.planning.whole import in_whole_tensors
from hexane.program import Program
from hexane.stages.bufferize.order import orders
from hexane.stages.recompute.rematerialize import rematerialized
from hexane.targets import load_target

HOST = load_target("host")


def computed_again(graph: Graph) -> list[Program]:
    """As few bytes live at once as can be, for each order of the lowered graph; none where no copy helps."""
    graph = lower(graph, HOST)
    found = []
    for order in orders(graph):
        for made, first in rematerialized(graph, order, 0):
            found.append(in_whole_tensors(made, HOST, Memory(), first=first))
    return found

"""Writes a graph as a MIL program: text and weights for Apple's compilers."""

from hexane.emit.mil.advice import STAGE, advice, budget
from hexane.emit.mil.constraints import check_constraints
from hexane.emit.mil.write import Mil, MilPort, write_mil
from hexane.graph import Graph
from hexane.passes.mil_form import mil_form
from hexane.targets import Chip

__all__ = ["STAGE", "Mil", "MilPort", "budget", "emit_mil"]


def emit_mil(graph: Graph, chip: Chip, *, labels: bool = True) -> Mil:
    """Returns the program of a graph of users' ops, such as a segment of the engine. The graph is rewritten by
    `mil_form`. labels: values have the model's names of their nodes; without labels, equal programs have equal texts.

    Raises Error for ops that cannot be written, and for programs that the compiler would refuse, with the reason and
    its number in docs/mil.md. The decisions of the program's graph list ops that are slow, or not confirmed to work.
    """
    graph = mil_form(graph, chip)
    check_constraints(graph, chip)
    return write_mil(graph.decided(*advice(graph)), labels=labels)

"""Writes a graph as a MIL program: text and weights that Apple's compilers take."""

from hexane.emit.mil.advice import STAGE, advice, budget
from hexane.emit.mil.constraints import check_constraints
from hexane.emit.mil.write import Mil, MilPort, write_mil
from hexane.graph import Graph
from hexane.passes.mil_form import mil_form
from hexane.targets import Chip

__all__ = ["STAGE", "Mil", "MilPort", "budget", "emit_mil"]


def emit_mil(graph: Graph, chip: Chip, *, labels: bool = True) -> Mil:
    """The program of a graph of users' ops, such as a segment of the engine, rewritten by `mil_form` first. labels:
    values have the names that the model gives their nodes; without them equal programs have equal texts.

    Raises Error for ops that cannot be written, and for programs that the compiler would refuse, with the reason and
    its number in docs/mil.md. The decisions of the program's graph name ops that are slow, or not known to work.
    """
    graph = mil_form(graph, chip)
    check_constraints(graph, chip)
    return write_mil(graph.decided(*advice(graph)), labels=labels)

"""Rewrites a graph in ops of MIL: the passes of "mil", then one op of MIL per node."""

from hexane.graph import Graph
from hexane.lowering.mil_ops import in_mil_ops, with_weights
from hexane.passes.order import run_passes
from hexane.targets import Target


def mil_form(graph: Graph, target: Target) -> Graph:
    """conv(%x, %w, %b)  ->  add(conv(%x, %w), %b reshaped)

    In the result every node is an op of MIL. Float and bool ports are fp16, and attributes are rounded to fp16. Params
    become constants, because the engine keeps weights in its programs. Raises Error for an op that has no form in MIL.
    """
    return in_mil_ops(run_passes("mil", with_weights(graph), target))

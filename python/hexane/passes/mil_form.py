"""A graph in the form that MIL can say: the passes of "mil", then each node an op of MIL."""

from hexane.graph import Graph
from hexane.lowering.mil_ops import in_mil_ops, with_weights
from hexane.passes.order import run_passes
from hexane.targets import Target


def mil_form(graph: Graph, target: Target) -> Graph:
    """conv(%x, %w, %b)  ->  add(conv(%x, %w), %b reshaped)

    A graph whose every node has a form in MIL, with ports in fp16 and attributes rounded to it. Params become
    constants: the engine keeps weights in its programs. Raises Error for ops that cannot be written.
    """
    return in_mil_ops(run_passes("mil", with_weights(graph), target))

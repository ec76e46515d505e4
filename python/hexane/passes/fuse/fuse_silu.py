"""Recognises SiLU written out."""

from hexane.graph import Graph, Node, Value
from hexane.match import made_by
from hexane.ops import OPS, apply
from hexane.targets import Target


def fuse_silu(graph: Graph, target: Target) -> Graph:
    """x * sigmoid(x)  ->  silu(x)"""

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op != "mul" or node.attrs["epilogue"]:
            return None
        for x, gate in (inputs[:2], inputs[1::-1]):
            sigmoid = made_by(gate, "sigmoid")
            if sigmoid is not None and x is not None and sigmoid.inputs[0] == x:
                return apply(OPS["silu"], [x], {}, node.sources)
        return None

    return graph.rewrite(change)

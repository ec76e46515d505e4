"""Computes at once what only depends on constants."""

from hexane.decisions import Decision
from hexane.graph import Graph, Node, Value, make_node
from hexane.ops import LEAVES
from hexane.ops.fold import fold_node
from hexane.targets import Target

__all__ = ["fold", "fold_node"]


def fold(graph: Graph, target: Target) -> Graph:
    """add(const [1.0], const [2.0])  ->  const [3.0]

    Nodes all of whose inputs are constants, unless the result is more than 64 MiB and outgrows them.
    """

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op in LEAVES or any(v is not None and v.node.op != "const" for v in inputs):
            return None
        values = fold_node(make_node(node.op, inputs, node.attrs, node.types, node.sources))
        if values is None:
            size = sum(t.bytes for t in node.types)
            refused.append(Decision("fold", node.where, "kept", f"as a constant it would take {size} bytes"))
        return values

    refused: list[Decision] = []
    return graph.rewrite(change).decided(*refused)

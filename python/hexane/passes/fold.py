"""Computes at once what only depends on constants. Importers and the pass share `fold_node`."""

from hexane.graph import Graph, Node, Value, constant, make_node
from hexane.ops import LEAVES, evaluate

MAX_GROWTH = 1 << 24  # bytes a result may be larger than its inputs: a broadcast scalar stays a broadcast


def fold_node(node: Node) -> tuple[Value, ...] | None:
    """The node's outputs as constants, or None where an input is not constant or the result is much larger than they are."""
    if node.op in LEAVES or not node.inputs:
        return None
    if any(v is not None and v.node.op != "const" for v in node.inputs):
        return None
    known = sum(v.type.bytes for v in node.inputs if v is not None)
    if sum(t.bytes for t in node.types) > known + MAX_GROWTH:
        return None
    results = evaluate(node, [None if v is None else v.node.data for v in node.inputs])
    return tuple(constant(r, node.sources) for r in results)


def fold(graph: Graph) -> Graph:
    """add(const [1.0], const [2.0])  ->  const [3.0]

    Nodes all of whose inputs are constants, unless the result is more than 16 MiB larger than they are.
    """

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op in LEAVES or any(v is not None and v.node.op != "const" for v in inputs):
            return None
        return fold_node(make_node(node.op, inputs, node.attrs, node.types, node.sources))

    return graph.rewrite(change)

"""Computes nodes whose operands are all constants at compile time."""

from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.ops.encodings import is_encoded
from hexane.ops.fold import fold_node
from hexane.targets import Chip, Target

__all__ = ["fold", "fold_node"]


def fold(graph: Graph, target: Target) -> Graph:
    """add(const [1.0], const [2.0])  ->  const [3.0]

    Skips a node whose result has more than 64 MiB and is larger than its operands. For a chip, encoded weights are not
    decoded: its layers read integers with a scale, and indices of a table.
    """
    chip = isinstance(target, Chip)

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        for value in inputs:
            if value is not None and value.node.op != "const":
                return None
        known = node.with_inputs(inputs)
        if chip and is_encoded(known):
            return None
        values = fold_node(known)
        if values is None:
            size = sum(t.bytes for t in node.types)
            refused.append(Decision("fold", node.where, "kept", f"as a constant it would take {size} bytes"))
        return values

    refused: list[Decision] = []
    return graph.rewrite(change).decided(*refused)

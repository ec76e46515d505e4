"""Merges the leading axes of tensors that have more axes than the chip supports."""

from math import prod

from hexane.graph import Graph, Node, Value, make_node
from hexane.graph.decisions import Decision
from hexane.ops.records.engine.planar import WITH_SLOTS, WITHOUT
from hexane.passes.engine.chain import slots_of
from hexane.passes.engine.legalize.slots import layer
from hexane.targets import Chip

STAGE = "fold_axes"
_EACH = ("anec.neuron", "anec.cast", *(f"anec.{name}" for name in (*WITH_SLOTS, *WITHOUT)))


def fold_axes(graph: Graph, chip: Chip) -> Graph:
    """anec.neuron(%x) : rank 6  ->  anec.reshape(anec.neuron(anec.reshape(%x) : rank 5)) : rank 6

    Only elementwise layers without broadcasting are rewritten. Reshapes between two rewritten layers cancel.
    """
    decisions: list[Decision] = []
    most = chip.extents.rank

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        shape = node.types[0].shape
        if len(shape) <= most or slots_of(node):
            return None
        given = [v for v in inputs if v is not None]
        if any(v.shape not in (shape, ()) for v in given):
            return None
        folded = (prod(shape[: len(shape) - most + 1]), *shape[len(shape) - most + 1 :])
        operands = [layer("reshape", [v], node.sources, shape=folded) if v.shape else v for v in given]
        types = tuple(type(t)(t.dtype, folded) for t in node.types)
        result = make_node(node.op, operands, node.attrs, types, node.sources).values[0]
        decisions.append(
            Decision(STAGE, node.where, "rewritten", f"{len(shape)} axes, the chip takes {most}", "guide ch22")
        )
        return (layer("reshape", [result], node.sources, shape=shape),)

    return graph.rewrite(change, _EACH).decided(*decisions)

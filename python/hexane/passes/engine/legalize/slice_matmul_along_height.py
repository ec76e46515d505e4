"""Splits matrix products along their rows if their tensors exceed the chip's fast memory."""

from hexane.graph import EpilogueSlot, Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.ops.slots import operands_of
from hexane.passes.engine.chain import slots_of
from hexane.passes.engine.legalize.slots import apply_slots, layer, view, with_slots
from hexane.targets import Chip

STAGE = "slice_matmul_along_height"


def slice_matmul_along_height(graph: Graph, chip: Chip) -> Graph:
    """anec.matmul(%x, %y) : [4096, N]  ->  anec.concat(anec.matmul(%x[:2048], %y), anec.matmul(%x[2048:], %y))

    The number of slices is the smallest for which the rows of the left operand and of the result each fit the working
    set and the height of an image; at most one slice per row. No sum of products is split, so no result changes. The
    engine's compiler splits by its largest tensor, whose exact measure is not published.
    """
    decisions: list[Decision] = []

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x = inputs[0]
        assert x is not None
        transposed = node.attrs["transpose_lhs"]
        axis = x.type.rank - (1 if transposed else 2)
        rows, size = x.shape[axis], max(x.type.bytes, node.types[0].bytes)
        pieces = min(max(-(-size // chip.memory.working_set), -(-rows // chip.extents.height)), rows)
        if pieces < 2 or node.types[0].rank != x.type.rank:
            return None
        slots = slots_of(node)
        # Slots that depend on the row or move rows become layers after the concatenation.
        alike = [i for i, s in enumerate(slots) if not _each(node, s)]
        own = slots[: alike[0]] if alike else slots
        most = -(-rows // pieces)
        parts = []
        for begin in range(0, rows, most):
            part = view(x, axis, begin, min(begin + most, rows), node.sources)
            parts.append(with_slots(node, [part, inputs[1]], own))
        reason = f"{size} bytes of rows, the working set has {chip.memory.working_set}: {len(parts)} slices"
        decisions.append(Decision(STAGE, node.where, "split", reason, "guide ch35, table 35.3"))
        return (
            apply_slots(layer("concat", parts, node.sources, axis=node.types[0].rank - 2), node, slots[len(own) :]),
        )

    return graph.rewrite(change, ("anec.matmul",)).decided(*decisions)


def _each(node: Node, s: EpilogueSlot) -> bool:
    """True if the slot applies the same function to every element."""
    operands = [node.inputs[i] for i in operands_of(s)]
    return s.op in ("pre_activation", "post_activation") or (
        s.op == "gain_offset" and all(v is not None and not v.shape for v in operands)
    )

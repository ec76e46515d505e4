"""Merges adjacent reshapes and transposes if a tensor between them has more or longer axes than the chip supports."""

from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.ops import OPS, apply
from hexane.passes.retarget.marked import boundaries
from hexane.passes.retarget.view_chains import VIEWS, before_views, folded, is_taken, is_view, viewed
from hexane.targets import Chip
from hexane.validate.extents import fits

ROUNDING = ("quantize", "dequantize")
SOURCE = "hexane, exact"


def join_views(graph: Graph, chip: Chip) -> Graph:
    """reshape(transpose(reshape(%x) : [1, 8, 7, 8, 7, 96]) : [1, 8, 8, 7, 7, 96])  ->  reshape(transpose(reshape(%x) : [8, 7, 8, 672]))

    A window of an image is a tensor with six axes between two reshapes. The transpose merges axes that stay together
    and drops axes of extent 1. The transpose then has four axes, and no tensor with six axes remains. The order of the
    elements does not change. A quantize or dequantize with one scale between two reshapes is moved before both. A
    transpose that only moves axes of extent 1 counts as a view: coremltools writes windows as chains of views, through
    a single row of all elements. A view at which a program begins or ends is kept, because it has the shape of the
    program's port.
    """  # noqa: E501
    most, decisions = chip.extents.rank, list[Decision]()
    if all(t.rank <= most and fits(t, chip) for node in graph.nodes if _moves(node) for t in node.types):
        return graph
    ends = boundaries(graph)
    fixed = set[Value]()  # the new values at which programs begin or end

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x = inputs[0] if inputs else None
        if x is None:
            return None
        if ends.intersection(node.values):
            result = node.values if inputs == node.inputs else node.with_inputs(inputs).values
            fixed.update(result)
            return result
        if x in fixed:
            return None
        if node.op in VIEWS and x.node.op in VIEWS:
            y = viewed(x, node.types[0].shape, node, fixed)
            return (y,) if is_taken(y, x, chip, fixed) else None
        if node.op in ROUNDING and x.type.rank > most and is_view(x) and _one_scale(node):
            before, views = before_views(x, fixed)
            (y,) = apply(OPS[node.op], [before, *inputs[1:]], node.attrs, node.sources)
            return apply(OPS["reshape"], [y], {"shape": node.types[0].shape}, views)
        if node.op != "transpose" or (fold := folded(x.shape, node.attrs["perm"])) is None:
            return None
        shape, perm = fold
        in_order = perm == tuple(range(len(perm)))  # the transpose moves axes of extent 1 only
        if len(shape) > most or not (in_order or x.type.rank > most):
            return None
        y = viewed(x, shape, node, fixed)
        if not is_taken(y, x, chip, fixed):
            return None
        if not in_order:
            (y,) = apply(OPS["transpose"], [y], {"perm": perm}, node.sources)
        decisions.append(Decision("retarget", node.where, "decomposed", f"written on {len(shape)} axes", SOURCE))
        return (viewed(y, node.types[0].shape, node, fixed),)

    result = graph.rewrite(change)
    return graph if result.outputs == graph.outputs and result.updates == graph.updates else result.decided(*decisions)


def _moves(node: Node) -> bool:
    return node.op in VIEWS or node.op in ROUNDING or node.op == "transpose"


def _one_scale(node: Node) -> bool:
    """True if there is one scale and zero point for all elements."""
    return all(v is None or v.type.rank == 0 for v in node.inputs[1:])

"""Merges adjacent reshapes and transposes if a tensor between them has more or longer axes than the chip supports."""

from collections.abc import Container, Iterator
from math import prod

from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.ops import OPS, apply
from hexane.passes.retarget.borders import is_border
from hexane.passes.retarget.marked import boundaries
from hexane.targets import Chip
from hexane.validate.extents import fits
from hexane.validate.node import judge

VIEWS = ("reshape", "expand_dims", "squeeze", "flatten", "flatten2d")
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
            y = _viewed(x, node.types[0].shape, node, fixed)
            return (y,) if _is_taken(y, x, chip, fixed) else None
        if node.op in ROUNDING and x.type.rank > most and _is_view(x) and _one_scale(node):
            before, views = _before_views(x, fixed)
            (y,) = apply(OPS[node.op], [before, *inputs[1:]], node.attrs, node.sources)
            return apply(OPS["reshape"], [y], {"shape": node.types[0].shape}, views)
        if node.op != "transpose" or (fold := folded(x.shape, node.attrs["perm"])) is None:
            return None
        shape, perm = fold
        is_view = perm == tuple(range(len(perm)))  # the transpose moves axes of extent 1 only
        if len(shape) > most or not (is_view or x.type.rank > most):
            return None
        y = _viewed(x, shape, node, fixed)
        if not _is_taken(y, x, chip, fixed):
            return None
        if not is_view:
            (y,) = apply(OPS["transpose"], [y], {"perm": perm}, node.sources)
        decisions.append(Decision("retarget", node.where, "decomposed", f"written on {len(shape)} axes", SOURCE))
        return (_viewed(y, node.types[0].shape, node, fixed),)

    result = graph.rewrite(change)
    return graph if result.outputs == graph.outputs and result.updates == graph.updates else result.decided(*decisions)


def _moves(node: Node) -> bool:
    return node.op in VIEWS or node.op in ROUNDING or node.op == "transpose"


def has_too_many_axes(node: Node, chip: Chip) -> bool:
    """True if the node has an operand or a result with more axes than the chip supports."""
    most = chip.extents.rank
    return any(t.rank > most for t in node.types) or any(v.type.rank > most for v in node.inputs if v is not None)


def folded(shape: tuple[int, ...], perm: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns the shape and permutation of an equal transpose on fewer axes: merges axes that stay together and drops
    axes of extent 1. Returns None if no axis is saved."""
    runs: list[list[int]] = []
    for axis in perm:
        if shape[axis] == 1:
            continue
        if runs and axis > runs[-1][-1] and all(shape[i] == 1 for i in range(runs[-1][-1] + 1, axis)):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    if len(runs) >= len(shape):
        return None
    order = sorted(range(len(runs)), key=lambda i: runs[i])
    return tuple(prod(shape[i] for i in runs[place]) for place in order), tuple(
        order.index(i) for i in range(len(runs))
    )


def _one_scale(node: Node) -> bool:
    """True if there is one scale and zero point for all elements."""
    return all(v is None or v.type.rank == 0 for v in node.inputs[1:])


def _is_view(x: Value) -> bool:
    return x.node.op in VIEWS and x.node.inputs[0] is not None


def _is_taken(reshaped: Value, x: Value, chip: Chip, fixed: Container[Value]) -> bool:
    """True if the chip runs the view that replaces the views of x. True also if the host runs the new view and
    every view of x that the chip refuses, because their tensors have too many or too long axes."""
    if reshaped.node.op != "reshape" or judge(reshaped.node, chip).verdict == "native":
        return True
    return is_border(reshaped.node, chip) and all(
        is_border(view, chip) or judge(view, chip).verdict == "native" for view in _views(x, fixed)
    )


def _views(x: Value, fixed: Container[Value]) -> Iterator[Node]:
    """Yields the views that made x, last first, back to a fixed value."""
    while _is_view(x) and x not in fixed:
        yield x.node
        assert x.node.inputs[0] is not None
        x = x.node.inputs[0]


def _before_views(x: Value, fixed: Container[Value]) -> tuple[Value, tuple[str, ...]]:
    """Returns the source of the views that made x, and the model sources of these views."""
    views = [*_views(x, fixed)]
    sources = dict.fromkeys(source for view in reversed(views) for source in view.sources)
    source = views[-1].inputs[0] if views else x
    assert source is not None
    return source, tuple(sources)


def _viewed(x: Value, shape: tuple[int, ...], node: Node, fixed: Container[Value]) -> Value:
    """Returns x in another shape, as a single view of the source of x. The result keeps the model sources of the
    views."""
    x, views = _before_views(x, fixed)
    sources = tuple(dict.fromkeys((*views, *node.sources)))
    return x if x.shape == shape else apply(OPS["reshape"], [x], {"shape": shape}, sources)[0]

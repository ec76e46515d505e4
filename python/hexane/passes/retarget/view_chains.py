"""Chains of views before a node: their source, and one view or transpose in place of a chain."""

from collections.abc import Container, Iterator
from math import prod

from hexane.graph import Node, Value
from hexane.ops import OPS, apply
from hexane.passes.retarget.borders import is_border
from hexane.targets import Chip
from hexane.validate.node import judge

VIEWS = ("reshape", "expand_dims", "squeeze", "flatten", "flatten2d")


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


def is_view(x: Value) -> bool:
    return x.node.op in VIEWS and x.node.inputs[0] is not None


def is_taken(reshaped: Value, x: Value, chip: Chip, fixed: Container[Value]) -> bool:
    """True if the chip runs the view that replaces the views of x. True also if the host runs the new view and
    every view of x that the chip refuses, because their tensors have too many or too long axes."""
    if reshaped.node.op != "reshape" or judge(reshaped.node, chip).verdict == "native":
        return True
    return is_border(reshaped.node, chip) and all(
        is_border(view, chip) or judge(view, chip).verdict == "native" for view in _views(x, fixed)
    )


def _views(x: Value, fixed: Container[Value]) -> Iterator[Node]:
    """Yields the views that made x, last first, back to a fixed value."""
    while is_view(x) and x not in fixed:
        yield x.node
        assert x.node.inputs[0] is not None
        x = x.node.inputs[0]


def before_views(x: Value, fixed: Container[Value]) -> tuple[Value, tuple[str, ...]]:
    """Returns the source of the views that made x, and the model sources of these views."""
    views = [*_views(x, fixed)]
    sources = dict.fromkeys(source for view in reversed(views) for source in view.sources)
    source = views[-1].inputs[0] if views else x
    assert source is not None
    return source, tuple(sources)


def viewed(x: Value, shape: tuple[int, ...], node: Node, fixed: Container[Value]) -> Value:
    """Returns x in another shape, as a single view of the source of x. The result keeps the model sources of the
    views."""
    x, views = before_views(x, fixed)
    sources = tuple(dict.fromkeys((*views, *node.sources)))
    return x if x.shape == shape else apply(OPS["reshape"], [x], {"shape": shape}, sources)[0]

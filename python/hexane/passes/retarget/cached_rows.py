"""The new rows of a cache, and the old and the new rows of a tensor that views make from it."""

from math import prod
from typing import Any, NamedTuple

from hexane.graph import Node, Value
from hexane.lowering.row_updates import RowUpdate, row_update
from hexane.ops import OPS, apply
from hexane.ops.predicates import scalar

VIEWS = ("reshape", "expand_dims", "squeeze", "transpose", "broadcast_to", "tile", "cast", "identity")
SLICES = ("slice_by_index", "slice_by_size")


def rows_of(node: Node) -> RowUpdate | None:
    """Returns the rows that a node writes into a state or scatters into a tensor, or None for other nodes."""
    rows = row_update(node)
    if rows is None or rows.update.dtype.kind != "float":
        return None
    return rows if node.op != "write_state" or rows.whole.node.op == "state" else None


class Parts(NamedTuple):
    """An operand of an attention, split. both: the operand without the new rows, and the new rows. written: the
    positions of the new rows among `extent` rows. sources: of the write."""

    both: tuple[Value, Value]
    written: Value
    distinct: bool
    extent: int
    sources: tuple[str, ...]


def parts_of(operand: Value) -> Parts | None:
    """Returns the parts of keys or values that are a view of a state with new rows on the second last axis, or None."""
    path, node = list[Node](), operand.node
    while (before := _source(node)) is not None:
        path.append(node)
        node = before.node
    rows = rows_of(node)
    if rows is None:
        return None
    old, new, axis = rows.whole, rows.update, rows.axis
    for view in reversed(path):
        viewed = _viewed(view, old, new, axis)
        if viewed is None:
            return None
        old, new, axis = viewed
    extent = rows.whole.shape[rows.axis]
    parts = Parts((old, new), rows.places, rows.distinct, extent, node.sources)
    return parts if axis == operand.type.rank - 2 else None


def _source(node: Node) -> Value | None:
    """Returns the operand of a view, or of a product with a constant, or None for other nodes."""
    if node.op in (*VIEWS, *SLICES):
        return node.inputs[0]
    if node.op not in ("mul", "real_div"):
        return None
    x, factor = node.inputs if scalar(node.inputs[1]) is not None else node.inputs[::-1]
    same = x is not None and x.type == node.types[0] and scalar(factor) is not None
    return x if same and (node.op == "mul" or x is node.inputs[0]) else None


def _viewed(node: Node, old: Value, new: Value, axis: int) -> tuple[Value, Value, int] | None:
    """Returns the view applied to the old and to the new rows, and the resulting axis of the rows. Returns None if the
    view does not keep the axis of the rows."""
    shape, count = node.types[0].shape, new.shape[axis]
    if node.op == "transpose":
        place = node.attrs["perm"].index(axis)
    elif node.op == "tile":
        if node.attrs["reps"][axis] != 1:
            return None
        place = axis
    elif node.op in ("cast", "identity"):
        place = axis
    elif node.op in ("mul", "real_div"):
        operands = [[x if v is _source(node) else v for v in node.inputs] for x in (old, new)]
        again, of_rows = (apply(OPS[node.op], one, node.attrs, node.sources)[0] for one in operands)
        return again, of_rows, axis
    elif node.op in SLICES:
        if node.attrs["begin"][axis] or set(node.attrs.get("stride", ())) - {1}:
            return None
        place = axis
    elif node.op == "broadcast_to":
        place = axis + len(shape) - old.type.rank
    else:
        ahead = prod(old.shape[:axis])
        places = [i for i, n in enumerate(shape) if n == old.shape[axis] and prod(shape[:i]) == ahead]
        if not places:
            return None
        place = places[0]
    again = apply(OPS[node.op], [old], node.attrs, node.sources)[0]
    return again, apply(OPS[node.op], [new], attributes_of(node, place, count), node.sources)[0], place


def attributes_of(node: Node, axis: int, extent: int) -> dict[str, Any]:
    """Returns the attributes of a view, with another extent on one axis of its result."""
    attrs = dict(node.attrs)
    for name in {"shape", "end", "size"} & attrs.keys():
        attrs[name] = (*attrs[name][:axis], extent, *attrs[name][axis + 1 :])
    return attrs

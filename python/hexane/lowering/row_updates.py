"""Ops that put rows into a tensor, one after the other along an axis: a write to a state, or a scatter."""

from typing import NamedTuple

import numpy as np

from hexane.graph import Node, Value
from hexane.ops.rewriter import Rewriter

VIEWS = ("reshape", "expand_dims", "squeeze", "identity", "cast")
SCATTERS = ("scatter_nd", "scatter_along_axis")


class RowUpdate(NamedTuple):
    """`whole` with the rows of an update, from `position` on along an axis. The update has the axes of the whole.
    in_line: False where each row has a place of its own. Then `position` has all of them, and the last of equal ones
    counts."""

    whole: Value
    update: Value
    position: Value
    axis: int
    in_line: bool = True

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self.update.shape[self.axis]


def row_update(node: Node) -> RowUpdate | None:
    """What a node puts where, if the position is known at run time only; None for other nodes, and for all rows."""
    if node.op == "write_state":
        found = _written(node)
    elif node.op in SCATTERS and node.attrs["mode"] == "update":
        found = _scattered(node)
    else:
        return None
    if found is None or found.position.node.is_constant or found.num_rows == found.whole.shape[found.axis]:
        return None
    return found


def _written(node: Node) -> RowUpdate | None:
    whole, update, position = node.inputs
    if whole is None or update is None or position is None:
        return None
    return RowUpdate(whole, update, position, node.attrs["axis"])


def _scattered(node: Node) -> RowUpdate | None:
    whole, indices, update = node.inputs
    if whole is None or indices is None or update is None or not update.type.size:
        return None
    b = Rewriter(*node.sources)
    if node.op == "scatter_nd":
        if indices.shape[-1:] != (1,):
            return None
        axis, rows = 0, b.reshape(update, shape=(indices.type.size, *whole.shape[1:]))
    else:
        axis, rows, expanded = node.attrs["axis"], update, indices
        if indices.node.op == "broadcast_to" and indices.node.inputs[0] is not None:
            indices = indices.node.inputs[0]
        count = update.shape[axis]
        if update.shape != (*whole.shape[:axis], count, *whole.shape[axis + 1 :]) or indices.type.size != count:
            return None
        if count > 1 and indices.shape[axis - expanded.type.rank :][:1] != (count,):
            return None
    first = _first(b, indices)
    in_line = first is not None
    first = b.reshape(indices, shape=(indices.type.size,)) if first is None else first
    # Below 0 they count from the end. The gather refuses what is out of range.
    place = b.gather(b.const(np.arange(whole.shape[axis], dtype=first.dtype.numpy)), first, axis=0)
    return RowUpdate(whole, rows, place, axis, in_line)


def _first(b: Rewriter, indices: Value) -> Value | None:
    """The first index (1,), where the others follow it one by one."""
    value, count = indices, indices.type.size
    while value.node.op in VIEWS and value.node.inputs[0] is not None:
        value = value.node.inputs[0]
    if count == 1:
        return b.reshape(indices, shape=(1,))
    if value.node.op != "add":
        return None
    for one, other in (value.node.inputs, value.node.inputs[::-1]):
        if one is None or other is None or one.type.size != 1 or other.node.data is None:
            continue
        steps = other.node.data.reshape(-1)
        if steps.size == count and (np.diff(steps) == 1).all():
            return b.add(b.reshape(one, shape=(1,)), b.const(steps[:1]))
    return None

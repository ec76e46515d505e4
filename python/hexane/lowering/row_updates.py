"""Ops that replace rows of a tensor along an axis: a write to a state, or a scatter."""

from typing import NamedTuple

import numpy as np

from hexane.graph import Node, Value
from hexane.ops.rewriter import Rewriter

VIEWS = ("reshape", "expand_dims", "squeeze", "identity", "cast")
SCATTERS = ("scatter_nd", "scatter_along_axis")


class RowUpdate(NamedTuple):
    """`whole` with some rows along an axis replaced by the rows of `update`, which has the same axes.

    places: the nonnegative index of each row (count,). distinct: no two indices are equal; otherwise the last row with
    an index wins.
    """

    whole: Value
    update: Value
    places: Value
    axis: int
    distinct: bool = True

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self.update.shape[self.axis]


def row_update(node: Node) -> RowUpdate | None:
    """Returns the row update of a node if its position is known only at run time and it does not replace all rows, else
    None."""
    if node.op == "write_state":
        result = _written(node)
    elif node.op in SCATTERS and node.attrs["mode"] == "update":
        result = _scattered(node)
    else:
        return None
    if result is None or result.places.node.is_constant or result.num_rows >= result.whole.shape[result.axis]:
        return None
    return result


def _written(node: Node) -> RowUpdate | None:
    whole, update, position = node.inputs
    if whole is None or update is None or position is None or position.node.is_constant:
        return None
    b, axis = Rewriter(*node.sources), node.attrs["axis"]
    places, count = b.reshape(position, shape=(1,)), update.shape[axis]
    if count > 1:
        places = b.add(places, b.const(np.arange(count, dtype=position.dtype.numpy)))
    return RowUpdate(whole, update, places, axis)


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
        axis, rows, rank = node.attrs["axis"], update, indices.type.rank
        if indices.node.op == "broadcast_to" and indices.node.inputs[0] is not None:
            indices = indices.node.inputs[0]
        count = update.shape[axis]
        if update.shape != (*whole.shape[:axis], count, *whole.shape[axis + 1 :]) or indices.type.size != count:
            return None
        if (*[1] * (rank - indices.type.rank), *indices.shape)[axis] != count:
            return None
    # Negative indices count from the end. For an index out of range, this gather raises the error.
    line = b.reshape(indices, shape=(indices.type.size,))
    places = b.gather(b.const(np.arange(whole.shape[axis], dtype=indices.dtype.numpy)), line, axis=0)
    return RowUpdate(whole, rows, places, axis, indices.type.size == 1 or _consecutive(indices))


def _consecutive(indices: Value) -> bool:
    """True if each index is provably one more than the index before it: an integer plus constant steps."""
    value, count = indices, indices.type.size
    while value.node.op in VIEWS and value.node.inputs[0] is not None:
        value = value.node.inputs[0]
    if value.node.op != "add" or value.dtype.kind != "int":
        return False
    for one, other in (value.node.inputs, value.node.inputs[::-1]):
        if one is None or other is None or one.type.size != 1 or other.node.data is None:
            continue
        steps = other.node.data.reshape(-1)
        if steps.size == count and (np.diff(steps) == 1).all():
            return True
    return False

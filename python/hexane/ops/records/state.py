"""The op that writes a state. A state lasts from call to call."""

from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.ops.attributes import integer
from hexane.ops.index_functions import check_indices
from hexane.ops.shape_rules import Shape, one_axis
from hexane.ops.spec import Op

Array = Any


def _write_shape(state: Shape, update: Shape, position: Shape, axis: int) -> Shape:
    if position not in ((), (1,)):
        raise Error(f"got a position of shape {position}, need a scalar")
    if len(update) != len(state) or any(
        u > s if i == axis else u != s for i, (u, s) in enumerate(zip(update, state, strict=True))
    ):
        raise Error(f"got an update of shape {update} for a state of shape {state}, need equal dims but at axis {axis}")
    return state


def _write_dtype(state: Any, update: Any, position: Any, **_: Any) -> Any:
    if update is not state:
        raise Error(f"got an update of dtype {update}, need {state}")
    check_indices(position)
    return state


def _write(state: Array, update: Array, position: Array, axis: int) -> Array:
    start = int(np.asarray(position).reshape(()))
    if not 0 <= start <= state.shape[axis] - update.shape[axis]:
        raise Error(f"got the position {start}, need 0..{state.shape[axis] - update.shape[axis]}")
    result = state.copy()
    result[tuple(slice(start, start + n) if i == axis else slice(None) for i, n in enumerate(update.shape))] = update
    return result


OPS = (
    Op(
        name="write_state",
        doc="Writes update into the state at a position along an axis, in place, and returns the state afterwards. "
            "Without a position, update replaces the whole state.",
        inputs=("state", "update", "position"), attrs={"axis": integer(0)}, canonical=one_axis,
        shape=_write_shape, dtype=_write_dtype, kernel="write_slice", ref=_write, cases=(), no_grad="the contents of a state are kept from call to call",
    ),
)  # fmt: skip

"""What expansions share: `b` applies ops, in the passes and in the importers alike, and takes scalars where tensors go."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hexane.dtypes import FP32, FP64, INT64, DType
from hexane.errors import Error
from hexane.graph import Array, Value, constant
from hexane.limits import MAX_GROWTH_BYTES


def lift(inputs: Sequence[Value | Array | float | None], sources: tuple[str, ...]) -> list[Value | None]:
    """Arrays and scalars as constants, scalars of the first tensor's dtype."""
    like = next((x.dtype.numpy for x in inputs if isinstance(x, Value) and x.dtype.kind != "bool"), None)
    return [
        x if x is None or isinstance(x, Value) else constant(x if isinstance(x, np.ndarray) else np.array(x, like), sources)
        for x in inputs
    ]  # fmt: skip


def cast(b: Any, x: Any, to: DType) -> Any:
    """x where it has the dtype already."""
    return x if x.dtype is to else b.cast(x, dtype=to)


def wide(*values: Any) -> DType:
    """What is computed in, where it may matter: fp32, or fp64 if one of the values has it."""
    return FP64 if any(v is not None and v.dtype is FP64 for v in values) else FP32


def part(b: Any, x: Any, axis: int, start: int, stop: int) -> Any:
    """x[start:stop] along one axis."""
    begin, end = [0] * len(x.shape), list(x.shape)
    begin[axis], end[axis] = start, stop
    return b.slice_by_index(x, begin=begin, end=end)


def limited(count: int, dtype: np.dtype[Any]) -> None:
    """Raises Error where materialising so many elements would cost more than folding may."""
    if count * dtype.itemsize > MAX_GROWTH_BYTES:
        raise Error(f"got {count} elements of {dtype}, need at most {MAX_GROWTH_BYTES} bytes")


def check_lengths(lengths: Array, most: int) -> None:
    """Raises Error for a length outside 0..most."""
    for length in lengths[(lengths < 0) | (lengths > most)][:1]:
        raise Error(f"lengths: got {length}, need 0 to {most}")


def checked_lengths(b: Any, lengths: Any, most: int) -> Any:
    """In int64. Others than 0..most are refused: constants at once, those of run time as indices of what does not exist."""
    if lengths.node.op == "const":
        check_lengths(lengths.node.data, most)
        return cast(b, lengths, INT64)
    given, there = cast(b, lengths, INT64), np.arange(most + 1)
    return b.gather(b.const(there), b.select(b.less(given, 0), b.sub(given, len(there)), given), axis=0)

"""Helpers of expansions, such as `b`, which applies ops in passes and importers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from math import copysign, isfinite
from typing import Any

import ml_dtypes
import numpy as np

from hexane.dtypes import BF16, BY_NUMPY, FP32, FP64, INT64, DType, integers
from hexane.errors import Error, UnsupportedError
from hexane.graph import Array, Value, constant
from hexane.system.limits import MAX_GROWTH_BYTES

Operand = Value | Array | float | None


class Builder(ABC):
    """Applies ops by name: `b.add(x, 1.0)` returns the value of an op with one output, `b.several("topk", x, k=3)` a
    tuple of all outputs. Arrays and scalars become constants. A scalar has the dtype of the first tensor."""

    __slots__ = ("sources",)

    def __init__(self, *sources: str) -> None:
        """sources: the sources of all nodes that this builder builds."""
        self.sources = sources

    def __getattr__(self, name: str) -> Callable[..., Value]:
        return partial(self.apply, name)

    def apply(self, name: str, *inputs: Operand, **attrs: Any) -> Value:
        (value,) = self.several(name, *inputs, **attrs)
        return value

    @abstractmethod
    def several(self, name: str, *inputs: Operand, **attrs: Any) -> tuple[Value, ...]:
        """Applies an op and returns the values of its outputs."""

    def const(self, x: Any, dtype: Any = None) -> Value:
        """Returns a constant. An array keeps its dtype."""
        return constant(x if isinstance(x, np.ndarray) else np.array(x, dtype), self.sources)


def lift(inputs: Sequence[Operand], sources: tuple[str, ...]) -> list[Value | None]:
    """Returns the inputs with arrays and scalars as constants. A scalar has the dtype of the first tensor."""
    like = next((x.dtype.numpy for x in inputs if isinstance(x, Value) and x.dtype.kind != "bool"), None)
    return [
        x if x is None or isinstance(x, Value) else constant(x if isinstance(x, np.ndarray) else held(x, like), sources)
        for x in inputs
    ]


def held(number: float, dtype: Any) -> Array:
    """Returns a number as an array of this dtype. A finite number stays finite: beyond the range of a float dtype it
    becomes the dtype's largest number, as in `to_fp16`. Raises Error for a number outside the range of an integer
    dtype."""
    kind = np.dtype(dtype)
    try:
        with np.errstate(over="ignore"):
            result = integers(int(number), kind) if BY_NUMPY[kind].kind in ("int", "uint") else np.array(number, kind)
    except (OverflowError, ValueError):
        raise Error(f"[constant] value: got {number:g}, need a number that {kind} holds") from None
    if (result.dtype.kind == "f" or result.dtype == BF16.numpy) and np.isinf(result) and isfinite(number):
        return np.array(copysign(_largest(result.dtype), number), dtype)
    return result


def _largest(dtype: "np.dtype[Any]") -> float:
    limits: Any = ml_dtypes.finfo  # ml_dtypes supports bfloat16 as well, but has no type annotations
    return float(limits(dtype).max)


def cast(b: Builder, x: Value, to: DType) -> Value:
    """Returns x cast to a dtype, or x itself if it has that dtype."""
    return x if x.dtype is to else b.cast(x, dtype=to)


def wide(*values: Any) -> DType:
    """Returns the dtype for precise computations: fp64 if one of the values has it, else fp32."""
    return FP64 if any(v is not None and v.dtype is FP64 for v in values) else FP32


def part(b: Builder, x: Value, axis: int, start: int, stop: int) -> Value:
    """Returns x[start:stop] along one axis."""
    begin, end = [0] * len(x.shape), list(x.shape)
    begin[axis], end[axis] = start, stop
    return b.slice_by_index(x, begin=begin, end=end)


class WriteOutError(UnsupportedError):
    """Raised for an op that is too large to be expanded to other ops. Only a kernel of its own can compute such an
    op."""


def limited(count: int, dtype: np.dtype[Any]) -> None:
    """Raises Error if a constant of `count` elements would exceed the limit of constant folding."""
    if count * dtype.itemsize > MAX_GROWTH_BYTES:
        raise Error(f"got {count} elements of {dtype}, need at most {MAX_GROWTH_BYTES} bytes")


def check_lengths(lengths: Array, most: int) -> None:
    """Raises Error for a length outside 0..most."""
    for length in lengths[(lengths < 0) | (lengths > most)][:1]:
        raise Error(f"lengths: got {length}, need 0 to {most}")


def checked_lengths(b: Builder, lengths: Value, most: int) -> Value:
    """Returns the lengths in int64. A length outside 0..most raises an error: a constant length at once, a computed
    length at run time, as an index out of range."""
    if lengths.node.data is not None:
        check_lengths(lengths.node.data, most)
        return cast(b, lengths, INT64)
    given, there = cast(b, lengths, INT64), np.arange(most + 1)
    return b.gather(b.const(there), b.select(b.less(given, 0), b.sub(given, len(there)), given), axis=0)

"""An interval for each element of a tensor, and the errors that rounding adds."""

from dataclasses import dataclass
from math import inf

import numpy as np

from hexane.dtypes import whole_range
from hexane.graph import Array, TensorType

LARGEST = 65504.0  # Fp16's largest number.
ROUNDED = 2.0**-9  # Relative error of several roundings to fp16, each of at most 2^-11.
SMALLEST = 2.0**-23  # Error of several roundings to subnormal numbers of fp16.
TABLE = 2.0**-6  # Relative and absolute: more than the error of any activation table.


@dataclass(frozen=True)
class Sums:
    """Bounds for each element of a product's result, valid while passes may fold later ops into the product's weights.

    partial: a bound of the magnitude of every partial sum. lost: a bound of the rounding error that does not shrink
    with the weights: products are rounded to a multiple of 2^-16, weights to a multiple of fp16's smallest number.
    """

    partial: Array
    lost: Array


@dataclass(frozen=True)
class Interval:
    """low <= element <= high, in fp64; infinite if nothing is known.

    sums: the bounds of a product's sums; None for other values. overflowed: an element may be infinite because of an
    overflow. nan: an element whose bounds are both infinite may also be NaN.
    """

    low: Array
    high: Array
    sums: Sums | None = None
    overflowed: bool = False
    nan: bool = False

    @property
    def size(self) -> Array:
        """The largest magnitude of each element."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def finite(self) -> Array:
        return np.isfinite(self.low) & np.isfinite(self.high)

    @property
    def whole(self) -> tuple[float, float]:
        """The interval of all elements together; (0, 0) without elements."""
        return (float(self.low.min()), float(self.high.max())) if self.low.size else (0.0, 0.0)


def unknown(kind: TensorType, overflowed: bool = True) -> Interval:
    """Returns the interval of any number of the dtype, or NaN."""
    if (ends := whole_range(kind.dtype)) is not None:
        return Interval(np.full(kind.shape, ends[0]), np.full(kind.shape, ends[1]))
    return Interval(np.full(kind.shape, -inf), np.full(kind.shape, inf), None, overflowed, True)


def constant(value: Array) -> Interval:
    """Returns the interval of a constant in any form in which a device may store it."""
    wide = value.astype(np.float64)
    if value.dtype.kind in "biu":
        return Interval(wide, wide)
    low, high = widened(wide, wide)
    # Numbers beyond fp16's range become its largest number.
    return Interval(np.where(low > LARGEST, LARGEST, low), np.where(high < -LARGEST, -LARGEST, high))


def widened(low: Array, high: Array, relative: float = ROUNDED, absolute: float = SMALLEST) -> tuple[Array, Array]:
    """Returns the interval widened by rounding errors. The caller decides whether an end within fp16 stays within."""
    with np.errstate(invalid="ignore", over="ignore"):
        below, above = low - (np.abs(low) * relative + absolute), high + (np.abs(high) * relative + absolute)
    return below, above


def stored(low: Array, high: Array, overflowed: bool = False, sums: Sums | None = None) -> Interval:
    """Returns the interval of a stored result: infinite if it may exceed fp16. NaN bounds mean unknown."""
    bad = np.isnan(low) | np.isnan(high)
    low, high = np.where(bad, -inf, low), np.where(bad, inf, high)
    overflowed, nan = overflowed or bool(bad.any()), bool(bad.any())
    return Interval(np.where(low < -LARGEST, -inf, low), np.where(high > LARGEST, inf, high), sums, overflowed, nan)

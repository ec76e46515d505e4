"""The difference of two arrays of the same shape, as numbers."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from hexane.graph import Array

RELATIVE = "relative L2"
SHARE = "share of elements that differ"
BUCKETS = ("0", "1", "2-3", "4-15", "16-255", "256+")  # distances in units of the last place of an fp16
_EDGES = (0, 1, 3, 15, 255)


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of `got` from `want`. finite: how many elements are finite in both; max_abs, relative_l2 and ulps
    cover these alone. overflows: how many elements are finite in `want` only; overflow: the first one. unlike: how many
    elements are infinite or NaN in `want` and differ. ulps: a histogram (by BUCKETS) of distances in fp16 units in the
    last place. counted: the elements are integers or bools. The distance of integers is the share of different
    elements: an index that is off by one is as wrong as one that is off by a hundred."""

    size: int
    different: int
    max_abs: float
    relative_l2: float
    overflow: tuple[int, ...] | None
    overflows: int
    finite: int
    unlike: int
    ulps: tuple[int, ...]
    counted: bool = False

    @property
    def distance(self) -> float:
        """Relative L2, or the share of elements that differ."""
        return self.different / max(self.size, 1) if self.counted else self.relative_l2

    @property
    def measure(self) -> str:
        """The measure of the distance, in words."""
        return SHARE if self.counted else RELATIVE

    def number(self, value: float, digits: int) -> str:
        """Returns max_abs, relative_l2 or the distance as a text; "-" if no element is finite in both."""
        return f"{value:.{digits}g}" if self.finite else "-"

    def beyond(self, tolerance: float) -> bool:
        """True if the distance exceeds the tolerance or an element is infinite or NaN in one of the arrays; at
        tolerance 0, if any bit differs."""
        wild = self.overflows + self.unlike
        return bool(wild) or (self.different > 0 if tolerance == 0 else self.distance > tolerance)

    def __str__(self) -> str:
        """A text such as "628 of 65,536 differ", "largest absolute difference 0.19" or "equal"."""
        if not self.different:
            return "equal"
        if self.counted:
            return f"{self.different:,} of {self.size:,} differ"
        wild = [f"{self.overflows:,} of {self.size:,} infinite or NaN"] if self.overflows else []
        if self.unlike:
            wild.append(f"{self.unlike:,} of {self.size:,} differ from infinite numbers or NaN")
        others = " of the others" if wild else ""
        largest = [f"largest absolute difference{others} {self.max_abs:.2g}"] if self.max_abs or not wild else []
        return ", ".join([*wild, *largest])

    def record(self) -> dict[str, Any]:
        """A dict for JSON. max_abs and relative_l2 are None if infinite, or if no element is finite in both."""
        return {
            "different": self.different,
            "finite": self.finite,
            "max_abs": None if self.max_abs == inf or not self.finite else self.max_abs,
            "relative_l2": None if self.relative_l2 == inf or not self.finite else self.relative_l2,
            "overflow": None if self.overflow is None else list(self.overflow),
            "overflows": self.overflows,
            "ulps": dict(zip(BUCKETS, self.ulps, strict=True)),
        }


def measures_of(differences: Iterable[Difference]) -> str:
    """Returns the measures of the distances, in words."""
    measures = {one.measure for one in differences} or {RELATIVE}
    return measures.pop() if len(measures) == 1 else f"{RELATIVE} (of integers: {SHARE})"


def difference(got: Array, want: Array) -> Difference:
    """The difference of two arrays with one shape, whose dtypes may differ."""
    floats = "f" in (got.dtype.kind, want.dtype.kind)
    counted = all(array.dtype.kind in "iub" for array in (got, want))
    a, b = got.astype(np.float64), want.astype(np.float64)
    same = got == want if counted else (a == b) | (np.isnan(a) & np.isnan(b))  # fp64 rounds integers beyond 2^53
    both = np.isfinite(a) & np.isfinite(b)
    over = np.flatnonzero(~np.isfinite(a) & np.isfinite(b))
    first = tuple(int(i) for i in np.unravel_index(over[0], a.shape)) if over.size else None
    near, base, exponent = _scaled(a[both], b[both], got.dtype, want.dtype)
    delta = np.abs(near - base)
    size = float(np.linalg.norm(base))
    distance = float(np.linalg.norm(delta))
    relative = distance / size if size else inf if distance else 0.0
    with np.errstate(over="ignore"):
        largest = float(np.ldexp(delta.max(initial=0.0), exponent))
    ulps = _histogram(a[both], b[both]) if floats else (0,) * len(BUCKETS)
    unlike = int((~same & ~np.isfinite(b)).sum())
    return Difference(
        a.size, int((~same).sum()), largest, relative, first, int(over.size), int(both.sum()), unlike, ulps, counted
    )


def are_apart(x: Array, y: Array, tolerance: float) -> bool:
    """True if the difference, in either direction, is beyond the tolerance. Faster than `difference`."""
    if x.dtype == y.dtype and x.tobytes() == y.tobytes():
        return False
    if tolerance == 0 or all(array.dtype.kind in "iub" for array in (x, y)):
        return difference(x, y).beyond(tolerance) or bool(difference(y, x).overflows)
    a, b = x.astype(np.float64).reshape(-1), y.astype(np.float64).reshape(-1)
    both = np.isfinite(a)
    if not np.array_equal(both, np.isfinite(b)):
        return True
    if not both.all():
        if not np.array_equal(a[~both], b[~both], equal_nan=True):
            return True
        a, b = a[both], b[both]
    a, b, _ = _scaled(a, b, x.dtype, y.dtype)
    size, delta = float(np.einsum("i,i", b, b)), a - b
    square = float(np.einsum("i,i", delta, delta))
    return square > tolerance**2 * size if size else square > 0


def _scaled(a: Array, b: Array, *dtypes: Any) -> tuple[Array, Array, int]:
    """Returns fp64 numbers divided by a power of two, and its exponent, such that squares and differences of numbers
    that were fp64 neither overflow nor vanish. Numbers of other dtypes are returned as they are, with 0."""
    if np.float64 not in dtypes or not a.size:
        return a, b, 0
    exponent = int(np.frexp(max(np.abs(a).max(), np.abs(b).max()))[1]) + 1
    return np.ldexp(a, -exponent), np.ldexp(b, -exponent), exponent


def _histogram(a: Array, b: Array) -> tuple[int, ...]:
    distance = np.abs(_ordered(a) - _ordered(b))
    return tuple(int(n) for n in np.bincount(np.searchsorted(_EDGES, distance), minlength=len(BUCKETS)))


def _ordered(numbers: Array) -> Array:
    """Returns integers, one per number rounded to fp16, whose differences count the fp16 numbers in between."""
    with np.errstate(over="ignore"):
        bits = numbers.astype(np.float16).view(np.int16).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFF), bits)

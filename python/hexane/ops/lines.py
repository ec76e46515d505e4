"""The source positions of resized axes. Output i reads the coordinate (i * scale + offset) / unit, whose rounding to an
index is exact.

Ratios of extents are not exact as floats: 3 * (1 / 3) may be below 1, and its floor is then another element.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from math import gcd, isfinite, lcm
from typing import Any

import numpy as np

from hexane.errors import Error

Array = Any
LIMIT = 1 << 62  # The resize kernel's integers have smaller magnitudes.

# The functions that round the fraction n / d of integers to an integer.
ROUNDINGS: dict[str, Callable[[Any, int], Any]] = {
    "floor": lambda n, d: n // d,
    "ceil": lambda n, d: -(-n // d),
    "round_prefer_floor": lambda n, d: -((d - 2 * n) // (2 * d)),
    "round_prefer_ceil": lambda n, d: (2 * n + d) // (2 * d),
}


@lru_cache(1024)
def whole(scale: float | Fraction, offset: float | Fraction, unit: float | Fraction = 1) -> tuple[int, int, int]:
    """Returns the same line in integers. Raises Error for a number that is not finite, or a unit that is not
    positive."""
    if not all(map(isfinite, (scale, offset, unit))) or unit <= 0:
        raise Error(f"got the scale {scale}, offset {offset} and unit {unit}, need finite numbers and a positive unit")
    numbers = [Fraction(scale) / Fraction(unit), Fraction(offset) / Fraction(unit)]
    below = lcm(*(v.denominator for v in numbers))
    return int(numbers[0] * below), int(numbers[1] * below), below


def fits(line: tuple[int, int, int]) -> bool:
    """True if the kernel supports the line."""
    return all(abs(v) < LIMIT for v in line)


def floats(line: tuple[int, int, int]) -> tuple[float, float, float] | None:
    """Returns the line as three floats, or None if floats are not exact."""
    common = gcd(*line)
    try:
        result = tuple(float(v // common) for v in line)
    except OverflowError:
        return None
    return result if tuple(map(int, result)) == tuple(v // common for v in line) else None  # type: ignore[return-value]


def nearest(line: tuple[int, int, int], size: int, extent: int, mode: str) -> Array:
    """Returns the index that each output reads."""
    scale, offset, unit = line
    small = 2 * (abs(scale) * size + abs(offset) + unit) < LIMIT
    i = np.arange(size, dtype=np.int64) if small else np.arange(size).astype(object)
    return np.clip(ROUNDINGS[mode](i * scale + offset, unit), 0, extent - 1).astype(np.int64)

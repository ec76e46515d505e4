"""A curve in braille: each character has 2 x 4 dots.

1 │⠱⡀               Each column of dots is one value, or the mean of several. Neighbours are joined.
  │ ⠘⢄⣀
0 │   ⠈⠉⠒
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hexane.graph import Array
from hexane.train.dashboard.thin import thinned

BLANK = 0x2800
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # Bits by column and row, from the top left.
WIDE, TALL = 2, 4  # Dots of a character.


@dataclass(frozen=True, slots=True)
class Curve:
    """A drawn curve. rows: text lines, from the top; low and high: the values at the lowest and the highest dots."""

    rows: tuple[str, ...]
    low: float
    high: float


def drawn_curve(
    values: Array, width: int, height: int, marks: Sequence[tuple[float, float]] = (), mark: str = "●"
) -> Curve | None:
    """Returns a curve of the values over width x height characters, or None if no value is finite. Values that are not
    finite leave a gap. marks: pairs of a position, from 0 (the first value) to 1 (the last), and a value; each is
    drawn as the character `mark`."""
    columns = _columns(values, WIDE * width)
    shown = np.concatenate([columns, [value for _, value in marks]])
    shown = shown[np.isfinite(shown)]
    if not len(shown):
        return None
    low, high = float(shown.min()), float(shown.max())
    if low == high:
        low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    most = TALL * height - 1
    cells = np.full((height, width), BLANK)
    before: int | None = None
    for x, value in enumerate(columns):
        if not np.isfinite(value):
            before = None
            continue
        y = _row(value, low, high, most)
        for dot in _from_neighbour(before, y):
            cells[dot // TALL, x // WIDE] |= DOTS[x % WIDE][dot % TALL]
        before = y
    rows = [[chr(cell) for cell in row] for row in cells]
    for place, value in marks:
        if np.isfinite(value) and 0 <= place <= 1:
            rows[_row(value, low, high, most) // TALL][min(int(place * width), width - 1)] = mark
    return Curve(tuple("".join(row) for row in rows), low, high)


def _columns(values: Array, count: int) -> Array:
    """Returns one value per column of dots: the mean of a group of values, or an interpolated one if values are few."""
    if len(values) > count:
        return np.array([bucket.mean for bucket in thinned(values, count)])
    if len(values) < 2:
        return np.repeat(np.asarray(values, np.float64), count)
    return np.interp(np.linspace(0, len(values) - 1, count), np.arange(len(values)), values)


def _row(value: float, low: float, high: float, most: int) -> int:
    return most - round((value - low) / (high - low) * most)


def _from_neighbour(before: int | None, y: int) -> range:
    """Returns the rows of dots that join a column's value to that of the column before."""
    if before is None or abs(y - before) <= 1:
        return range(y, y + 1)
    return range(before + 1, y + 1) if before < y else range(y, before)

"""Converts tables of palettes to 8-bit integers with a scale for each table."""

import numpy as np
from numpy.typing import NDArray

from hexane.graph import Array

MOST = 127
_FEWEST = 64  # The least integer tried for the largest entry. A smaller one doubles a scale that was tried.
_SMALLEST = 2.0**-24  # Fp16's smallest positive number.


def int8_tables(tables: Array, counts: Array) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Returns integers from -127 to 127 [groups][entries] and scales [groups][1], whose products in fp16 approximate
    the tables [groups][entries].

    Tries the scales that map the largest entry to 127 .. 64, each with the least-squares scale for its integers, and
    returns the result of least squared error. counts: the number of weights with each entry, the factor of the entry's
    squared error.
    """
    wide = tables.astype(np.float64)
    largest = np.abs(wide).max(1, keepdims=True)
    best = np.zeros(tables.shape, np.int8), np.ones((len(tables), 1), np.float16)
    least = np.full((len(tables), 1), np.inf)
    for most in range(MOST, _FEWEST - 1, -1):
        scales = largest / most
        for _ in range(2):
            scales = _halves(scales)
            integers = np.clip(np.rint(wide / scales), -MOST, MOST)
            decoded = integers.astype(np.float16) * scales.astype(np.float16)
            error = (counts * (decoded.astype(np.float64) - wide) ** 2).sum(1, keepdims=True)
            better = error < least
            least = np.where(better, error, least)
            best = np.where(better, integers, best[0]).astype(np.int8), np.where(better, scales, best[1])
            squares = (counts * integers**2).sum(1, keepdims=True)
            scales = np.where(
                squares > 0, (counts * wide * integers).sum(1, keepdims=True) / np.maximum(squares, 1), scales
            )
    return best[0], best[1].astype(np.float16)


def _halves(scales: Array) -> Array:
    """Returns scales in fp16 that are above 0, and small enough that 127 times a scale does not overflow fp16."""
    halves: Array = np.clip(scales, _SMALLEST, 65504 / MOST).astype(np.float16)
    down = np.nextafter(halves, np.float16(0))
    return np.where(halves.astype(np.float64) * MOST > 65504, down, halves).astype(np.float64)

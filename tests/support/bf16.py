"""What instructions of bf16 compute, number by number: x [m, k] times y [k, n], with sums in fp32."""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SHORT_SUM = 512  # terms of one block in a chain
_LEAST = np.float32(2.0**-126)


def rounded(x: Array) -> Array:
    """To bf16 and back, subnormal ones to 0."""
    narrow = x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    return np.where(np.abs(narrow) < _LEAST, np.copysign(np.float32(0), narrow), narrow)


def _flushed(x: Array) -> Array:
    return np.where(np.abs(x) < _LEAST, np.copysign(np.float32(0), x), x)


def _fma(total: Array, x: Array, y: Array, flush: bool) -> Array:
    """Rounded once: the product has 16 bits, so a double holds the sum, or one that rounds as it does."""
    with np.errstate(all="ignore"):
        added = (total.astype(np.float64) + x.astype(np.float64) * y.astype(np.float64)).astype(np.float32)
    return _flushed(added) if flush else added


def _pairs(x: Array, y: Array) -> tuple[Array, Array]:
    x, y = rounded(x), rounded(y)
    if x.shape[1] % 2:
        x, y = np.pad(x, ((0, 0), (0, 1))), np.pad(y, ((0, 1), (0, 0)))
    return x, y


def _block_terms(k: int) -> int:
    block = SHORT_SUM
    while block < k // block:
        block *= 2
    return block


def chain(x: Array, y: Array, flush: bool) -> Array:
    """VDPBF16PS: for each pair the second term, then the first. flush: sums below 2^-126 are 0, as the instruction has
    it; multiply-adds keep them."""
    x, y = _pairs(x, y)
    k = x.shape[1]
    sums = []
    for first in range(0, k, _block_terms(k)):
        total = np.zeros((x.shape[0], y.shape[1]), np.float32)
        for i in range(first, min(k, first + _block_terms(k)), 2):
            for term in (i + 1, i):
                total = _fma(total, x[:, term, None], y[term], flush)
        sums.append(total)
    total = sums[0]
    for more in sums[1:]:
        total = total + more
    return total


def blocks(x: Array, y: Array, flush: bool = True) -> Array:
    """TDPBF16PS: of 32 terms, those at even and those at odd places in chains of their own, then both are added."""
    x, y = _pairs(x, y)
    total = np.zeros((x.shape[0], y.shape[1]), np.float32)
    for first in range(0, x.shape[1], 32):
        halves = [np.zeros_like(total) for _ in range(2)]
        for i in range(first, min(x.shape[1], first + 32)):
            halves[i % 2] = _fma(halves[i % 2], x[:, i, None], y[i], flush)
        with np.errstate(all="ignore"):
            total = _flushed(total + _flushed(halves[0] + halves[1]))
    return total


def emulated(form: str, x: Array, y: Array) -> Array:
    return blocks(x, y) if form == "amx" else chain(x, y, form != "plain")

"""What the engine's multiply-accumulate path returns, in exact integers: the oracle of the C++ path, and no code shared
with it.

An fp16 is sign * significand * 2^(exponent - 10), with exponent 31 a number like any other. Units are 2^-16 throughout.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
LIMIT = 1 << 31  # 32768 in units


def parts(x: Array) -> tuple[Array, Array]:
    """Signed significand and exponent of each fp16."""
    bits = np.ascontiguousarray(x).view(np.uint16).astype(np.int64)
    field = bits >> 10 & 31
    size = np.where(field > 0, bits & 1023 | 1024, bits & 1023)
    return np.where(bits >> 15, -size, size), np.where(field > 0, field - 15, -14)


def products(x: Array, y: Array) -> Array:
    """Each product in units: dropped where the exponents add up to -17 or less, else rounded, halves away from zero."""
    (sx, ex), (sy, ey) = parts(x), parts(y)
    size, exponent = np.abs(sx * sy), ex + ey
    shift = 4 - exponent  # size * 2^(exponent - 20) in units of 2^-16
    down = size + (np.int64(1) << np.clip(shift - 1, 0, 62)) >> np.clip(shift, 0, 62)
    units = np.where(shift > 0, down, size << np.clip(-shift, 0, 40))
    return np.where(exponent <= -17, 0, np.sign(sx * sy) * units)


def number(x: Array) -> Array:
    """In units, halves away from zero: what a bias brings."""
    significand, exponent = parts(x)
    return np.array(
        [
            _halves_away(int(s) << max(int(e) + 6, 0), max(-(int(e) + 6), 0))
            for s, e in zip(significand.flat, exponent.flat, strict=True)
        ]
    ).reshape(x.shape)


def _halves_away(value: int, shift: int) -> int:
    if shift == 0:
        return value
    size = abs(value) + (1 << (shift - 1)) >> shift
    return size if value >= 0 else -size


def rounded(units: Array | int) -> Array:
    """The fp16 of accumulators, halves away from zero; never -0."""
    size = np.abs(np.asarray(units, np.int64))
    shift = np.maximum(np.frexp(size.astype(np.float64))[1] - 11, 0)  # fp64 holds what is below 2^53
    kept = size + (np.int64(1) << shift >> 1) >> shift << shift
    return np.asarray(np.sign(units) * kept * 2.0**-16).astype(np.float16)


def accumulated(terms: Array, start: Array) -> Array:
    """Terms along the last axis, in order; an accumulator that reaches 32768 stays infinite."""
    # From any finite accumulator 2^32 and more overflow alike, and sums of 2^32 stay in 64 bits.
    partial = np.cumsum(np.clip(terms, -2 * LIMIT, 2 * LIMIT), -1) + start[..., None]
    partial = np.concatenate([start[..., None], partial], -1)
    over = np.abs(partial) >= LIMIT
    first = np.take_along_axis(partial, over.argmax(-1)[..., None], -1)[..., 0]
    ends = np.where(over.any(-1), 0, partial[..., -1])
    return np.where(over.any(-1), np.copysign(np.inf, first), rounded(ends)).astype(np.float16)


def matmul(x: Array, y: Array, bias: Array | None = None) -> Array:
    """[M, K] x [K, N], fp16."""
    start = np.zeros(y.shape[1], np.int64) if bias is None else number(bias).astype(np.int64)
    rows = [accumulated(products(row, y.T), start) for row in x]
    return np.stack(rows) if rows else np.empty((0, y.shape[1]), np.float16)


def half_away(x: Array) -> Array:
    """fp64 -> fp16, halves away from zero, of numbers within fp16's range."""
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(x), 2.0**-60))), -14) - 10
    return (np.sign(x) * np.floor(np.ldexp(np.abs(x), -exponent.astype(int)) + 0.5) * np.exp2(exponent)).astype(
        np.float16
    )


def winograd(x: Array, w: Array, bias: Array, groups: int, pads: Sequence[int] = (1, 1, 1, 1)) -> Array:
    """A 3x3 convolution by F(2, 3) along the width: x [N, H, W, C], w [O, C / groups, 3, 3]; pads (top, bottom, left,
    right)."""
    d = np.pad(x.astype(np.float64), ((0, 0), pads[:2], (pads[2], pads[3] + 1), (0, 0)))
    g = w.astype(np.float64)
    u = [g[..., 0], g.sum(-1) / 2, (g[..., 0] - g[..., 1] + g[..., 2]) / 2, g[..., 2]]
    weights = [half_away(part) for part in u]  # [O, C / groups, KH]
    start, outputs, channels = number(bias).astype(np.int64), w.shape[0] // groups, w.shape[1]
    out = np.empty((len(x), d.shape[1] - 2, d.shape[2] - 3, w.shape[0]), np.float16)
    for n, y, column, g in np.ndindex(*out.shape[:3], groups):
        pair = d[n, y : y + 3, column // 2 * 2 : column // 2 * 2 + 4].transpose(1, 2, 0)  # 4, C, KH
        own, of_group = pair[:, g * channels : (g + 1) * channels], slice(g * outputs, (g + 1) * outputs)
        v = [half_away(part) for part in (own[0] - own[2], own[1] + own[2], own[2] - own[1], own[1] - own[3])]
        m = [products(a, b[of_group]).sum((1, 2)) for a, b in zip(v, weights, strict=True)]
        total = m[0] + m[1] + m[2] if column % 2 == 0 else m[1] - m[2] - m[3]
        out[n, y, column, of_group] = rounded(total + start[of_group])
    return out

"""What the engine's multiply-accumulate path returns, in exact integers: the oracle of the C++ path, and no code shared with it.

An fp16 is sign * significand * 2^(exponent - 10), with exponent 31 a number like any other. Units are 2^-16 throughout.
"""

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


def rounded(units: int) -> np.float16:
    """The fp16 of an accumulator, halves away from zero; never -0."""
    size = abs(units)
    shift = max(size.bit_length() - 11, 0)
    value = (_halves_away(size, shift) << shift) * 2.0**-16
    return np.float16(np.copysign(value, units) if units else 0.0)


def accumulated(terms: Array, bias: int = 0) -> np.float16:
    """Terms in order; an accumulator that reaches 32768 stays infinite."""
    total = bias
    if abs(total) >= LIMIT:
        return np.float16(np.copysign(np.inf, total))
    partial = np.cumsum(terms.astype(np.int64)) + total
    over = np.nonzero(np.abs(partial) >= LIMIT)[0]
    if over.size:
        return np.float16(np.copysign(np.inf, partial[over[0]]))
    return rounded(int(partial[-1]) if partial.size else total)


def matmul(x: Array, y: Array, bias: Array | None = None) -> Array:
    """[M, K] x [K, N], fp16."""
    out = np.empty((x.shape[0], y.shape[1]), np.float16)
    start = np.zeros(y.shape[1], object) if bias is None else number(bias)
    for m, n in np.ndindex(out.shape):
        out[m, n] = accumulated(products(x[m], y[:, n]), int(start[n]))
    return out


def half_away(x: Array) -> Array:
    """fp64 -> fp16, halves away from zero, of numbers within fp16's range."""
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(x), 2.0**-60))), -14) - 10
    return (np.sign(x) * np.floor(np.ldexp(np.abs(x), -exponent.astype(int)) + 0.5) * np.exp2(exponent)).astype(
        np.float16
    )


def winograd(x: Array, w: Array, bias: Array, groups: int) -> Array:
    """A 3x3 convolution with a margin of 1 by F(2, 3) along the width: x [N, H, W, C], w [O, C / groups, 3, 3]."""
    d = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 2), (0, 0)))
    g = w.astype(np.float64)
    u = [g[..., 0], g.sum(-1) / 2, (g[..., 0] - g[..., 1] + g[..., 2]) / 2, g[..., 2]]
    weights = [half_away(part) for part in u]  # [O, C / groups, KH]
    start, outputs = number(bias), w.shape[0] // groups
    out = np.empty((*x.shape[:3], w.shape[0]), np.float16)
    for n, y, column, o in np.ndindex(out.shape):
        pair = d[n, y : y + 3, column // 2 * 2 : column // 2 * 2 + 4].transpose(1, 2, 0)  # 4, C, KH
        own = pair[:, o // outputs * w.shape[1] : (o // outputs + 1) * w.shape[1]]
        v = [half_away(part) for part in (own[0] - own[2], own[1] + own[2], own[2] - own[1], own[1] - own[3])]
        m = [products(a, b[o]).sum() for a, b in zip(v, weights, strict=True)]
        terms = [m[0], m[1], m[2]] if column % 2 == 0 else [m[1], -m[2], -m[3]]
        out[n, y, column, o] = rounded(int(sum(terms)) + int(start[o]))
    return out

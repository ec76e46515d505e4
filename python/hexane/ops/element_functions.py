"""NumPy references of elementwise ops that NumPy does not have in the form an op needs."""

import math
from typing import Any

import numpy as np

from hexane.dtypes import integer_range

Array = Any
_erf: Any = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    """Returns the error function, elementwise in fp64."""
    return np.asarray(_erf(np.asarray(x, np.float64)), np.float64)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softplus(x: Array) -> Array:
    return np.logaddexp(x, 0)


def real_div(x: Array, y: Array) -> Array:
    if np.issubdtype(x.dtype, np.floating):
        return x / y
    # Integer division truncates toward zero, as in ONNX.
    quotient = np.floor_divide(x, y)
    return quotient + ((quotient < 0) & (quotient * y != x))


def power(x: Array, y: Array) -> Array:
    if not np.issubdtype(x.dtype, np.floating):
        return _integer_power(x, y)
    # For a single exponent of 0.5, NumPy computes a root: NaN for -infinity.
    powers = np.power(x, y)
    return (
        np.where(np.isneginf(x) & (y == 0.5), np.inf, powers).astype(powers.dtype)
        if powers.dtype.kind == "f"
        else powers
    )


def _integer_power(x: Array, y: Array) -> Array:
    """Integers to a negative power are truncated fractions, and 0 for 0. NumPy refuses negative powers."""
    powers = np.power(x, np.maximum(y, 0))
    if not np.issubdtype(y.dtype, np.signedinteger):
        return powers
    ones = np.where(x == 1, 1, np.where(x == -1, 1 - 2 * (y & 1), 0))
    return np.where(y < 0, ones, powers).astype(powers.dtype)


def converted(x: Array, dtype: Any) -> Array:
    """Casts x. Floats to integers truncate; numbers outside the range saturate, and NaN becomes 0."""
    if dtype.kind in ("int", "uint") and not np.issubdtype(x.dtype, np.integer) and x.dtype != np.bool_:
        info = np.iinfo(dtype.numpy)
        value = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
        inside = (value >= info.min) & (value < float(info.max) + (0 if dtype.bits == 64 else 1))
        whole = np.where(inside, value, 0).astype(dtype.numpy)
        return np.where(inside, whole, np.where(value > 0, info.max, info.min).astype(dtype.numpy))
    return x.astype(dtype.numpy)


def clipped(x: Array, alpha: float, beta: float) -> Array:
    if x.dtype.kind not in "iu":
        return np.minimum(np.maximum(x, alpha), beta).astype(x.dtype)
    least, most = integer_range(x.dtype)  # the range in integers: fp64 skips integers beyond 2^53
    low, high = (int(min(max(end, least), most)) for end in (alpha, beta))
    return np.minimum(np.maximum(x, x.dtype.type(low)), x.dtype.type(high))


def is_infinite(x: Array, detect_negative: bool, detect_positive: bool) -> Array:
    return (np.isposinf(x) & detect_positive) | (np.isneginf(x) & detect_negative)

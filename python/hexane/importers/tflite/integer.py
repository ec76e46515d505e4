"""The integer arithmetic of TFLite's reference kernels, in int64 ops. The functions also compute tables: with constants
as operands, the ops are folded.

    two(x, m, shift) = shifted(rounded(x * 2^max(shift, 0) * m / 2^31), max(-shift, 0)), int32 sums
    scaled_once(x, real) = x * real as doubles, rounded once, halves away from 0
    one(x, m, shift) = (x * m16 + 2^(14 - shift)) >> (15 - shift), m16 = min((m + 2^15) >> 16, 32767), int64 sums
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from hexane.dtypes import INT32, INT64, DType
from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.importers.tflite.model import Grid
from hexane.importers.tflite.registry import INT8, INT16, NARROW, UINT8, limits
from hexane.ops.compose import Builder, cast
from hexane.ops.records.q31 import DIGITS, quantize_multiplier

NONE, RELU, RELU_N1_TO_1, RELU6, TANH = range(5)
RELU_0_TO_1 = -1  # an op of its own, never a fused activation
Clamp = tuple[int, int]
RANGES = {NONE: (-np.inf, np.inf), RELU: (0.0, np.inf), RELU_N1_TO_1: (-1.0, 1.0), RELU6: (0.0, 6.0),
          RELU_0_TO_1: (0.0, 1.0)}  # fmt: skip


def multiplier(real: float) -> tuple[int, int]:
    """Returns the integer multiplier and shift of a factor. Raises Error for a factor that is not positive, not
    finite, or 2^30 or more."""
    if not 0 < real < np.inf:
        raise Error(f"got the factor {real} of scales, need a positive number")
    return quantize_multiplier(float(real))


def multipliers(reals: Array) -> tuple[Array, Array]:
    pairs = [multiplier(float(r)) for r in np.atleast_1d(reals)]
    return np.array([m for m, _ in pairs], np.int64), np.array([s for _, s in pairs], np.int64)


def away(x: Any) -> Any:
    """Rounds halves away from 0, in the dtype of x."""
    return np.sign(x) * np.floor(np.abs(np.asarray(x, np.float64)) + 0.5)


def bounds(code: int, grid: Grid, dtype: DType) -> Clamp:
    """Returns the range of integers after a fused activation. Raises Error for an activation without limits in
    RANGES, such as tanh."""
    if code not in RANGES:
        raise Error(f"got the fused activation {code}, need none, relu, relu6 or relu_n1_to_1")
    low, high = limits(dtype)
    steps = [
        float(away(np.float32(end) / grid.scale)) + grid.zero if np.isfinite(end) else float(end)
        for end in RANGES[code]
    ]
    return int(np.clip(steps[0], low, high)), int(np.clip(steps[1], low, high))


# ---- arithmetic on run-time values ----


def check_bias(bias: Value | None) -> None:
    """Raises Error for a bias of an integer product that is neither int32 nor int64. LiteRT refuses it, too."""
    if bias is not None and bias.dtype not in (INT32, INT64):
        raise Error(f"got a bias of {bias.dtype} for a product of integers, need int32 or int64")


def centred(b: Builder, x: Value, zero: int) -> Value:
    """Returns x minus its zero point, in int64."""
    wide = cast(b, x, INT64)
    return b.sub(wide, zero) if zero else wide


def wrapped(b: Builder, x: Value) -> Value:
    """Wraps x to the range of int32."""
    return b.sub(b.bitwise_and(b.add(x, 1 << 31), (1 << 32) - 1), 1 << 31)


def halved_away(b: Builder, x: Value, right: Any) -> Value:
    """Returns x / 2^right, rounded to nearest with halves away from 0. right: an array, or an int64 value."""
    if isinstance(right, Value):
        half = b.shift_right(b.shift_left(b.const(np.int64(1)), right), b.const(np.int64(1)))
        moved = b.select(b.logical_and(b.less(x, 0), b.greater(right, 0)), b.sub(x, 1), x)
        return b.shift_right(b.add(moved, half), right)
    bits = np.asarray(right, np.int64)
    if not bits.any():
        return x
    halves = np.where(bits > 0, np.int64(1) << np.maximum(bits - 1, 0), 0)
    sign = b.shift_right(x, b.const(np.int64(63)))
    sign = sign if (bits > 0).all() else b.bitwise_and(sign, b.const(np.where(bits > 0, -1, 0).astype(np.int64)))
    return b.shift_right(b.add(b.add(x, sign), b.const(halves)), b.const(bits))


def high_product(b: Builder, x: Value, y: Value | Array | int) -> Value:
    """Returns SaturatingRoundingDoublingHighMul of int32 numbers, computed in int64 without saturation."""
    other: Any = b.const(np.asarray(y, np.int64)) if not isinstance(y, Value) else y
    return b.shift_right(b.add(b.mul(x, other), 1 << 30), b.const(np.int64(31)))


def two(b: Builder, x: Value, m: Any, shift: Any) -> Value:
    """MultiplyByQuantizedMultiplier with two roundings. m and shift: numbers, or arrays that broadcast."""
    m, shift = np.asarray(m, np.int64), np.asarray(shift, np.int64)
    left = np.maximum(shift, 0)
    if left.any():
        x = wrapped(b, b.shift_left(x, b.const(left)))
    return halved_away(b, high_product(b, x, m), np.maximum(-shift, 0))


def one(b: Builder, x: Value, m: Any, shift: Any) -> Value:
    """MultiplyByQuantizedMultiplier of int64 sums, with a multiplier of 15 bits and one rounding, halves up."""
    m, shift = np.asarray(m, np.int64), np.asarray(shift, np.int64)
    small = np.minimum((m + (1 << 15)) >> 16, 32767)
    if (shift > 14).any():
        raise Error("got a factor of scales above 2^14, need a smaller one")
    half = np.int64(1) << np.minimum(14 - shift, 62)
    product = b.add(b.mul(x, b.const(small)), b.const(half))
    return b.shift_right(product, b.const(np.minimum(15 - shift, 63)))


PART = 18  # bits of a multiplier that are multiplied by a sum at once.
MOST_SUM = 1 << 44  # MOST_SUM times the first 17 of 53 bits is below 2^61.
MOST_REAL = 65536.0


def scaled_once(b: Builder, x: Value, reals: Array) -> Value:
    """Returns x * reals as computed in doubles, rounded to an integer with halves away from 0. |x| must be below
    MOST_SUM and reals below MOST_REAL. Results are exact up to 2^52.

    The product of the magnitudes is w 2^36 + rest, in units of 2^(shift - 53). Rounding the product to an integer gives
    the result, with one exception: the double may round a product at most half a unit in the last place below a half (k
    + 0.5) up to the half.
    """
    least = 1 - MOST_SUM.bit_length()  # least shift: with a smaller one, all products are below a half
    if any(r >= MOST_REAL for r in reals):
        raise Error(f"got factors of scales up to {max(reals)}, need less than {MOST_REAL}")
    fractions, shift = np.frexp(np.asarray(reals, np.float64))
    digits = np.where(shift < least, 0, fractions * 2.0**DIGITS).astype(np.int64)
    shift = np.maximum(shift.astype(np.int64), least)

    def bits(count: Any) -> Value:
        return b.const(np.asarray(count, np.int64))

    mask = (1 << PART) - 1
    size = b.abs(x)
    low = b.mul(size, bits(digits & mask))
    middle = b.add(b.mul(size, bits(digits >> PART & mask)), b.shift_right(low, bits(PART)))
    w = b.add(b.mul(size, bits(digits >> 2 * PART)), b.shift_right(middle, bits(PART)))
    rest = b.add(b.mul(b.bitwise_and(middle, mask), 1 << PART), b.bitwise_and(low, mask))
    point = DIGITS - 2 * PART - shift
    half = np.int64(1) << (point - 1)
    whole = b.shift_right(b.add(w, bits(half)), bits(point))
    tie = b.mul(b.add(b.mul(whole, 2), 1), bits(half))
    far = b.sub(b.mul(b.minimum(b.sub(tie, w), 1 << PART), 1 << 2 * PART), rest)
    # In units of w, a half of n bits is at most 2^(n + 36 - 54) above a product: n - 18 bits of ones, plus 1.
    last = b.sub(tie, 1)
    ones = b.shift_right(last, bits(PART))
    for by in (1, 2, 4, 8, 16, 32):
        ones = b.bitwise_or(ones, b.shift_right(ones, bits(by)))
    rises = b.logical_and(b.less_equal(far, b.add(ones, 1)), b.greater_equal(last, 1 << (PART - 1)))
    whole = b.add(whole, cast(b, rises, INT64))
    return b.select(b.less(x, 0), b.neg(whole), whole)


def reciprocal(b: Builder, total: Value) -> tuple[Value, Value]:
    """Returns the bit lengths of int32 numbers, and 1 / (1 + x) in Q0.31 for total = (1 + x) * 2^(bits - 1)."""
    powers = b.const(np.int64(1) << np.arange(31, dtype=np.int64))
    rank = len(total.shape)
    bits = b.reduce_sum(cast(b, b.greater_equal(total, powers), INT64), axes=(rank - 1,))
    x = b.sub(b.shift_left(total, b.sub(b.const(np.int64(32)), bits)), 1 << 31)
    half = half_sum(b, x)
    y = b.add(high_product(b, half, -1010580540), 1515870810)
    for _ in range(3):
        rest = b.sub(b.const(np.int64(1 << 29)), high_product(b, half, y))
        y = b.add(y, saturated(b, b.mul(high_product(b, y, rest), 4)))
    return bits, saturated(b, b.mul(y, 2))


def half_sum(b: Builder, x: Value) -> Value:
    """Returns half the sum of x and 2^31 - 1, rounded away from 0."""
    total = b.add(x, (1 << 31) - 1)
    return b.real_div(b.select(b.greater_equal(total, 0), b.add(total, 1), b.sub(total, 1)), 2)


def saturated(b: Builder, x: Value) -> Value:
    return clamped(b, x, -(1 << 31), (1 << 31) - 1)


def clamped(b: Builder, x: Value, low: int | Array, high: int | Array) -> Value:
    return b.minimum(b.maximum(x, low), high)


def stored(b: Builder, x: Value, dtype: DType, zero: int, ends: Clamp | None = None) -> Value:
    """Returns int64 numbers in the dtype of a result, moved by its zero point and clamped."""
    low, high = limits(dtype) if ends is None else ends
    return cast(b, clamped(b, b.add(x, zero) if zero else x, low, high), dtype)


def rounded(b: Builder, x: Value, dtype: DType = INT64) -> Value:
    """Converts floats to integers, with halves rounded away from 0. The integer and the fraction of a float are exact,
    while x + 0.5 may be rounded."""
    size = b.abs(x)
    least = b.floor(size)
    up = b.greater_equal(b.sub(size, least), 0.5)
    return cast(b, b.mul(b.sign(x), b.add(least, cast(b, up, x.dtype))), dtype)


def quotient(b: Builder, x: Value, y: Value | int) -> Value:
    """Divides integers, truncated."""
    return b.real_div(x, y)


# ---- functions of one operand ----


def all_numbers(dtype: DType) -> Array:
    low, high = limits(dtype)
    return np.arange(low, high + 1, dtype=np.int64)


def by_table(b: Builder, x: Value, f: Callable[[Array], Array], dtype: DType) -> Value:
    """Looks up f(x) in a table of f over all numbers of x's dtype. Raises Error if x is not int8, uint8 or
    int16."""
    if x.dtype not in NARROW:
        raise Error(f"got {x.dtype}, need int8, uint8 or int16")
    with np.errstate(all="ignore"):
        table = np.asarray(f(all_numbers(x.dtype)))
    low, high = limits(dtype)
    table = np.clip(np.where(np.isnan(table), 0, table) if table.dtype.kind == "f" else table, low, high)
    table = table.astype(dtype.numpy)
    if x.dtype is INT16 or dtype not in (INT8, UINT8):
        least = limits(x.dtype)[0]
        return b.gather(b.const(table), b.sub(cast(b, x, INT32), least), axis=0)
    if x.dtype is INT8:
        table = np.concatenate([table[128:], table[:128]])
    return b.lookup(x, b.const(np.ascontiguousarray(table)))


def np_two(x: Array, m: Any, shift: Any) -> Array:
    """Like `two`, for constants."""
    m, shift = np.asarray(m, np.int64), np.asarray(shift, np.int64)
    left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
    x = ((np.asarray(x, np.int64) << left) + (1 << 31) & ((1 << 32) - 1)) - (1 << 31)
    high = (x * m + (1 << 30)) >> 31
    half = np.where(right > 0, np.int64(1) << np.maximum(right - 1, 0), 0)
    result: Array = np.where(high < 0, -((-high + half) >> right), (high + half) >> right)
    return result


def real(q: Array, grid: Grid) -> Array:
    values: Array = np.float32(grid.scale) * (q - grid.zero).astype(np.float32)
    return values


def on_grid(values: Array, grid: Grid) -> Array:
    """Quantises fp32 numbers as TFLite does for its tables: times the reciprocal of the scale, with halves rounded away
    from 0."""
    steps: Array = away(values.astype(np.float32) * (np.float32(1) / grid.scale)) + grid.zero
    return steps

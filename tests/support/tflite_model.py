"""TFLite's integer arithmetic in Python's whole numbers, one element at a time, as gemmlowp and TFLite's reference
kernels write it."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import numpy as np

LEAST, MOST = -(2**31), 2**31 - 1


def doubling_high_mul(a: int, b: int) -> int:
    """SaturatingRoundingDoublingHighMul: the quotient is cut off towards 0."""
    if a == b == LEAST:
        return MOST
    nudged = a * b + (2**30 if a * b >= 0 else 1 - 2**30)
    return abs(nudged) // 2**31 * (1 if nudged >= 0 else -1)


def rounding_divide(x: int, exponent: int) -> int:
    """RoundingDivideByPOT."""
    mask = 2**exponent - 1
    return (x >> exponent) + ((x & mask) > (mask >> 1) + (1 if x < 0 else 0))


def rescaled(x: int, multiplier: int, shift: int) -> int:
    """MultiplyByQuantizedMultiplier with two roundings; what overflows to the left, which TFLite leaves undefined,
    saturates."""
    left = max(LEAST, min(MOST, x * 2 ** max(shift, 0)))
    return rounding_divide(doubling_high_mul(left, multiplier), max(-shift, 0))


def multiplier_of(real: float) -> tuple[int, int]:
    """QuantizeMultiplier, in fractions."""
    exact, shift = Fraction(real), 0
    while exact >= 1:
        exact, shift = exact / 2, shift + 1
    while exact < Fraction(1, 2):
        exact, shift = exact * 2, shift - 1
    rounded = int(exact * 2**31 + Fraction(1, 2))
    if rounded == 2**31:
        rounded, shift = rounded // 2, shift + 1
    return (rounded, shift) if shift >= -31 else (0, 0)


def scaled_once(x: int, real: float) -> int:
    """TfLiteRound(double(x) * real) in fractions: the product rounded to a double, then halves away from 0."""
    size = abs(Fraction(float(x) * real))
    whole = (2 * size + 1) // 2
    return int(-whole if x < 0 else whole)


def near_halves(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """int32 sums and positive factors whose products lie at a half or a few units in the last place beside it, in every
    order of magnitude."""
    sums = np.trunc(np.exp2(rng.uniform(0, 31, count))) * rng.choice([-1, 1], count)
    halves = rng.integers(0, 260, count) + rng.choice([0.5, 1.0], count, p=[0.95, 0.05])
    reals = halves / np.abs(sums)
    for _ in range(4):
        reals = np.nextafter(reals, rng.choice([0, np.inf], count))
    return sums.astype(np.int32), reals


def clamped(x: int, zero: int, low: int, high: int) -> int:
    return max(low, min(high, x + zero))


def window(image: np.ndarray, at: Sequence[int], taps: Sequence[int], strides: Sequence[int], pads: Sequence[int]):  # type: ignore[no-untyped-def]
    """The taps of an output pixel that lie in the image [H, W, C], with their pixel."""
    for tap in product(*(range(n) for n in taps)):
        y, x = (o * s - p + t for o, s, p, t in zip(at, strides, pads, tap, strict=True))
        if 0 <= y < image.shape[0] and 0 <= x < image.shape[1]:
            yield tap, image[y, x]


def conv(
    x: np.ndarray,
    weight: np.ndarray,
    bias: Sequence[int],
    x_zero: int,
    multipliers: Sequence[tuple[int, int]],
    strides: Sequence[int],
    pads: Sequence[int],
    groups: int,
    out: np.ndarray,
    zero: int,
    low: int,
    high: int,
) -> None:
    """Fills `out` [N, OH, OW, O] from x [N, H, W, C] and a weight [O, C / groups, KH, KW]; pads: those at the top and
    the left."""
    each = weight.shape[0] // groups
    for n, oy, ox, o in np.ndindex(*out.shape):
        total, first = int(bias[o]), o // each * weight.shape[1]
        for (kh, kw), pixel in window(x[n], (oy, ox), weight.shape[2:], strides, pads):
            for c in range(weight.shape[1]):
                total += (int(pixel[first + c]) - x_zero) * int(weight[o, c, kh, kw])
        out[n, oy, ox, o] = clamped(rescaled(total, *multipliers[o]), zero, low, high)


def add(x: int, y: int, grids: Sequence[tuple[float, int]], low: int, high: int) -> int:
    """Scales and zero points of x, y and the output."""
    (x_scale, x_zero), (y_scale, y_zero), (scale, zero) = grids
    twice = 2 * max(x_scale, y_scale)
    total = rescaled((x - x_zero) * 2**20, *multiplier_of(x_scale / twice))
    total += rescaled((y - y_zero) * 2**20, *multiplier_of(y_scale / twice))
    return clamped(rescaled(total, *multiplier_of(twice / (2**20 * scale))), zero, low, high)


def mul(x: int, y: int, grids: Sequence[tuple[float, int]], low: int, high: int) -> int:
    (x_scale, x_zero), (y_scale, y_zero), (scale, zero) = grids
    real = np.float32(x_scale) * np.float32(y_scale) / np.float32(scale)  # the one scale that TFLite computes in floats
    return clamped(rescaled((x - x_zero) * (y - y_zero), *multiplier_of(float(real))), zero, low, high)


def mean(values: Sequence[int], grids: Sequence[tuple[float, int]], low: int, high: int) -> int:
    """The multiplier takes the division in, with as many bits as it has room for."""
    (x_scale, x_zero), (scale, zero) = grids
    multiplier, shift = multiplier_of(x_scale / scale)
    room = min(len(values).bit_length() - 1, 32, 31 + shift)
    total = sum(int(v) for v in values) - len(values) * x_zero
    return clamped(rescaled(total, (multiplier << room) // len(values), shift - room), zero, low, high)


def average(values: Sequence[int]) -> int:
    """AveragePool: halves away from 0."""
    total, count = sum(int(v) for v in values), len(values)
    return (abs(total) + count // 2) // count * (1 if total > 0 else -1)


def softmax(values: Sequence[int], powers: Sequence[int], bits: int) -> list[int]:
    """Softmax of the reference kernels: a sum with 12 integer bits, and one_over_one_plus_x_for_x_in_0_1 of it. powers:
    e^-d in Q0.31 for differences d; bits: those of a result. Numbers of steps above the least result."""
    exponentials = [powers[max(values) - v] for v in values]
    total = sum(rounding_divide(e, 12) for e in exponentials)
    over_unit = total.bit_length() - 20
    half = ((total << (12 - over_unit)) - 2**31 + MOST + 1) // 2
    x = 1515870810 + doubling_high_mul(half, -1010580540)
    for _ in range(3):
        rest = 2**29 - doubling_high_mul(half, x)
        x += max(LEAST, min(MOST, 4 * doubling_high_mul(x, rest)))
    share = max(LEAST, min(MOST, 2 * x))
    steps = (rounding_divide(doubling_high_mul(share, e), over_unit + 31 - bits) for e in exponentials)
    return [min(y, 2**bits - 1) for y in steps]

"""Tables of fixed-point functions, computed like TFLite's reference kernels (gemmlowp) in int64 arrays."""

from functools import cache
from typing import Any

import numpy as np

from hexane.graph import Array
from hexane.importers.tflite.integer import multiplier, np_two
from hexane.importers.tflite.model import Grid

LEAST, MOST = -(1 << 31), (1 << 31) - 1


def high(a: Any, b: Any) -> Array:
    """Computes SaturatingRoundingDoublingHighMul in int64, without saturation."""
    product: Array = (np.asarray(a, np.int64) * b + (1 << 30)) >> 31
    return product


def _divided(x: Array, bits: int) -> Array:
    """Computes RoundingDivideByPOT."""
    half = (1 << bits) >> 1
    return np.where(x < 0, -((-x + half) >> bits), (x + half) >> bits)


def _exp_on_quarter(a: Array) -> Array:
    """Returns e^a in Q0.31, for a from -1/4 to 0 in Q0.31."""
    x = a + (1 << 28)
    x2 = high(x, x)
    x3, x4 = high(x2, x), high(x2, x2)
    terms = _divided(high(_divided(x4, 2) + x3, 715827883) + x2, 1)
    result: Array = np.minimum(1895147668 + high(1895147668, x + terms), MOST)
    return result


FACTORS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)  # e^-1/4 to e^-16


def exp_on_negative(a: Array) -> Array:
    """Returns e^a in Q0.31, for a <= 0 in Q5.26."""
    a = np.asarray(a, np.int64)
    quarter = (a & ((1 << 24) - 1)) - (1 << 24)
    result = _exp_on_quarter(np.clip(quarter << 5, LEAST, MOST))
    rest = quarter - a
    for i, factor in enumerate(FACTORS):
        result = np.where(rest & (1 << (24 + i)), high(result, factor), result)
    return np.where(a == 0, MOST, result)


def exp_of_negative(scale: float, beta: float) -> Array:
    """Returns e^-(beta * scale * d) in Q0.31, for d from 0 to 255, the differences of bytes."""
    m, shift = multiplier(min(beta * scale * (1 << 26), float(MOST)))
    d = -np.arange(256, dtype=np.int64)
    scaled = high(d << shift, m) if shift >= 0 else -_divided(high(-d, m), -shift)
    return exp_on_negative(np.clip(scaled, LEAST, 0))


# ---- 16 bits ----

_LARGER = (
    4, 8, 12, 14, 15, 16, 17, 19, 20, 21, 22, 25, 27, 28, 29, 30, 31, 33, 34, 35, 37, 39, 40, 41, 43, 44, 45, 46, 49,
    50, 54, 62, 63, 64, 66, 82, 86, 93, 100, 103, 112, 116, 135, 255,
)  # fmt: skip


def _sigmoid_table() -> Array:
    table = np.round(65536 / (1 + np.exp(-np.arange(256) / 24))).astype(np.int64)
    table[list(_LARGER)] += 1
    return table


SIGMOID = _sigmoid_table()


def _scaled_16(q: Array, scale: float) -> Array:
    """Returns q in units of 1 / (3 * 4096)."""
    power = np.log2(scale)
    left = 12 + int(np.round(power))
    if power == np.round(power) and left == 0:
        number, left = 3, 0
    else:
        real, left = scale * 4096.0 * 3.0, 0
        while real <= 32767.0 / 2.0 and left <= 30:
            left, real = left + 1, real * 2.0
        number = int(real)
    return (q * number + ((1 << left) >> 1)) >> left


def logistic_16(q: Array, scale: float) -> Array:
    x = _scaled_16(q, scale)
    magnitude = np.abs(x)
    at = np.minimum(magnitude >> 9, 254)
    low, up = SIGMOID[at], SIGMOID[at + 1]
    result = np.where(magnitude >> 9 >= 255, 0x7FFF << 10, (low << 9) + (magnitude & 0x1FF) * (up - low))
    return np.where(x >= 0, result + (1 << 9), (1 << 25) - result + (1 << 9) - 1) >> 10


def tanh_16(q: Array, scale: float) -> Array:
    x = _scaled_16(q, scale)
    magnitude = np.abs(x)
    at = np.minimum(magnitude >> 8, 254)
    low, up = SIGMOID[at], SIGMOID[at + 1]
    result = np.where(magnitude >> 8 >= 255, 0xFFFF << 8, (low << 8) + (magnitude & 0xFF) * (up - low))
    return np.where(x >= 0, result - (1 << 23) + (1 << 7), -result + (1 << 23) + (1 << 7) - 1) >> 8


def _interpolated(function: Any, least: float, most: float) -> Array:
    """Returns a table of 513 numbers in Q0.15, each moved by half the interpolation error at the next midpoint."""
    step = (most - least) / 512
    table = np.zeros(513, np.int64)

    def clip(v: float) -> int:
        return int(min(max(v, -32768), 32767))

    def near(v: float) -> float:
        return float(np.sign(v) * np.floor(abs(v) + 0.5))

    for i in range(512):
        value = near(function(least + i * step) * 32768)
        middle = near((function(least + (i + 1) * step) * 32768 + near(function(least + i * step) * 32768)) / 2)
        exact = near(function(least + i * step + step / 2) * 32768)
        table[i] = clip(value - near((middle - exact) / 2))
    table[512] = clip(near(function(most) * 32768))
    return table


def _read(table: Array, x: Array) -> Array:
    """Interpolates in a table of 512 intervals for x from -32768 to 32767. The low 7 bits of x are the fraction."""
    at = 256 + (x >> 7)
    base, slope = table[at], table[at + 1] - table[at]
    result: Array = base + ((slope * (x & 0x7F) + 64) >> 7)
    return result


def softmax_16_tables(scale: float, beta: float) -> tuple[Array, Array]:
    """Returns tables of e^-d for the differences 0 to 65535 of int16, and of 1 / (1 + x) for 0..1 as -32768..32767."""
    powers = _interpolated(lambda v: float(np.exp(v)), -10.0, 0.0)
    shares = _interpolated(lambda v: 1.0 / (1.0 + v), 0.0, 1.0)
    m, shift = multiplier(scale * beta / (10.0 / 65535.0))
    d = -np.arange(65536, dtype=np.int64)
    scaled = np.clip(np_two(d, m, shift) + 32767, -32768, 32767)
    return _read(powers, scaled), _read(shares, np.arange(-32768, 32768))


# ---- hard swish ----


def _high_16(a: Any, b: Any) -> Array:
    product: Array = (np.asarray(a, np.int64) * b + (1 << 14)) >> 15
    return product


def _small(m: int) -> int:
    return min((m + (1 << 15)) >> 16, 32767)


def _fits(x: Array) -> Array:
    return np.clip(x, -32768, 32767)


def hard_swish_table(q: Array, grid: Grid, to: Grid) -> Array:
    hires_scale = np.float32(1 / 128) * np.float32(grid.scale)
    m, exponent = multiplier(float(hires_scale / np.float32(to.scale)))
    relu_m, relu_exponent = multiplier(float(hires_scale / np.float32(3.0 / 32768.0)))
    hires = (q - grid.zero) * 128
    before = _fits(_high_16(hires, _small(m)))
    relu = hires
    if relu_exponent > 0:
        relu = _fits(relu << (relu_exponent - 1))
    relu = _fits(_high_16(relu, _small(relu_m)))
    if relu_exponent > 0:
        relu = _fits(relu << 1)
    if relu_exponent < 0:
        relu = _divided(relu, -relu_exponent)
    relu = (relu + (1 << 15)) >> 1
    product = relu * before
    product = np.sign(product) * (np.abs(product) >> 15)
    result = _divided(product, -exponent) if exponent <= 0 else _fits(product << exponent)
    return result + to.zero


# ---- 16-bit gemmlowp, for the gates of LSTMs ----


def _constant(value: int) -> int:
    """Rounds a 32-bit constant to 16 bits."""
    return int(_divided(np.asarray(value, np.int64), 16))


def _exp_16(a: Array, integer_bits: int) -> Array:
    """Returns e^a in Q0.15, for a <= 0 with this number of integer bits."""
    point = 15 - integer_bits
    quarter = (a & ((1 << (point - 2)) - 1)) - (1 << (point - 2))
    x = _fits(quarter << integer_bits) + (1 << 12)
    x2 = _high_16(x, x)
    x3, x4 = _high_16(x2, x), _high_16(x2, x2)
    terms = _divided(_high_16(_divided(x4, 2) + x3, _constant(715827883)) + x2, 1)
    one = _constant(1895147668)
    result = _fits(one + _high_16(_fits(x + terms), one))
    rest = quarter - a
    for i, factor in enumerate(FACTORS):
        if i - 2 < integer_bits:
            result = np.where(rest & (1 << (point + i - 2)), _high_16(result, _constant(factor)), result)
    return np.where(a == 0, 32767, result)


def _newton_16(a: Array) -> Array:
    """Returns 2 / (1 + a) in Q2.13, for a in Q0.15."""
    total = a + 32767
    half = np.sign(total + 1) * (np.abs(total + 1) >> 1)
    x = _constant(1515870810) + _high_16(half, _constant(-1010580540))
    for _ in range(3):
        rest = (1 << 13) - _high_16(half, x)
        x = _fits(x + _fits(_high_16(x, rest) << 2))
    return x


@cache
def sigmoid_table_16() -> Array:
    """Returns the sigmoid of every int16 number in Q3.12, as Q0.15."""
    a = np.arange(-32768, 32768, dtype=np.int64)
    magnitude = np.minimum(np.abs(a), 32767)
    positive = _fits(_newton_16(_exp_16(-magnitude, 3)) << 1)
    result = np.where(a > 0, positive, 32767 - positive)
    return np.where(a == 0, 16384, result).astype(np.int16)


@cache
def tanh_table_16(integer_bits: int) -> Array:
    """Returns the tanh of every int16 number with this number of integer bits, as Q0.15."""
    a = np.arange(-32768, 32768, dtype=np.int64)
    magnitude = np.minimum(np.abs(a), 32767)
    positive = _fits((_newton_16(_exp_16(-magnitude, integer_bits + 1)) - (1 << 13)) << 2)
    return np.where(a == 0, 0, np.where(a > 0, positive, -positive)).astype(np.int16)


# ---- square roots ----

HALF_ROOT_2 = 1518500250


def inverse_roots(values: Array) -> tuple[Array, Array]:
    """Returns 1 / sqrt(x) = multiplier / 2^31 * 2^shift for integers below 2^29, by five Newton steps."""
    x = np.asarray(values, np.int64)
    width = np.sum(x[..., None] >= (np.int64(1) << np.arange(31, dtype=np.int64)), axis=-1)
    pairs = np.maximum((31 - width) // 2 - 1, 0)
    raised = (x << (2 * pairs)) >> 1
    half = _divided(raised, 1)
    root = np.full(x.shape, 1 << 28, np.int64)
    for _ in range(5):
        cube = np.clip(high(high(root, root), root) << 6, LEAST, MOST)
        root = np.clip((high((1 << 28) + (1 << 27), root) - high(half, cube)) << 3, LEAST, MOST)
    root = high(root, HALF_ROOT_2)
    right = 11 - pairs
    root = np.where(right < 0, root << np.maximum(-right, 0), root)
    return np.where(x <= 1, MOST, root), np.where(x <= 1, 0, -np.maximum(right, 0))


def rsqrt_table(q: Array, grid: Grid, to: Grid) -> Array:
    value = np.maximum(q - grid.zero, 0)
    root, shift = inverse_roots(value)
    m, out_shift = multiplier(float(np.float64(1) / np.float64(np.sqrt(np.float32(grid.scale)) * np.float32(to.scale))))
    data = np_two(np.ones_like(value), root, shift + 20)
    result = np_two(data, m, out_shift - 20) + to.zero
    return np.where(value == 0, 1 << 30, result)

"""What the engine's planar path returns, in NumPy's fp64: the oracle of the C++ path, and no code shared with it.

fp64 holds sums and products of two fp16 exactly. Results are rounded once, halves away from zero; a NaN is read as
infinity, and what is no number is written as 0.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_model import matmul
from hexane import _core
from hexane.program.attrs import Strings, pack
from hexane.stages.engine.numerics import engine_arithmetic
from hexane.targets.activations import Activation, activations
from hexane.targets.query import load_chip

Array = NDArray[Any]


@cache
def block(chip: str = "h13") -> bytes:
    """The parameter block of a chip's arithmetic."""
    return pack(_core.numerics_families()["engine"], engine_arithmetic(load_chip(chip)).parameters, Strings())


EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def read(x: Array) -> Array:
    return np.where(np.isnan(x), np.inf, x.astype(np.float64))


def write(x: Array) -> Array:
    size = np.abs(np.where(np.isnan(x), 0, x))
    with np.errstate(over="ignore"):
        exponent = np.clip(np.frexp(size)[1] - 1, -14, 15)
        units = np.floor(np.ldexp(size, 10 - exponent) + 0.5)  # exact: fp64 has room for the half
        rounded = np.ldexp(units, exponent - 10)
    value = np.where(rounded >= 65520, np.inf, rounded)
    return np.where(np.isnan(x), 0, np.copysign(value, x)).astype(np.float16)


def rounded(x: Array) -> Array:
    return read(write(x))


def constant(x: float) -> np.float64:
    """A number as a constant of a program."""
    return np.float64(np.float16(x))


# ---- tables ----


def lines(t: Activation, x: Array) -> Array:
    return np.interp(x, t.places, t.knots)


def tails(t: Activation, x: Array) -> Array:
    x = np.clip(x, *t.clamp)
    below, above = (np.where(np.isinf(x), 0 if a == 0 else x, a * x) + b for a, b in (t.left, t.right))
    return np.where(x < t.domain[0], below, np.where(x >= t.domain[1], above, lines(t, x)))


def by_mantissa(t: Activation, x: Array) -> Array:
    ordinary = np.where((x > 0) & np.isfinite(x), x, 1)
    m, e = np.frexp(ordinary)
    if t.domain[1] == 2:
        m, e = np.where(e % 2, 2 * m, m), e - e % 2
    of_m = rounded(lines(t, m))
    result = {
        "log2": lambda: rounded(of_m + e),
        "sqrt": lambda: np.ldexp(of_m, e // 2),
        "rsqrt": lambda: np.ldexp(of_m, -(e // 2)),
        "inverse": lambda: np.ldexp(of_m, -e),
    }[t.reduction]()
    result = np.where(np.isinf(x), t.at_infinity, result)
    return np.where(x == 0, t.at_zero, np.where(x < 0, 0, result))


def table(name: str, x: Array) -> Array:
    t = activations()[name]
    match t.reduction:
        case "none":
            return tails(t, x)
        case "odd":
            return np.copysign(tails(t, np.abs(x)), x)
        case "exp2":
            x = np.clip(x, *t.clamp)
            return np.ldexp(rounded(lines(t, x - np.floor(x))), np.floor(x).astype(int))
        case "quarters":
            return np.where(np.isinf(x), 0, np.copysign(1, x) * quarters(t, np.abs(x), 0))
        case "inverse":
            return np.where(x < 0, -by_mantissa(t, -x), by_mantissa(t, x))
        case _:
            return by_mantissa(t, x)


def quarters(t: Activation, size: Array, ahead: int) -> Array:
    """The domain is a quarter of the period."""
    quarter = t.domain[1]
    finite = np.where(np.isinf(size), 0, size)
    whole = np.floor(finite / quarter)
    rest, place = np.clip(finite - whole * quarter, 0, quarter), (whole + ahead) % 4
    y = lines(t, np.where(place % 2 == 1, quarter - rest, rest))
    return np.where(place >= 2, -y, y)


def exp(x: Array) -> Array:
    return rounded(table("exp2", rounded(x * constant(1.4426950408889634))))


# ---- ops: of numbers as read, what is then written ----

Unary = Callable[[Array], Array]

FROM_TABLES: Mapping[str, Unary] = {
    **{name: lambda x, name=name: table(name, x) for name in ("sigmoid", "tanh", "erf", "exp2", "sqrt", "rsqrt")},
    **{name: lambda x, name=name: table(name, x) for name in ("inverse", "gelu", "silu", "sin")},
    "gelu_tanh": lambda x: table("gelu", x),
    "exp": exp,
    "cos": lambda x: np.where(np.isinf(x), 0, quarters(activations()["sin"], np.abs(x), 1)),
    "log": lambda x: table("log2", x) * constant(0.6931471805599453),
}


def _hard_swish(x: Array) -> Array:
    return x * rounded(np.clip(rounded(x + 3), 0, 6) * constant(1 / 6))


def _softplus(x: Array) -> Array:
    return np.where(x > 10.394, 0, np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x < 0, constant(alpha) * rounded(exp(x) - 1), x)


def _celu(x: Array, alpha: float) -> Array:
    below = constant(alpha) * rounded(exp(rounded(x * constant(1 / alpha))) - 1)
    return np.where(x < 0, np.minimum(below, 0), x)


def _scaled_tanh(x: Array, alpha: float, beta: float) -> Array:
    return constant(alpha) * rounded(table("tanh", rounded(constant(beta) * x)))


def _linear(x: Array, alpha: float, beta: float) -> Array:
    return constant(alpha) * x + constant(beta)


UNARY: Mapping[str, tuple[Callable[..., Array], Mapping[str, float]]] = {  # and attributes to test it with
    "abs": (np.abs, {}),
    "neg": (np.negative, {}),
    "ceil": (np.ceil, {}),
    "floor": (np.floor, {}),
    "round": (np.rint, {}),
    "sign": (lambda x: np.where(x == 0, x, np.sign(x)), {}),
    "square": (np.square, {}),
    "relu": (lambda x: np.where(x < 0, 0, x), {}),
    "relu6": (lambda x: np.where(x < 0, 0, np.minimum(x, 6)), {}),
    "leaky_relu": (lambda x, alpha: np.where(x < 0, constant(alpha) * x, x), {"alpha": 0.01}),
    "clip": (lambda x, alpha, beta: np.clip(x, constant(alpha), constant(beta)), {"alpha": -1.3, "beta": 2.7}),
    "threshold": (lambda x, alpha: np.maximum(x, constant(alpha)), {"alpha": 0.3}),
    "thresholded_relu": (lambda x, alpha: np.where(x > constant(alpha), x, 0), {"alpha": 0.3}),
    "linear_activation": (_linear, {"alpha": 0.3, "beta": -0.7}),
    "sigmoid_hard": (
        lambda x, alpha, beta: np.clip(rounded(_linear(x, alpha, beta)), 0, 1),
        {"alpha": 0.2, "beta": 0.5},
    ),
    "hard_swish": (_hard_swish, {}),
    "elu": (_elu, {"alpha": 1.5}),
    "selu": (lambda x, alpha, beta: constant(beta) * rounded(_elu(x, alpha)), {"alpha": 1.67, "beta": 1.05}),
    "celu": (_celu, {"alpha": 1.3}),
    "scaled_tanh": (_scaled_tanh, {"alpha": 1.7159, "beta": 0.6667}),
    "atan": (np.arctan, {}),
    "softsign": (lambda x: x * rounded(table("inverse", rounded(1 + np.abs(x)))), {}),
    "softplus": (_softplus, {}),
    **{name: (function, {}) for name, function in FROM_TABLES.items()},
}

BINARY: Mapping[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": lambda a, b: np.where(a < b, b, a),
    "minimum": lambda a, b: np.where(b < a, b, a),
    "pow": lambda a, b: np.float32(np.power(a, b)).astype(np.float64),
    "prelu": lambda a, b: np.where(a < 0, a * b, a),
    "real_div": lambda a, b: a * rounded(table("inverse", b)),
    "floor_div": lambda a, b: np.floor(rounded(a * rounded(table("inverse", b)))),
}

COMPARISON: Mapping[str, Callable[[Array, Array], Array]] = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}


def unary(op: str, x: Array, *attributes: float) -> Array:
    """With the attributes to test it with, where none are given."""
    function, tested = UNARY[op]
    with np.errstate(all="ignore"):
        return write(np.asarray(function(read(x), *(attributes or tested.values()))))


def binary(op: str, a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        return write(np.asarray(BINARY[op](read(a), read(b))))


def compare(op: str, a: Array, b: Array) -> Array:
    return COMPARISON[op](read(a), read(b))


# ---- along lines: of [lines, n] numbers as read ----


def grouped_sum(x: Array) -> Array:
    """Fours of neighbours in order, each sum with 11 bits behind the larger exponent; fours exactly."""
    return np.asarray(fours(x).sum(1))


def resize_linear(x: Array, extents: tuple[int, int], places: tuple[Array, Array]) -> Array:
    """[N, H, W, C] at rows and columns between pixels, clamped to the image: in fp32, each operation rounded."""
    weights, wide = [], np.float32(read(x))
    for extent, place in zip(extents, places, strict=True):
        inside = np.clip(place, 0, extent - 1)
        low = inside.astype(int)
        weights.append((low, np.minimum(low + 1, extent - 1), np.float32(inside - low)))
    (up, down, lower), (left, right, part) = weights
    part, lower = part[:, None], lower[:, None, None]
    with np.errstate(invalid="ignore", over="ignore"):
        rows = [part * wide[:, r][:, :, right] + (1 - part) * wide[:, r][:, :, left] for r in (up, down)]
        return write((lower * rows[1] + (1 - lower) * rows[0]).astype(np.float64))


def tree_sum(x: Array) -> Array:
    """Fours of neighbours, then fours of their sums, and so on: what M6 may do with long lines."""
    while x.shape[1] > 1:
        x = fours(x)
    return x[:, 0]


def fours(x: Array) -> Array:
    parts = np.pad(x, ((0, 0), (0, -x.shape[1] % 4))).reshape(len(x), -1, 4)
    total = parts[..., 0]
    for i in range(1, 4):
        larger = np.maximum(np.abs(total), np.abs(parts[..., i]))
        place = np.ldexp(1.0, np.maximum(np.frexp(larger)[1] - 1, -24) - 11)
        total = (np.trunc(total / place) + np.trunc(parts[..., i] / place)) * place
    return np.asarray(total)


def reduced(op: str, x: Array) -> Array:
    """Of numbers in fp32 too, whose result is not rounded to fp16."""
    if x.dtype == np.float32:
        return np.float32(grouped_sum(x.astype(np.float64)) / (1 if op == "reduce_sum" else x.shape[1]))
    x = read(x)
    sums = {"reduce_sum": grouped_sum, "reduce_mean": lambda x: grouped_sum(x) / x.shape[1]}
    of_line = {**sums, "reduce_max": lambda x: x.max(1), "reduce_min": lambda x: x.min(1)}[op]
    return write(of_line(x) + 0.0)  # which of 0 and -0 is larger nobody has seen: the result is 0


def softmax(x: Array) -> Array:
    x = read(x)
    e = exp(rounded(x - x.max(1, keepdims=True)))
    return write(e * rounded(table("inverse", rounded(e.sum(1, keepdims=True)))))


def digits(x: Array) -> Array:
    """The digits of an fp16, whatever the exponent: what is beyond fp16 is rounded as if it were 2^-32 of it."""
    return np.where(np.abs(x) < 65520, rounded(x), rounded(x * 2.0**-32) * 2.0**32)


def wide_rsqrt(x: Array) -> Array:
    """By the table, which knows numbers times a power of 4 by their digits."""
    root = rounded(table("rsqrt", rounded(x)))
    for power in (16, 32):
        beyond = rounded(table("rsqrt", rounded(x * 2.0**-power))) * 2.0 ** -(power // 2)
        root = np.where(x * 2.0 ** (16 - power) < 65520, root, beyond)
    return root


def norm(x: Array, gamma: Array | None, beta: Array | None, epsilon: float, center: bool) -> Array:
    x = read(x)
    if center:
        x = digits(x - rounded(x.mean(1, keepdims=True)))
    variance = digits(digits(x * x).mean(1, keepdims=True))
    y = write(x * wide_rsqrt(variance + constant(epsilon)))
    if gamma is not None:
        y = binary("mul", y, gamma)
    return y if beta is None else binary("add", y, beta)


def attention(query: Array, key: Array, value: Array, scale: float, mask: Array | None) -> Array:
    """[L, E], [S, E], [S, V]; mask [L, S], added."""
    scores = rounded(read(matmul(query, np.ascontiguousarray(key.T))) * constant(scale))
    if mask is not None:
        scores = rounded(scores + read(mask))
    return matmul(softmax(write(scores)), value)

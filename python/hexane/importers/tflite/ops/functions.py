"""Functions of one operand, conversions between dtypes, and reductions of rows."""

from collections.abc import Callable
from math import erf

import numpy as np

from hexane.dtypes import BOOL, FP32, INT32, INT64, DType
from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.importers.tflite.integer import (
    RELU,
    RELU6,
    RELU_0_TO_1,
    RELU_N1_TO_1,
    away,
    bounds,
    by_table,
    centred,
    clamped,
    halved_away,
    high_product,
    multiplier,
    np_two,
    on_grid,
    real,
    rounded,
    saturated,
    stored,
    two,
)
from hexane.importers.tflite.model import Grid
from hexane.importers.tflite.ops.fixed_point import (
    HALF_ROOT_2,
    exp_of_negative,
    hard_swish_table,
    logistic_16,
    rsqrt_table,
    softmax_16_tables,
    tanh_16,
)
from hexane.importers.tflite.ops.spectra import real_and_imaginary
from hexane.importers.tflite.registry import COMPLEX, INT8, INT16, NARROW, UINT8, Context, limits, reads
from hexane.ops.compose import Builder, cast

Real = Callable[[Array], Array]
_erf = np.vectorize(erf, otypes=[np.float64])

_PLAIN = {
    "ABS": "abs", "NEG": "neg", "CEIL": "ceil", "FLOOR": "floor", "ROUND": "round", "SIGN": "sign", "SQRT": "sqrt",
    "RSQRT": "rsqrt", "EXP": "exp", "LOG": "log", "SIN": "sin", "COS": "cos", "TANH": "tanh", "LOGISTIC": "sigmoid",
    "RELU": "relu", "RELU6": "relu6", "LOGICAL_NOT": "logical_not", "HARD_SWISH": "hard_swish",
    "STABLEHLO_LOGISTIC": "sigmoid", "STABLEHLO_EXPONENTIAL": "exp", "STABLEHLO_NEGATE": "neg", "STABLEHLO_ABS": "abs",
    "STABLEHLO_LOG": "log", "STABLEHLO_RSQRT": "rsqrt", "STABLEHLO_TANH": "tanh", "STABLEHLO_COSINE": "cos",
    "STABLEHLO_FLOOR": "floor",
}  # fmt: skip


def _fp32(f: Callable[[Array], Array]) -> Real:
    """Returns a function that computes in doubles and rounds to fp32 once, like a good C library."""
    return lambda x: f(x.astype(np.float64)).astype(np.float32)


_REAL: dict[str, Real] = {
    "LOGISTIC": _fp32(lambda x: 1 / (1 + np.exp(-x))),
    "TANH": _fp32(np.tanh),
    "EXP": _fp32(np.exp),
    "ELU": _fp32(lambda x: np.where(x < 0, np.expm1(x), x)),
}


@reads(*_PLAIN)
def plain(c: Context) -> Value:
    x, name = c.x(), c.op.name
    if not c.is_integer:
        return c.b.apply(_PLAIN[name], x)
    f = _TABLES.get(name)
    if f is None:
        raise Error(f"got quantised numbers of {x.dtype}, need floats")
    return by_table(c.b, x, f(c, c.grid(), c.out_grid, x.dtype), c.out().dtype)


Table = Callable[[Context, Grid, Grid, DType], Real]
_TABLES: dict[str, Table] = {}


def _tables(*names: str) -> Callable[[Table], Table]:
    def register(f: Table) -> Table:
        _TABLES.update(dict.fromkeys(names, f))
        return f

    return register


@_tables("EXP", "LOGISTIC", "TANH")
def _of_reals(c: Context, grid: Grid, to: Grid, dtype: DType) -> Real:
    name = c.op.name
    if dtype is INT16:
        if name == "EXP":
            raise Error("got int16, whose exponential is not computed bit for bit, need int8")
        return lambda q: (logistic_16 if name == "LOGISTIC" else tanh_16)(q, float(grid.scale))
    return lambda q: on_grid(_REAL[name](real(q, grid)), to)


@_tables("LOG")
def _log(c: Context, grid: Grid, to: Grid, dtype: DType) -> Real:
    if dtype is INT16:
        raise Error("got int16, whose logarithm is not computed bit for bit, need int8")
    return lambda q: on_grid(_fp32(np.log)(real(q, grid)), to)


@_tables("SQRT")
def _sqrt(c: Context, grid: Grid, to: Grid, dtype: DType) -> Real:
    return lambda q: np.trunc(np.sqrt(np.maximum(real(q, grid), 0)) / np.float32(to.scale)) + to.zero


@_tables("HARD_SWISH")
def _hard_swish(c: Context, grid: Grid, to: Grid, dtype: DType) -> Real:
    return lambda q: hard_swish_table(q, grid, to)


@_tables("RELU", "RELU6", "RELU_N1_TO_1")
def _relu(c: Context, grid: Grid, to: Grid, dtype: DType) -> Real:
    code = {"RELU": RELU, "RELU6": RELU6, "RELU_N1_TO_1": RELU_N1_TO_1, "RELU_0_TO_1": RELU_0_TO_1}[c.op.name]
    m, shift = multiplier(float(np.float32(grid.scale) / np.float32(to.scale)))
    low, high = bounds(code, to, dtype)
    return lambda q: np.clip(np_two(q - grid.zero, m, shift) + to.zero, low, high)


@_tables("ABS")
def _abs(c: Context, grid: Grid, to: Grid, dtype: DType) -> Real:
    if (grid.scale, grid.zero) == (to.scale, to.zero):
        return lambda q: np.asarray(np.abs(q - grid.zero) + to.zero)
    m, shift = multiplier(float(np.float64(np.float32(grid.scale) / np.float32(to.scale))))
    return lambda q: np_two(np.abs(q - grid.zero), m, shift) + to.zero


@_tables("RSQRT")
def _rsqrt(c: Context, grid: Grid, to: Grid, dtype: DType) -> Real:
    if dtype is INT16:
        raise Error("got int16, whose root is not computed bit for bit, need int8")
    return lambda q: rsqrt_table(q, grid, to)


@reads("RELU_N1_TO_1", "RELU_0_TO_1")
def relu_between(c: Context) -> Value:
    if c.is_integer:
        return by_table(c.b, c.x(), _relu(c, c.grid(), c.out_grid, c.x().dtype), c.out().dtype)
    return c.b.clip(c.x(), alpha=0.0 if c.op.name == "RELU_0_TO_1" else -1.0, beta=1.0)


@reads("ELU")
def elu(c: Context) -> Value:
    if not c.is_integer:
        return c.b.elu(c.x(), alpha=1.0)
    grid, to = c.grid(), c.out_grid
    return by_table(c.b, c.x(), lambda q: on_grid(_REAL["ELU"](real(q, grid)), to), c.out().dtype)


@reads("SQUARE")
def square(c: Context) -> Value:
    return c.b.mul(c.x(), c.x())


@reads("ZEROS_LIKE")
def zeros_like(c: Context) -> Value:
    return c.b.const(np.zeros(c.x().shape, c.x().dtype.numpy))


@reads("GELU")
def gelu(c: Context) -> Value:
    x, b = c.x(), c.b
    if not c.is_integer:
        return b.gelu_tanh(x) if c.o["approximate"] else b.gelu(x)
    grid, to = c.grid(), c.out_grid

    def f(v: Array) -> Array:
        if c.o["approximate"]:
            return np.asarray(0.5 * v * (1 + np.tanh(0.7978845608028654 * (v + 0.044715 * v**3))))
        return np.asarray(0.5 * v * (1 + _erf(v / np.sqrt(2))))

    return by_table(b, x, lambda q: on_grid(_fp32(f)(real(q, grid)), to), c.out().dtype)


@reads("LEAKY_RELU")
def leaky_relu(c: Context) -> Value:
    x, b, alpha = c.x(), c.b, np.float32(c.o["alpha"])
    if not c.is_integer:
        return b.select(b.greater(x, 0.0), x, b.mul(x, float(alpha)))
    grid, to = c.grid(), c.out_grid
    si, so = np.float32(grid.scale), np.float32(to.scale)
    same, low = multiplier(float(si / so)), float(si * alpha / so)
    m, shift = multiplier(abs(low)) if low else (0, 0)

    def f(q: Array) -> Array:
        v = q - grid.zero
        negative = np_two(v, m, shift) * (-1 if low < 0 else 1)
        return np.where(v >= 0, np_two(v, *same), negative) + to.zero

    return by_table(b, x, f, c.out().dtype)


# ---- conversions ----


@reads("QUANTIZE")
def quantize(c: Context) -> Value:
    x, b, tensor, dtype = c.x(), c.b, c.out(), c.out().dtype
    if c.translator.in_floats and x.dtype.kind == "float":
        return x
    to = c.out_grid
    if x.dtype.kind == "float":
        shape = [1] * len(x.shape)
        if to.scales.size > 1:
            shape[to.axis] = to.scales.size
        scale = b.const(to.scales.astype(np.float32).reshape(shape if to.scales.size > 1 else ()))
        zero = to.zeros.astype(np.int64).reshape(shape if to.zeros.size > 1 else ())
        low, high = (-8, 7) if tensor.type == "INT4" else limits(dtype)
        wide = INT32 if dtype in NARROW else INT64
        ends = [(end - zero).astype(wide.numpy) for end in (low, high)]
        # Clamped before the zero point is added, because a sum with the largest integer would wrap.
        steps = clamped(b, rounded(b, b.real_div(x, scale), wide), *ends)
        return cast(b, b.add(steps, b.const(zero.astype(wide.numpy))), dtype)
    grid = c.grid()
    m, shift = multiplier(float(np.float64(grid.scale) / np.float64(to.scale)))

    def f(q: Array) -> Array:
        return np_two(q - grid.zero, m, shift) + to.zero

    if x.dtype in NARROW:
        return by_table(b, x, f, dtype)
    return stored(b, two(b, centred(b, x, grid.zero), m, shift), dtype, to.zero)


@reads("DEQUANTIZE")
def dequantize(c: Context) -> Value:
    return dequantised(c, 0)


def dequantised(c: Context, i: int) -> Value:
    """Returns an operand as fp32."""
    x, b = c.x(i), c.b
    if x.dtype.kind == "float":
        return cast(b, x, FP32)
    grid = c.grid(i)
    if grid.blocks is not None:
        raise Error("got numbers quantised in blocks, need one scale or one for each channel")
    per_channel = grid.scales.size > 1
    scale = b.const(grid.scales.astype(np.float32).reshape(-1 if per_channel else ()))
    zeros = grid.zeros.astype(x.dtype.numpy).reshape(-1 if per_channel else ())
    return b.dequantize(x, scale, b.const(zeros) if zeros.any() else None, axis=grid.axis if per_channel else 0)


@reads("DENSIFY")
def densify(c: Context) -> Value:
    """Returns the operand: constants are expanded at import."""
    return c.x()


@reads("FAKE_QUANT")
def fake_quant(c: Context) -> Value:
    """Quantises and dequantises like TFLite's kernel, which shifts the range to contain 0."""
    b, x = c.b, c.x()
    least, most = np.float32(c.o["min"]), np.float32(c.o["max"])
    low = np.float32(1 if c.o["narrow_range"] else 0)
    high = np.float32((1 << int(c.o["num_bits"])) - 1)
    if not least < most:
        raise Error(f"got the range {least} to {most}, need one that is not empty")
    scale = (most - least) / (high - low)
    first = low - least / scale
    zero = low if first < low else high if first > high else np.float32(away(first))
    moved_least, moved_most = (low - zero) * scale, (high - zero) * scale
    inverse = np.float32(1) / scale
    held = b.minimum(b.maximum(x, float(moved_least)), float(moved_most))
    steps = b.mul(b.sub(held, float(moved_least)), float(inverse))
    return b.add(b.mul(cast(b, rounded(b, steps, INT32), FP32), float(scale)), float(moved_least))


@reads("CAST")
def convert(c: Context) -> Value:
    """Casts x. Floats are truncated, and integers wrap. Complex numbers are cast by their real parts."""
    b = c.b
    if c.out().type == COMPLEX:
        if c.is_complex():
            return c.pairs()
        x = c.x()
        reals = b.reshape(cast(b, x, FP32), shape=(*x.shape, 1))
        return b.concat(reals, b.const(np.zeros((*x.shape, 1), np.float32)), axis=-1)
    x, to = real_and_imaginary(c)[0] if c.is_complex() else c.x(), c.out().dtype
    if to is BOOL:
        return b.not_equal(x, 0) if x.dtype.kind != "bool" else x
    if x.dtype.kind in ("int", "uint") and to.kind in ("int", "uint") and to.bits < x.dtype.bits:
        wide, half = cast(b, x, INT64), 1 << (to.bits - 1)
        if x.dtype.name == "uint64":
            raise Error("got uint64, need another type")
        if to.kind == "uint":
            return cast(b, b.bitwise_and(wide, (1 << to.bits) - 1), to)
        return cast(b, b.sub(b.bitwise_and(b.add(wide, half), (1 << to.bits) - 1), half), to)
    if x.dtype.kind in ("int", "uint") and to.kind in ("int", "uint") and to.bits == x.dtype.bits:
        return b.bit_cast(x, dtype=to) if to is not x.dtype else x
    if x.dtype.kind == "float" and to.kind in ("int", "uint") and to.bits < 32:
        return cast(b, cast(b, x, FP32), to)
    return cast(b, x, to)


@reads("BITCAST")
def bitcast(c: Context) -> Value:
    if c.x().dtype.bits != c.out().dtype.bits:
        raise Error(f"got {c.x().dtype} as {c.out().dtype}, need a type of the same size")
    return c.b.bit_cast(c.x(), dtype=c.out().dtype)


# ---- reductions of rows ----


@reads("SOFTMAX")
def softmax(c: Context) -> Value:
    x, b, beta = c.x(), c.b, float(c.o["beta"])
    if not c.is_integer:
        return b.softmax(x if beta == 1 else b.mul(x, beta), axis=-1)
    return softmax_integers(c, x, c.grid(), beta)


def softmax_integers(c: Context, x: Value, grid: Grid, beta: float) -> Value:
    b, to, dtype = c.b, c.out_grid, c.out().dtype
    if x.dtype is INT16:
        if dtype is not INT16:
            raise Error(f"got int16 with a result of {dtype}, need int16")
        return _softmax_16(b, x, b.reduce_max(x, axes=(len(x.shape) - 1,)), grid, beta)
    if x.dtype not in (INT8, UINT8) or dtype not in (INT8, UINT8, INT16):
        raise Error(f"got {x.dtype} with a result of {dtype}, need 8 bits, and 8 bits or int16")
    scale, zero = 2.0**-dtype.bits, limits(dtype)[0]
    if (float(to.scale), to.zero) != (scale, zero):
        raise Error(f"got the scale {to.scale} and the zero point {to.zero} of {dtype}, need {scale} and {zero}")
    powers = exp_of_negative(float(grid.scale), beta) * exp_counts(float(grid.scale), beta)
    return b.q31_softmax(x, b.const(powers.astype(np.int32)), dtype=dtype)


def exp_counts(scale: float, beta: float) -> Array:
    """Returns 1 for each difference of bytes that the softmax kernel adds to its sum, else 0."""
    _, shift = multiplier(min(beta * scale * (1 << 26), float((1 << 31) - 1)))
    radius = int(np.floor(31 * 2.0 ** (31 - 5) / 2.0**shift))
    return (np.arange(256) <= radius).astype(np.int64)


def _softmax_16(b: Builder, x: Value, largest: Value, grid: Grid, beta: float) -> Value:
    powers, shares = softmax_16_tables(float(grid.scale), beta)
    last = len(x.shape) - 1
    difference = b.sub(cast(b, largest, INT32), cast(b, x, INT32))
    e = b.gather(b.const(powers), difference, axis=0)
    total = b.reduce_sum(e, axes=(last,))
    widths = b.const(np.int64(1) << np.arange(40, dtype=np.int64))
    bits = b.reduce_sum(cast(b, b.greater_equal(total, widths), INT64), axes=(last,))
    headroom = b.sub(b.const(np.int64(32)), bits)
    raised = b.shift_left(total, b.sub(headroom, 1))
    raised = b.shift_right(b.add(raised, 1 << 13), b.const(np.int64(14)))
    index = clamped(b, b.sub(raised, (1 << 16) + (1 << 15)), -32768, 32767)
    share = b.gather(b.const(shares), cast(b, b.add(index, 32768), INT32), axis=0)
    right = b.sub(b.const(np.int64(31)), headroom)
    product = b.mul(e, share)
    half = b.shift_right(b.shift_left(b.const(np.int64(1)), right), b.const(np.int64(1)))
    return cast(b, clamped(b, b.shift_right(b.add(product, half), right), 0, 32767), INT16)


@reads("LOG_SOFTMAX")
def log_softmax(c: Context) -> Value:
    if c.is_integer:
        raise Error("got quantised numbers, whose logarithm is not computed bit for bit, need floats")
    return c.b.log_softmax(c.x(), axis=-1)


@reads("L2_NORMALIZATION")
def l2_normalization(c: Context) -> Value:
    x, b = c.x(), c.b
    if c.is_integer:
        return _normalised_integers(c, x)
    norm = b.maximum(b.sqrt(b.reduce_sum(b.mul(x, x), axes=(len(x.shape) - 1,))), 1e-6)
    return b.real_div(x, norm)


MOST_NORMALISED = 8000  # bytes whose sum of squares is below 2^29


def _normalised_integers(c: Context, x: Value) -> Value:
    """Divides bytes by the root of their sum of squares, in units of 1/128."""
    b, last, count = c.b, len(x.shape) - 1, x.shape[-1]
    if x.dtype is INT16 or count > MOST_NORMALISED:
        raise Error(f"got {count} numbers of {x.dtype} in a row, need bytes, at most {MOST_NORMALISED}")
    to = c.out_grid
    if (float(to.scale), to.zero) != (1 / 128, 0 if x.dtype is INT8 else 128):
        raise Error(f"got the scale {to.scale} and the zero point {to.zero} of the result, need 1/128 and the middle")
    difference = centred(b, x, c.grid().zero)
    total = b.reduce_sum(b.mul(difference, difference), axes=(last,))
    root, right = _inverse_roots(b, total)
    if x.dtype is INT8:
        left = b.maximum(b.sub(b.const(np.int64(7)), right), 0)
        product = high_product(b, b.shift_left(difference, left), root)
        right = b.maximum(b.sub(right, 7), 0)
    else:
        product = high_product(b, b.mul(difference, 128), root)
    return stored(b, halved_away(b, product, b.broadcast_to(right, shape=x.shape)), x.dtype, to.zero)


def _inverse_roots(b: Builder, x: Value) -> tuple[Value, Value]:
    """Computes `fixed_point.inverse_roots` of run-time values. The shift is to the right."""
    powers = b.const(np.int64(1) << np.arange(31, dtype=np.int64))
    width = b.reduce_sum(cast(b, b.greater_equal(x, powers), INT64), axes=(len(x.shape) - 1,))
    pairs = b.maximum(b.sub(b.real_div(b.sub(b.const(np.int64(31)), width), 2), 1), 0)
    raised = b.shift_right(b.shift_left(x, b.mul(pairs, 2)), b.const(np.int64(1)))
    half = halved_away(b, raised, 1)
    root: Value = b.const(np.int64(1 << 28))
    for _ in range(5):
        cube = saturated(b, b.mul(high_product(b, high_product(b, root, root), root), 64))
        difference = b.sub(high_product(b, root, (1 << 28) + (1 << 27)), high_product(b, half, cube))
        root = saturated(b, b.mul(difference, 8))
    root = high_product(b, root, HALF_ROOT_2)
    right = b.sub(b.const(np.int64(11)), pairs)
    root = b.shift_left(root, b.maximum(b.neg(right), 0))
    small = b.less_equal(x, 1)
    root = b.select(small, b.const(np.int64((1 << 31) - 1)), root)
    return root, b.select(small, b.const(np.int64(0)), b.maximum(right, 0))


@reads("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(c: Context) -> Value:
    """Normalises over channels c - r to c + r. LiteRT's reference kernel differs: its range is off by one."""
    b, x, o = c.b, c.x(), c.o
    size = 2 * int(o["radius"]) + 1
    last = len(x.shape) - 1
    sums = b.mul(x, x)
    padded = b.pad(sums, begin=[*[0] * last, size // 2], end=[*[0] * last, size // 2])
    total = b.reduce_sum(b.sliding_windows(padded, axis=last, size=size, stride=1), axes=(last + 1,), keep_dims=False)
    return b.mul(x, b.pow(b.add(b.mul(total, float(o["alpha"])), float(o["bias"])), -float(o["beta"])))

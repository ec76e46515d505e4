"""Elementwise ops of two operands that broadcast, sums of several operands, and concatenation."""

from collections.abc import Callable

import numpy as np

from hexane.dtypes import INT32, INT64
from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.importers.coreml.known import known_array
from hexane.importers.tflite.integer import (
    NONE,
    away,
    bounds,
    by_table,
    centred,
    halved_away,
    multiplier,
    np_two,
    reciprocal,
    stored,
    two,
)
from hexane.importers.tflite.model import Grid
from hexane.importers.tflite.ops.activations import activated
from hexane.importers.tflite.registry import INT8, INT16, UINT8, Context, limits, reads
from hexane.ops.compose import cast

BYTES = (INT8, UINT8)


def _activation(c: Context) -> int:
    return int(c.o.get("fused_activation_function", NONE))


@reads("ADD", "SUB")
def add_sub(c: Context) -> Value:
    x, y, b = c.x(0), c.x(1), c.b
    if not c.is_integer:
        return activated(b, b.add(x, y) if c.op.name == "ADD" else b.sub(x, y), _activation(c))
    first, second, to = c.grid(0), c.grid(1), c.out_grid
    low, high = bounds(_activation(c), to, x.dtype)
    if x.dtype is INT16 and c.o["pot_scale_int16"]:
        return _by_shifts(c, x, y, low, high)
    bits = 15 if x.dtype is INT16 else 20
    sx, sy, so = (np.float64(g.scale) for g in (first, second, to))
    twice = 2 * max(sx, sy)
    pairs = [multiplier(float(r)) for r in (sx / twice, sy / twice, twice / (2.0**bits * so))]
    if c.op.name == "ADD" and x.dtype in BYTES:
        numbers = {
            f"{name}_{part}": pair[k]
            for name, pair in zip(("x", "y", "output"), pairs, strict=True)
            for k, part in enumerate(("multiplier", "shift"))
        }
        return b.q31_add(
            x, y, x_zero=first.zero, y_zero=second.zero, dtype=x.dtype, output_zero=to.zero, low=low, high=high,
            **numbers,
        )  # fmt: skip
    left, right = (
        two(b, b.mul(centred(b, v, g.zero), 1 << bits), *pair)
        for v, g, pair in zip((x, y), (first, second), pairs, strict=False)
    )
    total = b.add(left, right) if c.op.name == "ADD" else b.sub(left, right)
    return stored(b, two(b, total, *pairs[2]), x.dtype, to.zero, (low, high))


def _by_shifts(c: Context, x: Value, y: Value, low: int, high: int) -> Value:
    """Adds operands whose scales are powers of two: one operand is shifted, and the sum saturates."""
    b = c.b
    scales = [float(g.scale) for g in (c.grid(0), c.grid(1), c.out_grid)]
    powers = [int(np.round(np.log2(s))) for s in scales]
    if any(2.0**p != s for p, s in zip(powers, scales, strict=True)) or c.grid(0).zero or c.grid(1).zero:
        raise Error("got int16 with pot_scale_int16 and other scales than powers of two, need it false")
    shifts = [powers[0] - powers[2], powers[1] - powers[2]]
    if max(shifts) > 0 or all(shifts):
        raise Error(f"got the shifts {shifts} of int16 operands, need one that is 0 and none to the left")
    left, right = (halved_away(b, cast(b, v, INT64), -s) for v, s in zip((x, y), shifts, strict=True))
    total = b.add(left, right) if c.op.name == "ADD" else b.sub(left, right)
    return stored(b, total, x.dtype, 0, (low, high))


@reads("MUL")
def mul(c: Context) -> Value:
    x, y, b = c.x(0), c.x(1), c.b
    if not c.is_integer:
        return activated(b, b.mul(x, y), _activation(c))
    first, second, to, dtype = c.grid(0), c.grid(1), c.out_grid, c.out().dtype
    low, high = bounds(_activation(c), to, dtype)
    m, shift = multiplier(float(np.float32(first.scale) * np.float32(second.scale) / np.float32(to.scale)))
    if x.dtype in BYTES and y.dtype in BYTES and dtype in BYTES:
        return b.q31_mul(
            x, y, x_zero=first.zero, y_zero=second.zero, multiplier=m, shift=shift, dtype=dtype, output_zero=to.zero,
            low=low, high=high,
        )  # fmt: skip
    product = b.mul(centred(b, x, first.zero), centred(b, y, second.zero))
    return stored(b, two(b, product, m, shift), dtype, to.zero, (low, high))


@reads("DIV")
def div(c: Context) -> Value:
    x, y, b = c.x(0), c.x(1), c.b
    if not c.is_integer:
        return activated(b, b.real_div(x, y), _activation(c))
    if x.dtype not in BYTES or y.dtype is not x.dtype:
        raise Error(f"got quantised numbers of {x.dtype} and {y.dtype}, need bytes of one type")
    least = limits(x.dtype)[0]
    first, second = (b.sub(cast(b, v, INT32), least) for v in (x, y))
    return b.gather(b.const(_quotients(c).reshape(-1)), b.add(b.mul(first, 256), second), axis=0)


def _quotients(c: Context) -> Array:
    """Returns the quotients of all pairs of bytes, from the lowest on, as LiteRT computes them: x times the 31-bit
    reciprocal of y, then times the scale. For y = 0, which LiteRT does not define, the result is the end of the range
    with the sign of x. For shifts beyond 31 bits, which LiteRT does not define, the result is 0."""
    first, second, to, dtype = c.grid(0), c.grid(1), c.out_grid, c.out().dtype
    m, shift = multiplier(float(np.float64(first.scale) / (np.float64(second.scale) * np.float64(to.scale))))
    least, most = limits(dtype)
    x, y = (np.arange(least, most + 1, dtype=np.int64) - zero for zero in (first.zero, second.zero))
    bits, inverse = (known_array(v)[:, 0] for v in reciprocal(c.b, c.b.const(np.maximum(np.abs(y), 1)[:, None])))
    top = x[:, None] * np.sign(y)
    room = 31 - np.ceil(np.log2(np.abs(top) + (top >= 0))).astype(np.int64)  # free bits above the highest set bit
    right = bits - 1 + room - shift
    if (right < 0).any():
        raise Error("got scales whose quotient is above 2^23, need another scale of the result")
    first_product = ((top << room) * inverse + (1 << 30)) >> 31
    steps = np_two(first_product, m, -np.minimum(right, 31))
    steps = np.where(y == 0, np.sign(x)[:, None] * (most - least), steps)
    low, high = bounds(_activation(c), to, dtype)
    table: Array = np.clip(steps + to.zero, low, high).astype(dtype.numpy)
    return table


@reads("SQUARED_DIFFERENCE")
def squared_difference(c: Context) -> Value:
    x, y, b = c.x(0), c.x(1), c.b
    if not c.is_integer:
        d = b.sub(x, y)
        return b.mul(d, d)
    first, second, to = c.grid(0), c.grid(1), c.out_grid
    sx, sy, so = (np.float64(g.scale) for g in (first, second, to))
    twice = 2 * max(sx, sy)
    left, right = (
        two(b, b.mul(centred(b, v, g.zero), 1 << 7), *multiplier(float(s / twice)))
        for v, g, s in ((x, first, sx), (y, second, sy))
    )
    d = b.sub(left, right)
    return stored(b, two(b, b.mul(d, d), *multiplier(float(twice * twice / (2.0**14 * so)))), x.dtype, to.zero)


@reads("MAXIMUM", "MINIMUM", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM")
def maximum_minimum(c: Context) -> Value:
    """Returns the larger or smaller operand, or y if either is NaN."""
    x, y, b = c.x(0), c.x(1), c.b
    if c.is_integer:
        grids = [(g.scale, g.zero) for g in (c.grid(0), c.grid(1), c.out_grid)]
        if len(set(grids)) > 1:
            raise Error("got operands and a result on different scales, need one")
    largest = c.op.name.endswith("MAXIMUM")
    if x.dtype.kind == "float":
        return b.select(b.greater(x, y) if largest else b.less(x, y), x, y)
    return b.maximum(x, y) if largest else b.minimum(x, y)


@reads("STABLEHLO_ADD", "STABLEHLO_MULTIPLY", "STABLEHLO_SUBTRACT", "STABLEHLO_DIVIDE")
def stablehlo(c: Context) -> Value:
    if c.is_integer:
        raise Error("got quantised numbers, need floats or integers")
    name = c.op.name.removeprefix("STABLEHLO_")
    op = {"ADD": "add", "MULTIPLY": "mul", "SUBTRACT": "sub", "DIVIDE": "real_div"}[name]
    return c.b.apply(op, c.x(0), c.x(1))


_COMPARISONS = {
    "EQUAL": "equal", "NOT_EQUAL": "not_equal", "GREATER": "greater", "GREATER_EQUAL": "greater_equal", "LESS": "less",
    "LESS_EQUAL": "less_equal",
}  # fmt: skip


@reads(*_COMPARISONS)
def compare(c: Context) -> Value:
    """Compares. Bytes are multiplied by their scale and rounded first, so numbers that are close may count as equal."""
    x, y, b = c.x(0), c.x(1), c.b
    if c.is_integer and x.dtype in BYTES:
        x, y = (
            two(b, b.mul(centred(b, v, g.zero), 1 << 8), *multiplier(float(g.scale)))
            for v, g in ((x, c.grid(0)), (y, c.grid(1)))
        )
    elif c.is_integer and (c.grid(0).scale, c.grid(0).zero) != (c.grid(1).scale, c.grid(1).zero):
        raise Error("got int16 on different scales, need one")
    if x.dtype.kind == "bool":
        x, y = cast(b, x, INT32), cast(b, y, INT32)
    return b.apply(_COMPARISONS[c.op.name], x, y)


@reads("LOGICAL_AND", "LOGICAL_OR")
def logical(c: Context) -> Value:
    return c.b.apply(c.op.name.lower(), c.x(0), c.x(1))


@reads("BITWISE_XOR")
def bitwise_xor(c: Context) -> Value:
    x, y = c.x(0), c.x(1)
    return c.b.logical_xor(x, y) if x.dtype.kind == "bool" else c.b.bitwise_xor(x, y)


@reads("RIGHT_SHIFT")
def right_shift(c: Context) -> Value:
    """Shifts right. The shift is clamped to 0 and the number of bits less one."""
    x, y, b = c.x(0), c.x(1), c.b
    return b.shift_right(x, b.minimum(b.maximum(y, 0), x.dtype.bits - 1))


@reads("POW")
def power(c: Context) -> Value:
    return c.b.pow(c.x(0), c.x(1))


@reads("FLOOR_DIV")
def floor_div(c: Context) -> Value:
    return c.b.floor_div(c.x(0), c.x(1))


@reads("FLOOR_MOD")
def floor_mod(c: Context) -> Value:
    return c.b.mod(c.x(0), c.x(1))


@reads("ATAN2")
def atan2(c: Context) -> Value:
    y, x, b = c.x(0), c.x(1), c.b
    one = b.const(np.array(1, x.dtype.numpy))
    raw = b.atan(b.real_div(y, b.select(b.equal(x, 0.0), one, x)))
    half = b.const(np.array(np.pi, x.dtype.numpy))
    left = b.add(raw, b.select(b.less(y, 0.0), b.neg(half), half))
    upright = b.mul(b.sign(y), float(np.pi / 2))
    return b.select(b.equal(x, 0.0), upright, b.select(b.less(x, 0.0), left, raw))


@reads("ADD_N")
def add_n(c: Context) -> Value:
    total = c.x(0)
    for i in range(1, len(c.op.inputs)):
        total = c.b.add(total, c.x(i))
    return total


@reads("PRELU")
def prelu(c: Context) -> Value:
    x, alpha, b = c.x(0), c.x(1), c.b
    if not c.is_integer:
        return b.select(b.greater_equal(x, 0.0), x, b.mul(x, alpha))
    first, second, to = c.grid(0), c.grid(1), c.out_grid
    if x.dtype is INT16:
        raise Error("got int16, need int8, uint8 or floats")
    si, sa, so = (np.float32(g.scale) for g in (first, second, to))
    v = centred(b, x, first.zero)
    positive = two(b, v, *multiplier(float(si / so)))
    negative = two(b, b.mul(v, centred(b, alpha, second.zero)), *multiplier(float(si * sa / so)))
    return stored(b, b.select(b.greater_equal(v, 0), positive, negative), x.dtype, to.zero)


def _on_another(grid: Grid, to: Grid, inverse: np.float32) -> Callable[[Array], Array]:
    """Returns a function that requantises bytes in fp32, like LiteRT's uint8 kernel."""
    ratio = np.float32(grid.scale) * inverse
    offset = np.float32(-grid.zero) * ratio

    def f(q: Array) -> Array:
        steps: Array = away(q.astype(np.float32) * ratio + offset) + to.zero
        return steps

    return f


@reads("CONCATENATION")
def concatenation(c: Context) -> Value:
    b, code = c.b, _activation(c)
    parts = [c.x(i) for i in range(len(c.op.inputs))]
    axis = int(c.o["axis"])
    if c.is_integer:
        to = c.out_grid
        for i, part in enumerate(parts):
            grid = c.grid(i)
            if (grid.scale, grid.zero) == (to.scale, to.zero):
                continue
            if part.dtype is not UINT8:
                raise Error(f"got {part.dtype} on another scale than the result's, need the same")
            inverse = np.float32(1) / to.scale
            parts[i] = by_table(b, part, _on_another(grid, to, inverse), UINT8)
        code = NONE
    y = b.concat(*parts, axis=axis) if len(parts) > 1 else parts[0]
    return activated(b, y, code)

"""Matrix products, and lookups of rows in tables."""

from typing import Any

import numpy as np

from hexane.dtypes import BF16, FP32, FP64, INT32, INT64
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.tflite.integer import (
    MOST_REAL,
    MOST_SUM,
    bounds,
    check_bias,
    multiplier,
    one,
    rounded,
    scaled_once,
    stored,
    two,
)
from hexane.importers.tflite.ops.activations import activated
from hexane.importers.tflite.ops.hybrid import quantised
from hexane.importers.tflite.ops.windows import MOST_PRODUCTS
from hexane.importers.tflite.registry import INT8, INT16, NARROW, UINT8, Context, reads
from hexane.ops.compose import Builder, cast, held
from hexane.ops.records.q31 import double_multiplier

EXACT_BITS = 53


@reads("FULLY_CONNECTED")
def fully_connected(c: Context) -> Value:
    """Multiplies by a weight. Integer sums are multiplied by the factor of the scales in doubles, and rounded once."""
    x, w, bias, b = c.x(0), c.x(1), c.maybe(2), c.b
    if c.o["weights_format"]:
        raise Error("got shuffled weights, need the default format")
    if len(w.shape) != 2:
        raise Error(f"got a weight {list(w.shape)}, need a matrix")
    columns, terms = w.shape
    keep = bool(c.o["keep_num_dims"])
    if not terms or x.type.size % terms or (keep and x.shape[-1] != terms):
        raise Error(f"got x {list(x.shape)} for a weight {list(w.shape)}, need rows of {terms}")
    shape = (*x.shape[:-1], columns) if keep else (x.type.size // terms, columns)
    rows = b.reshape(x, shape=(x.type.size // terms, terms))
    if x.dtype.kind == "float":
        if w.dtype.kind == "float":
            y = b.matmul(rows, cast(b, w, x.dtype), transpose_y=True)
            y = y if bias is None else b.add(y, cast(b, bias, x.dtype))
        else:
            y = _hybrid(c, rows, w, bias)
        return b.reshape(activated(b, y, c.o["fused_activation_function"]), shape=shape)
    check_bias(bias)
    grid, weights, to, dtype = c.grid(0), c.grid(1), c.out_grid, c.out().dtype
    if weights.blocks is not None or (weights.scales.size > 1 and weights.axis != 0):
        raise Error("got scales of blocks or of another axis than 0, need one or one for each row")
    terms_fit = terms <= MOST_PRODUCTS and (bias is None or bias.dtype is INT32)
    if terms_fit and all(kind in (INT8, UINT8) for kind in (x.dtype, w.dtype, dtype)):
        return b.reshape(_rounded_once(c, rows, w, bias), shape=shape)
    total = sums(b, rows, w, grid.zero, int(weights.zeros[0]) if weights.scales.size == 1 else _no_zeros(weights), True)
    if bias is not None:
        total = b.add(total, cast(b, bias, INT64))
    reals = factors(c)
    if _most(c, rows, w, bias) < MOST_SUM and (reals < MOST_REAL).all():
        steps = scaled_once(b, total, reals)
    else:
        steps = rounded(b, b.mul(cast(b, total, FP64), b.const(reals)))
    y = stored(b, steps, dtype, to.zero, bounds(c.o["fused_activation_function"], to, dtype))
    return b.reshape(y, shape=shape)


def _rounded_once(c: Context, rows: Value, w: Value, bias: Value | None) -> Value:
    """Returns a layer on bytes as one integer product, whose multiplier has the precision of a double."""
    b, grid, weights, to, dtype = c.b, c.grid(0), c.grid(1), c.out_grid, c.out().dtype
    reals = factors(c)
    zero = _no_zeros(weights) if weights.scales.size > 1 else int(weights.zeros[0])
    digits, shifts = (np.array(v) for v in zip(*(double_multiplier(float(r)) for r in reals), strict=True))
    each = () if reals.size == 1 else reals.shape
    low, high = bounds(c.o["fused_activation_function"], to, dtype)
    return b.q31_matmul(
        rows, w, b.const(digits.astype(np.int64).reshape(each)), bias,
        b.const(held(grid.zero, rows.dtype.numpy)) if grid.zero else None,
        b.const(held(zero, w.dtype.numpy)) if zero else None,
        b.const(shifts.astype(np.int8).reshape(each)), transpose_y=True, dtype=dtype, output_zero=to.zero, low=low,
        high=high,
    )  # fmt: skip


def _most(c: Context, rows: Value, w: Value, bias: Value | None) -> int:
    """Returns a bound of the layer's sums."""
    sizes = [1 << (v.dtype.bits if c.grid(i).zeros.any() else v.dtype.bits - 1) for i, v in enumerate((rows, w))]
    if bias is None:
        added = 0
    elif (known := bias.node.data) is not None and bias.node.op == "const":
        added = max(-int(known.min(initial=0)), int(known.max(initial=0)))
    else:
        added = 1 << (bias.dtype.bits - 1)
    return rows.shape[-1] * sizes[0] * sizes[1] + added


def factors(c: Context) -> Any:
    """Returns the factors from sums to quantised results, in doubles: one, or one per row of the weight."""
    reals = np.float64(c.grid(0).scale) * c.grid(1).scales.astype(np.float64) / np.float64(c.out_grid.scale)
    if not (np.isfinite(reals) & (reals > 0)).all():
        raise Error(f"got the factors {reals} of scales, need positive numbers")
    return reals


def _no_zeros(grid: Any) -> int:
    if grid.zeros.any():
        raise Error("got zero points of channels, need 0")
    return 0


def sums(b: Builder, x: Value, y: Value, x_zero: int, y_zero: int, transpose_y: bool = False) -> Value:
    """Returns the integer product in int64. Integer kernels compute products of bytes, and of int16 without zero
    points, if a sum has at most MOST_PRODUCTS terms. Exact fp64 arithmetic computes other products."""
    terms = x.shape[-1]
    if x.dtype in (INT8, UINT8) and y.dtype in (INT8, UINT8) and terms <= MOST_PRODUCTS:
        zeros = [b.const(held(z, v.dtype.numpy)) if z else None for z, v in ((x_zero, x), (y_zero, y))]
        return cast(b, b.quantized_matmul(x, y, None, None, *zeros, transpose_y=transpose_y, dtype="int32"), INT64)
    if {x.dtype, y.dtype} <= {INT8, INT16} and not (x_zero or y_zero) and terms <= MOST_PRODUCTS:
        return _of_halves(b, x, y, transpose_y)
    bits = sum(17 if v.dtype is INT16 else 9 for v in (x, y))
    if x.dtype not in NARROW or y.dtype not in NARROW or terms > 1 << (EXACT_BITS - bits):
        raise Error(f"got {x.dtype} and {y.dtype} of {terms} terms, need 8 or 16 bits and fewer terms")
    first, second = (
        b.sub(cast(b, v, FP64), float(z)) if z else cast(b, v, FP64) for v, z in ((x, x_zero), (y, y_zero))
    )
    return cast(b, b.matmul(first, second, transpose_y=transpose_y), INT64)


def _of_halves(b: Builder, x: Value, y: Value, transpose_y: bool) -> Value:
    """Sums the products of the high and the low bytes of int16 numbers."""
    total: Value | None = None
    for first, left in _halves(b, x):
        for second, right in _halves(b, y):
            product = b.quantized_matmul(first, second, None, None, None, None, transpose_y=transpose_y, dtype="int32")
            part = b.mul(cast(b, product, INT64), left * right) if left * right > 1 else cast(b, product, INT64)
            total = part if total is None else b.add(total, part)
    assert total is not None
    return total


def _halves(b: Builder, x: Value) -> list[tuple[Value, int]]:
    if x.dtype is not INT16:
        return [(x, 1)]
    wide = cast(b, x, INT32)
    high = cast(b, b.shift_right(wide, b.const(np.int32(8))), INT8)
    return [(high, 256), (cast(b, b.bitwise_and(wide, 255), UINT8), 1)]


def hybrid_product(b: Builder, x: Value, w: Value, scales: Any, symmetric: bool) -> Value:
    """Quantises each row of x (rows, terms), and multiplies by integers (columns, terms) with their scales."""
    q, scale, zero = quantised(b, x, len(x.shape) - 1, symmetric)
    if w.dtype is INT8 and x.shape[-1] <= MOST_PRODUCTS:
        total = b.quantized_matmul(q, w, None, None, None, None, transpose_y=True, dtype="int32")
    else:
        total = sums(b, q, w, 0, 0, True)
    if not symmetric:
        rows = b.reduce_sum(cast(b, w, total.dtype), axes=(len(w.shape) - 1,), keep_dims=True)
        total = b.sub(total, b.mul(cast(b, zero, total.dtype), _turned(b, rows)))
    return b.mul(cast(b, total, FP32), b.mul(scale, b.const(np.asarray(scales, np.float32))))


def _hybrid(c: Context, x: Value, w: Value, bias: Value | None) -> Value:
    b, weights = c.b, c.grid(1)
    if weights.zeros.any():
        raise Error("got a zero point of weights, need 0")
    symmetric = not c.o["asymmetric_quantize_inputs"]
    if weights.blocks is not None:
        return _of_blocks(c, x, w, bias)
    y = hybrid_product(b, x, w, weights.scales, symmetric)
    return y if bias is None else b.add(y, cast(b, bias, FP32))


def _of_blocks(c: Context, x: Value, w: Value, bias: Value | None) -> Value:
    """Multiplies by weights with a scale for each block of a row. Rows of x are quantised with a zero point, as in
    LiteRT's default kernels. LiteRT's reference kernel returns only the bias."""
    b, grid = c.b, c.grid(1)
    assert grid.blocks is not None
    number, zeros, size = grid.blocks
    if not 0 <= number < len(c.scope.graph.tensors) or zeros >= 0 or size < 1 or w.shape[1] % size:
        raise Error("got weights in blocks of another form, need a tensor of scales and no zero points")
    scales = cast(
        b, cast(b, cast(b, c.translator.value(c.scope, number), FP32), BF16), FP32
    )  # LiteRT packs the scales in bf16
    columns, terms = w.shape
    blocks = b.reshape(cast(b, w, FP32), shape=(columns, terms // size, size))
    dense = b.reshape(b.mul(blocks, b.reshape(scales, shape=(columns, terms // size, 1))), shape=(columns, terms))
    q, scale, zero = quantised(b, x, 1, False)
    rows = b.mul(b.sub(cast(b, q, FP32), zero), scale)
    y = b.matmul(rows, dense, transpose_y=True)
    return y if bias is None else b.add(y, cast(b, bias, FP32))


@reads("BATCH_MATMUL")
def batch_matmul(c: Context) -> Value:
    x, y, b = c.x(0), c.x(1), c.b
    x = _turned(b, x) if c.o["adj_x"] else x
    transposed = bool(c.o["adj_y"])
    if x.dtype.kind == "float" and y.dtype.kind == "float":
        return b.matmul(x, y, transpose_y=transposed)
    if x.dtype.kind == "float":
        w = y if transposed else _turned(b, y)
        grid = c.grid(1)
        if grid.zeros.any() or grid.scales.size > 1:
            raise Error("got scales of channels or a zero point, need one scale")
        return hybrid_product(b, x, w, grid.scales[0], not c.o["asymmetric_quantize_inputs"])
    if x.dtype in (INT8, UINT8, INT16) and c.t(0).grid is not None:
        first, second, to, dtype = c.grid(0), c.grid(1), c.out_grid, c.out().dtype
        if dtype is INT32:
            return cast(b, sums(b, x, y, first.zero, second.zero, transposed), INT32)
        m, shift = multiplier(float(np.float64(first.scale) * np.float64(second.scale) / np.float64(to.scale)))
        total = sums(b, x, y, first.zero, second.zero, transposed)
        return stored(b, (one if x.dtype is INT16 else two)(b, total, m, shift), dtype, to.zero)
    raise Error(f"got {x.dtype} and {y.dtype}, need floats or quantised numbers")


def _turned(b: Builder, x: Value) -> Value:
    rank = len(x.shape)
    return b.transpose(x, perm=[*range(rank - 2), rank - 1, rank - 2])


@reads("EMBEDDING_LOOKUP")
def embedding_lookup(c: Context) -> Value:
    """Looks up rows of a table. Integer rows are dequantised if the result is float."""
    b, ids, table = c.b, c.x(0), c.x(1)
    rows = b.gather(table, ids, axis=0)
    if c.out().dtype is rows.dtype or rows.dtype.kind == "float":
        return rows
    grid = c.grid(1)
    if grid.zeros.any() or grid.blocks is not None:
        raise Error("got a zero point or blocks, need scales only")
    scales = b.const(grid.scales.astype(np.float32))
    if grid.scales.size > 1:
        scales = b.reshape(b.gather(scales, ids, axis=0), shape=(*ids.shape, *[1] * (len(rows.shape) - len(ids.shape))))
    return b.mul(cast(b, rows, FP32), scales)

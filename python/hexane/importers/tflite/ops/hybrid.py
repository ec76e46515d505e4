"""Activations that are quantised when the model runs, for weights of 8 bits and less."""

import numpy as np

from hexane.dtypes import FP64
from hexane.graph import Value
from hexane.importers.tflite.registry import INT8
from hexane.ops.compose import Builder, cast

F = np.float64


def _away(b: Builder, x: Value) -> Value:
    wide = cast(b, x, FP64)
    return b.mul(b.sign(wide), b.floor(b.add(b.abs(wide), 0.5)))


def quantised(b: Builder, x: Value, axes: tuple[int, ...], symmetric: bool) -> tuple[Value, Value, Value]:
    """int8 numbers, their scale (fp32) and zero point (fp32), one for each index of the other axes. Symmetric: the
    largest magnitude becomes 127. Else the range with 0 becomes -128..127, the zero point comes from the nearer end.
    LiteRT computes scale and zero point in fp32, and adds the zero point after rounding."""
    if symmetric:
        largest = b.reduce_max(b.abs(x), axes=axes)
        zero_row = b.equal(largest, 0.0)
        one = b.const(np.float32(1))
        scale = b.select(zero_row, one, b.real_div(largest, 127.0))
        inverse = b.real_div(b.const(np.float32(127)), b.select(zero_row, one, largest))
        q = b.minimum(b.maximum(_away(b, b.mul(x, inverse)), -127.0), 127.0)
        return cast(b, q, INT8), scale, b.mul(scale, 0.0)
    low, high = b.minimum(b.reduce_min(x, axes=axes), 0.0), b.maximum(b.reduce_max(x, axes=axes), 0.0)
    empty, one = b.equal(low, high), b.const(np.float32(1))
    scale = b.select(empty, one, b.real_div(b.sub(high, low), 255.0))
    from_low, from_high = (b.real_div(v, scale) for v in (low, high))
    low_error, high_error = b.add(b.abs(from_low), 128.0), b.add(b.abs(from_high), 127.0)
    ends = (b.sub(b.const(np.float32(end)), v) for end, v in ((-128, from_low), (127, from_high)))
    zero = b.minimum(b.maximum(_away(b, b.select(b.less(low_error, high_error), *ends)), -128.0), 127.0)
    zero = b.select(empty, b.const(F(0)), zero)
    q = b.add(zero, _away(b, b.mul(x, b.real_div(one, scale))))
    return cast(b, b.minimum(b.maximum(q, -128.0), 127.0), INT8), scale, cast(b, zero, x.dtype)

"""Quantisation of activations at run time, for weights of 8 bits or less."""

from hexane.graph import Value
from hexane.ops.compose import Builder


def quantised(b: Builder, x: Value, axis: int, symmetric: bool) -> tuple[Value, Value, Value]:
    """Returns int8 numbers, their scale (fp32) and zero point (fp32), one of each per index of the axes before `axis`.
    LiteRT computes scale and zero point in fp32, and adds the zero point after rounding."""
    q, scale, zero = b.several("quantize_by_range", x, axis=axis, symmetric=symmetric)
    return q, scale, zero

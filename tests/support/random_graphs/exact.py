"""Graphs that fp32 computes without rounding: every value is a multiple of a power of two, and sums are short
enough."""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from hexane.graph import Array, Node
from hexane.ops import OPS
from hexane.ops.records.quant import BYTES

LIMIT = 1 << 23  # in units: what sums may come to, in any order
BYTE = 255.0  # the largest magnitude of a byte less its zero point
PRODUCTS = ("mul", "square", "conv", "conv_transpose", "matmul", "linear")
SUMS = ("add", "sub", "neg", "reduce_sum", "cumsum")
# Ops that end sums: no pass moves a term past them.
CHOICES = ("maximum", "minimum", "relu", "relu6", "clip", "abs", "sign", "select", "max_pool", "reduce_max", "reduce_min",
           "topk", "floor", "ceil", "round", "threshold", "thresholded_relu", "cast", "one_hot", "lookup")  # fmt: skip


class Span(NamedTuple):
    unit: float  # a power of two that divides every term
    most: float  # the largest magnitude that terms add up to

    @property
    def exact(self) -> bool:
        return self.most <= LIMIT * self.unit


def span(array: Array) -> Span:
    """Of the numbers there are."""
    elements = np.abs(array[np.isfinite(array) & (array != 0)].astype(np.float64))
    if not elements.size:
        return Span(1.0, 0.0)
    fractions, exponents = np.frexp(elements)
    digits = np.ldexp(fractions, 53).astype(np.int64)
    return Span(float(np.ldexp((digits & -digits).astype(np.float64), exponents - 53).min()), float(elements.max()))


def spanned(node: Node, inputs: Sequence[Span | None], result: Array) -> Span | None:
    """Of a node's result and of all that is added up on the way to it; None where that may round."""
    own = span(result)
    there = [s for s in inputs if s is not None]
    if node.op in PRODUCTS:
        first, second = (there[0], there[0]) if node.op == "square" else there[:2]
        found = Span(first.unit * second.unit, first.most * second.most * terms(node))
        return checked(joined(found, *there[2:]))
    if node.op in SUMS:
        return checked(joined(*[Span(s.unit, s.most * terms(node)) for s in there]))
    if node.op in ("quantized_matmul", "quantized_conv"):
        return quantized_product(node, inputs, own)
    if node.op == "quantized_add":
        scales = [node.attrs["x_scale"], node.attrs["y_scale"]]
        return (
            own if joined(*[Span(s, BYTE * s) for s in scales if power(s)]).exact and all(map(power, scales)) else None
        )
    if node.op in ("quantize", "dequantize"):
        scale = inputs[1]
        assert scale is not None
        return own if own.exact and power(scale.unit) and scale.exact else None
    if node.op in CHOICES:
        return checked(own)
    if OPS[node.op].moves:
        return checked(Span(min(own.unit, *(s.unit for s in there)), max(own.most, *(s.most for s in there))))
    return checked(own) if min((own.unit, *(s.unit for s in there))) >= 1 else None  # integers do no harm, mostly


def quantized_product(node: Node, inputs: Sequence[Span | None], own: Span) -> Span | None:
    _, _, scale, bias, *_ = inputs
    total = Span(1.0, BYTE * BYTE * terms(node))
    if bias is not None and node.inputs[3] is not None and node.inputs[3].dtype.kind == "int":
        total, bias = joined(total, bias), None
    if scale is not None:
        total = Span(scale.unit, scale.most * total.most)
    if bias is not None:
        total = joined(total, bias)
    if not total.exact or not power(node.attrs["output_scale"]):
        return None
    return own if node.types[0].dtype in BYTES else total


def joined(*spans: Span) -> Span:
    return Span(min(s.unit for s in spans), sum(s.most for s in spans))


def checked(found: Span) -> Span | None:
    return found if found.exact else None


def power(number: float) -> bool:
    return number > 0 and float(np.frexp(number)[0]) == 0.5


def terms(node: Node) -> int:
    """How many products or elements are added up for one element."""
    x, *others = (v.shape for v in node.inputs if v is not None)
    match node.op.removeprefix("quantized_"):
        case "conv":
            return max(prod(others[0][1:]), 1)
        case "conv_transpose":
            return max(prod(others[0]) // max(others[0][1], 1), 1)
        case "matmul" | "linear":
            return max(x[-2 if node.attrs.get("transpose_x") else -1], 1)
        case "reduce_sum":
            return max(prod(x[a] for a in node.attrs["axes"]), 1)
        case "cumsum":
            return max(x[node.attrs["axis"]], 1)
    return 1

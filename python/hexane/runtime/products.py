"""The products in one element of a convolution or matrix product, and their sum in the engine's accumulator.

The rules are in docs/numerics.md: products are rounded to 2^-16 or dropped, and the accumulator is infinite from 32768
on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import fsum
from typing import Any

import numpy as np

from hexane.graph import Array, Node
from hexane.ops.predicates import has_winograd_s_shape
from hexane.program import Step

Index = tuple[int, ...]
Pair = tuple[Index, Index]  # the indices of a product's factors in x and in the weight

UNIT = 2.0**-16  # The accumulator's resolution.
LIMIT = 2.0**15  # The accumulator is infinite from LIMIT on.
DROPPED = -17  # A product counts as 0 if the sum of its factors' exponents is at most this.
_HUGE = 2.0**40  # A product beyond 2^40 overflows whatever the other products are.


@dataclass(frozen=True)
class Sum:
    """The sum in one element. products: exact, in the order of the weights; counted: as the engine counts them.

    partial: the engine's accumulator after each product. overflow: the index of the product at which it reached 32768,
    -1 for the bias alone, None if it stayed below.
    """

    pairs: Sequence[Pair]
    x: Array
    weight: Array
    bias: float
    products: Array
    counted: Array
    dropped: Array
    partial: Array
    overflow: int | None

    @property
    def exact(self) -> float:
        """The sum without any rounding."""
        return fsum([self.bias, *self.products])

    @property
    def lost_by_drops(self) -> float:
        """The sum of the dropped products."""
        return fsum(self.products[self.dropped])

    @property
    def lost_by_rounding(self) -> float:
        """The sum of the losses of products that are not dropped, by rounding to 2^-16."""
        kept = ~self.dropped
        return fsum([*self.products[kept], *-self.counted[kept]])

    def largest(self, count: int) -> list[int]:
        """Returns the indices of the products with the largest magnitude."""
        return [int(i) for i in np.argsort(-np.abs(self.products), kind="stable")[:count]]


def has_products(node: Node) -> bool:
    """True if `sum_of` supports the node."""
    return kind_of(node) in _PAIRS


def by_winograd(step: Step) -> bool:
    """True if a chip with Winograd's transforms uses them for the step's convolution (docs/numerics.md)."""
    return bool(step.numerics.parameters.get("winograd")) and has_winograd_s_shape(step.node)


def kind_of(node: Node) -> str:
    """Returns the op by its name in the catalogue, without a prefix."""
    return node.op.rpartition(".")[2]


def sum_of(node: Node, index: Index, arrays: Sequence[Array | None]) -> Sum:
    """Returns the sum of the element at `index` of a node with these operands."""
    x, weight, bias = arrays[0], arrays[1], arrays[2] if len(arrays) > 2 else None
    assert x is not None
    assert weight is not None
    pairs, column = _PAIRS[kind_of(node)](x.shape, weight.shape, node.attrs, index)
    return accumulate(pairs, x, weight, 0.0 if bias is None or not bias.ndim else float(bias[column]))


def accumulate(pairs: Sequence[Pair], x: Array, weight: Array, bias: float = 0.0) -> Sum:
    """Returns the sum of these products and the bias, with the engine's accumulator."""
    left = np.array([x[pair[0]] for pair in pairs], np.float64)
    right = np.array([weight[pair[1]] for pair in pairs], np.float64)
    exact = left * right  # products of 11-bit factors have at most 22 bits and are exact in fp64
    dropped = (_exponent(left) + _exponent(right) <= DROPPED) & (exact != 0)
    counted = np.where(dropped, 0.0, np.clip(_to_units(exact), -_HUGE, _HUGE))
    start = float(_to_units(np.array(bias)))
    partial = start + np.cumsum(counted)
    over = np.flatnonzero(np.abs(partial) >= LIMIT)
    overflow = -1 if abs(start) >= LIMIT else int(over[0]) if over.size else None
    return Sum(pairs, left, right, bias, exact, counted, dropped, partial, overflow)


def _to_units(x: Array) -> Array:
    """Returns multiples of 2^-16, rounded to nearest with halves away from zero."""
    return np.copysign(np.floor(np.abs(x) / UNIT + 0.5) * UNIT, x)


def _exponent(x: Array) -> Array:
    """Returns the exponents of fp16 numbers: -14 for subnormal numbers."""
    _, e = np.frexp(x)
    return np.where(x == 0, -14, np.maximum(e - 1, -14))


def _matmul_pairs(x: Index, y: Index, attrs: Mapping[str, Any], index: Index) -> tuple[list[Pair], int]:
    *batch, row, column = index
    flip_x, flip_y = bool(attrs.get("transpose_x")), bool(attrs.get("transpose_y"))

    def at(shape: Index, i: int, j: int) -> Index:
        outer = shape[:-2]
        own = batch[len(batch) - len(outer) :]
        return (*(b if extent > 1 else 0 for b, extent in zip(own, outer, strict=True)), i, j)

    def pair(k: int) -> Pair:
        return at(x, *((k, row) if flip_x else (row, k))), at(y, *((column, k) if flip_y else (k, column)))

    return [pair(k) for k in range(x[-2] if flip_x else x[-1])], column


def _linear_pairs(x: Index, weight: Index, attrs: Mapping[str, Any], index: Index) -> tuple[list[Pair], int]:
    *outer, column = index
    return [((*outer, k), (column, k)) for k in range(weight[1])], column


def _conv_pairs(x: Index, weight: Index, attrs: Mapping[str, Any], index: Index) -> tuple[list[Pair], int]:
    batch, channel, place = _split(index, attrs)
    extents = _split(x, attrs)[2]
    first = channel // (weight[0] // attrs["groups"]) * weight[1]
    pairs = []
    for tap in product(*map(range, weight[2:])):
        window = zip(place, tap, attrs["strides"], attrs["dilations"], attrs["pad"][::2], strict=True)
        pixel = [p * s + t * d - pad for p, t, s, d, pad in window]
        if all(0 <= p < extent for p, extent in zip(pixel, extents, strict=True)):
            pairs += [(_joined(batch, first + c, pixel, attrs), (channel, c, *tap)) for c in range(weight[1])]
    return pairs, channel


def _conv_transpose_pairs(x: Index, weight: Index, attrs: Mapping[str, Any], index: Index) -> tuple[list[Pair], int]:
    batch, channel, place = _split(index, attrs)
    channels, extents = _split(x, attrs)[1:]
    group, own = divmod(channel, weight[1])
    inputs = channels // attrs["groups"]
    pairs = []
    for tap in product(*map(range, weight[2:])):
        window = zip(place, tap, attrs["dilations"], attrs["pad"][::2], strict=True)
        reach = [p + pad - t * d for p, t, d, pad in window]
        pixel = [r // s for r, s in zip(reach, attrs["strides"], strict=True)]
        hits = (r % s == 0 and 0 <= p < e for r, s, p, e in zip(reach, attrs["strides"], pixel, extents, strict=True))
        if all(hits):
            channel_range = range(group * inputs, (group + 1) * inputs)
            pairs += [(_joined(batch, c, pixel, attrs), (c, own, *tap)) for c in channel_range]
    return pairs, channel


def _split(index: Index, attrs: Mapping[str, Any]) -> tuple[int, int, Index]:
    """Returns (batch, channel, pixel) of an index of an image, or of its shape."""
    last = attrs["layout"] == "nhwc"
    return index[0], index[-1] if last else index[1], index[1:-1] if last else index[2:]


def _joined(batch: int, channel: int, pixel: Sequence[int], attrs: Mapping[str, Any]) -> Index:
    return (batch, *pixel, channel) if attrs["layout"] == "nhwc" else (batch, channel, *pixel)


_PAIRS = {
    "matmul": _matmul_pairs,
    "linear": _linear_pairs,
    "conv": _conv_pairs,
    "conv_transpose": _conv_transpose_pairs,
}

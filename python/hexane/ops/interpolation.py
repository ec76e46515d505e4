"""Samples tensors between their elements, by a few elements and weights along each axis."""

from collections.abc import Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import INT64, DType
from hexane.graph import Value
from hexane.ops.compose import Builder, cast

Array = Any
CUBIC = -0.75
Taps = list[tuple[Value, Value]]  # Pairs of an element's index and its weight, floats (batch, points).
Pairs = list[tuple[int, float]]  # Pairs of an element's index and its weight, for one point.

# ---- expansions to other ops ----


def pick(b: Builder, flat: Value, indices: Sequence[Value], extents: Sequence[int]) -> Value:
    """Gathers (batch, points, channels) from flat (batch, elements, channels), by an index for each of the extents."""
    at = cast(b, indices[0], INT64)
    for index, extent in zip(indices[1:], extents[1:], strict=True):
        at = b.add(b.mul(at, extent), cast(b, index, INT64))
    return b.gather_nd(flat, b.expand_dims(at, axes=(-1,)), batch_dims=1)


def channels_behind(b: Builder, x: Value, kind: DType) -> Value:
    """Reshapes (batch, channels, extents...) to (batch, elements, channels), in a dtype."""
    flat = b.reshape(cast(b, x, kind), shape=(*x.shape[:2], prod(x.shape[2:])))
    return b.transpose(flat, perm=(0, 2, 1))


def interpolated(b: Builder, flat: Value, taps: Sequence[Taps], extents: Sequence[int]) -> Value:
    """Returns the weighted sum over all combinations of the axes' taps."""
    terms = []
    for combination in product(*taps):
        picked = pick(b, flat, [i for i, _ in combination], extents)
        weight = reduce(lambda x, y: b.mul(x, y), [w for _, w in combination])
        terms.append(b.mul(picked, b.expand_dims(weight, axes=(-1,))))
    return reduce(lambda x, y: b.add(x, y), terms)


def linear_taps(b: Builder, at: Value) -> Taps:
    low = b.floor(at)
    rest = b.sub(at, low)
    return [(low, b.sub(1.0, rest)), (b.add(low, 1.0), rest)]


def cubic_taps(b: Builder, at: Value) -> Taps:
    low = b.floor(at)
    rest = b.sub(at, low)

    def outer(t: Value) -> Value:
        """Returns ((a t - 5 a) t + 8 a) t - 4 a, for 1 <= t <= 2."""
        inner = b.add(b.mul(b.sub(b.mul(t, CUBIC), 5 * CUBIC), t), 8 * CUBIC)
        return b.sub(b.mul(inner, t), 4 * CUBIC)

    def near(t: Value) -> Value:
        """Returns ((a + 2) t - (a + 3)) t t + 1, for 0 <= t <= 1."""
        return b.add(b.mul(b.mul(b.sub(b.mul(t, CUBIC + 2), CUBIC + 3), t), t), 1.0)

    return [
        (b.sub(low, 1.0), outer(b.add(rest, 1.0))),
        (low, near(rest)),
        (b.add(low, 1.0), near(b.sub(1.0, rest))),
        (b.add(low, 2.0), outer(b.sub(2.0, rest))),
    ]


def kept_inside(b: Builder, taps: Taps, extent: int) -> Taps:
    """Returns the taps with weight 0 for those outside the tensor."""
    last = extent - 1.0
    result = []
    for index, weight in taps:
        nothing = b.const(np.array(0, weight.dtype.numpy))
        inside = b.logical_and(b.greater_equal(index, 0.0), b.less_equal(index, last))
        result.append((clipped(b, index, extent), b.select(inside, weight, nothing)))
    return result


def clipped(b: Builder, index: Value, extent: int) -> Value:
    return b.clip(index, alpha=0.0, beta=extent - 1.0)


def reflected(b: Builder, at: Value, low: float, high: float) -> Value:
    """Reflects `at` at the bounds until it lies between them."""
    span = high - low
    if span == 0:
        return b.mul(at, 0.0)
    beyond = b.abs(b.sub(at, low))
    times = b.floor(b.real_div(beyond, span))
    rest = b.sub(beyond, b.mul(times, span))
    odd = b.greater(b.sub(times, b.mul(b.floor(b.mul(times, 0.5)), 2.0)), 0.5)
    return b.select(odd, b.sub(high, rest), b.add(rest, low))


def outside_of(b: Builder, at: Value, low: float, high: float) -> Value:
    return b.logical_or(b.less(at, low), b.greater(at, high))


# ---- reference: one axis of one point, in Python ----


def _hat(t: float) -> float:
    return max(0.0, 1 - abs(t))


def _keys(t: float) -> float:
    """Returns Keys' cubic kernel at t."""
    t = abs(t)
    if t <= 1:
        return (CUBIC + 2) * t**3 - (CUBIC + 3) * t**2 + 1
    return CUBIC * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0


def _bounced(at: float, low: float, high: float) -> float:
    """Returns a triangle wave of `at` with turning points low and high."""
    span = high - low
    return low + span - abs((at - low) % (2 * span) - span) if span else 0.0


def pairs_of(at: float, extent: int, mode: str, padding: str, corners: bool) -> Pairs:
    """Returns the elements that a position on one axis reads, none if it reads zeros."""
    low, high = (0.0, extent - 1.0) if corners else (-0.5, extent - 0.5)
    inside = low <= at <= high
    if mode == "nearest":
        at = float(np.rint(at))
    if padding == "border" and not inside:
        at = min(max(at, 0.0), extent - 1.0)
    if padding == "reflection" and not low <= at <= high:
        at = _bounced(at, low, high)
    first = int(np.floor(at))
    if mode == "nearest":
        pairs = [(at, 1.0)]
    else:
        reach, kernel = (1, _hat) if mode == "bilinear" else (2, _keys)
        pairs = [(float(i), kernel(at - i)) for i in range(first - reach + 1, first + reach + 1)]
    result = []
    for place, weight in pairs:
        if padding == "zeros" and not 0 <= place <= extent - 1:
            continue
        if padding == "reflection" and not low <= place <= high:
            place = _bounced(place, low, high)
        result.append((int(min(max(place, 0), extent - 1)), weight))
    return result


def read_pairs(image: Array, axes: Sequence[Pairs]) -> Array:
    """Returns (channels,), the weighted sum of elements of an image (channels, extents...)."""
    total = np.zeros(image.shape[0])
    for combination in product(*axes):
        total += image[(slice(None), *(i for i, _ in combination))] * prod(w for _, w in combination)
    return total

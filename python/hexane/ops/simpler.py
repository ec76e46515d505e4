"""Expansions to simpler ops. The lowering uses them for chips without a layer for an op, and so do the writers of MIL
text and of Core AI assets."""

from collections.abc import Sequence
from math import floor, inf, isinf, log2, prod, sqrt

import numpy as np

from hexane.graph import Value
from hexane.ops.compose import Builder, Operand


def clip(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    """Returns minimum(maximum(x, alpha), beta), without infinite limits. The limits of integers are clamped to their
    dtype's range."""
    x = x if isinf(alpha) else b.maximum(x, _limit(x, alpha))
    return x if isinf(beta) else b.minimum(x, _limit(x, beta))


def _limit(x: Value, limit: float) -> float:
    if x.dtype.kind == "float":
        return limit
    held = np.iinfo(x.dtype.numpy)
    return int(min(max(limit, held.min), held.max))


def reversed_order(b: Builder, x: Value) -> Value:
    """Returns values of x's dtype in reversed order: -x, and for integers a difference that cannot overflow."""
    if x.dtype.kind == "float":
        return b.neg(x)
    return b.sub(-1 if x.dtype.kind == "int" else int(np.iinfo(x.dtype.numpy).max), x)


def sigmoid_hard(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    return b.clip(b.add(b.mul(x, alpha), beta), alpha=0.0, beta=1.0)


def hard_swish(b: Builder, x: Value) -> Value:
    return b.mul(x, b.sigmoid_hard(x, alpha=1 / 6, beta=0.5))


def selu(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    return b.mul(b.elu(x, alpha=alpha), beta)


def prelu(b: Builder, x: Value, slope: Operand) -> Value:
    return b.select(b.less(x, 0.0), b.mul(x, slope), x)


def neg(b: Builder, x: Value) -> Value:
    return b.sub(0, x) if x.dtype.kind == "uint" else b.mul(x, -1.0)  # unsigned integers wrap


def inner_pad(b: Builder, x: Value, begin: Sequence[int], end: Sequence[int]) -> tuple[Value, list[int], list[int]]:
    """Returns x cropped by the negative pads, and the remaining pads."""
    cut = b.slice_by_index(
        x,
        begin=[max(-p, 0) for p in begin],
        end=[d - max(-p, 0) for p, d in zip(end, x.shape, strict=True)],
    )
    return cut, [max(p, 0) for p in begin], [max(p, 0) for p in end]


# ---- norms whose squares fit fp16 ----

LARGEST_SQUARED = 128.0  # The mean of squares of limited numbers is at most 16384.


def held(
    b: Builder,
    x: Value,
    axes: Sequence[int],
    most: float = LARGEST_SQUARED,
    brings_up: bool = False,
    low: float = -inf,
) -> tuple[Value, Value]:
    """Returns x * factor, limited to `most`, and the factor of each row: min(1, most / the row's largest magnitude).

    most: a power of two of at most 128. Rows within `most` keep their bits, unless brings_up scales them up, by at most
    512. low: a lower bound of x. If `low` is at least -1, x itself is compared with `most` instead of its magnitude.
    """
    factor = _factor(b, x, axes, most, max(most / MOST_UP, SMALLEST_TOP) if brings_up else most, low)
    return b.mul(x, factor), factor


MOST_UP = 512.0
MOST_EPSILON = 2.0**-3  # MOST_EPSILON * MOST_UP^2 is half of fp16's range.
SMALLEST_TOP = 2.0**-7  # SMALLEST_TOP / 128 is a normal number of fp16.


def _factor(b: Builder, x: Value, axes: Sequence[int], most: float, least: float, low: float = -inf) -> Value:
    sizes = x if low >= -1 else b.abs(x)
    top = b.maximum(b.reduce_max(sizes, axes=axes), max(least, -low if low >= -1 else 0.0))
    factor = b.inverse(b.mul(top, 1 / LARGEST_SQUARED))  # The factor is at least 1/512, which is exact in fp16.
    return factor if most == LARGEST_SQUARED else b.mul(factor, most / LARGEST_SQUARED)


def _spread(b: Builder, x: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """Returns (x - mean) * factor, limited to 128, and the factor. The halves of x are subtracted, because a difference
    may be twice fp16's largest number."""
    half = b.mul(x, 0.5)
    spread = b.sub(half, b.reduce_mean(half, axes=axes))
    factor = _factor(b, spread, axes, LARGEST_SQUARED / 2, LARGEST_SQUARED / 2)
    return b.mul(spread, b.mul(factor, 2.0)), factor


def layer_norm(
    b: Builder, x: Value, gamma: Value | None, beta: Value | None, axes: Sequence[int], epsilon: float
) -> Value:
    """u * rsqrt(mean(u^2) + epsilon * f^2) * gamma + beta, u = (x - mean) * f, scaled so that squares fit fp16"""
    y = _over_root(b, *_spread(b, x, axes), axes, epsilon)
    y = y if gamma is None else b.mul(y, gamma)
    return y if beta is None else b.add(y, beta)


def rms_norm(b: Builder, x: Value, gamma: Value | None, axes: Sequence[int], epsilon: float) -> Value:
    """u * rsqrt(mean(u^2) + epsilon * f^2) * gamma, u = x * f, scaled so that squares fit fp16, small ones too"""
    u, factor = held(b, x, axes, brings_up=epsilon <= MOST_EPSILON)
    total = b.add(b.reduce_mean(b.square(u), axes=axes), scaled_epsilon(b, factor, epsilon))
    y = b.mul(u, b.rsqrt(total))
    return y if gamma is None else b.mul(y, gamma)


def scaled_epsilon(b: Builder, factor: Value, epsilon: float) -> Value:
    """Returns epsilon * factor^2, for a factor that scales small rows up. An epsilon below fp16's range is applied by
    its root, which is within the range."""
    if 0 < epsilon <= LEAST:
        return b.square(b.mul(factor, sqrt(max(epsilon, LEAST / MOST_UP**2))))
    return _scaled_twice(b, factor, epsilon)


def _over_root(b: Builder, u: Value, factor: Value, axes: Sequence[int], epsilon: float) -> Value:
    mean = b.reduce_mean(b.square(u), axes=axes)
    return b.mul(u, b.rsqrt(b.add(mean, _scaled_twice(b, factor, epsilon))))


def l2_norm(b: Builder, x: Value, axes: Sequence[int], epsilon: float) -> Value:
    """u * rsqrt(sum(u^2) + epsilon * f^2), u = x * f, scaled so that the sum of squares fits fp16"""
    u, factor = held_for_sum(b, x, axes)
    total = b.add(b.reduce_sum(b.square(u), axes=axes), _scaled_twice(b, factor, epsilon))
    return b.mul(u, b.rsqrt(total))


def held_for_sum(
    b: Builder, x: Value, axes: Sequence[int], brings_up: bool = False, low: float = -inf
) -> tuple[Value, Value]:
    """u = x * factor, scaled so that its sum of squares fits fp16, and the factor of each row"""
    count = prod(x.shape[a] for a in axes or range(len(x.shape)))
    return held(b, x, axes, LARGEST_SQUARED * 2.0 ** floor(-log2(max(count, 1)) / 2), brings_up, low)


LEAST = 2.0**-24  # The smallest positive number of fp16.
SMALLEST_ROW = 2.0**-14  # Smaller numbers have few digits in fp16.


def _magnified(b: Builder, u: Value, factor: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """Returns u * up and factor * up. A row whose largest magnitude is below 1 is scaled to about 1, so that its
    squares fit fp16; other rows are unchanged, bit for bit."""
    up = b.inverse(b.clip(b.reduce_max(b.abs(u), axes=axes), alpha=SMALLEST_ROW, beta=1.0))
    return b.mul(u, up), b.mul(factor, up)


def mean_variance_norm(b: Builder, x: Value, axes: Sequence[int], epsilon: float) -> Value:
    """u / (sqrt(mean(u^2)) + epsilon * f), u = (x - mean) * f, scaled so that squares fit fp16, small ones too

    A deviation of 0 in fp16 means that all numbers are equal, and the result is 0.
    """
    u, factor = _magnified(b, *_spread(b, x, axes), axes)
    deviation = b.add(b.sqrt(b.reduce_mean(b.square(u), axes=axes)), b.mul(factor, epsilon))
    return b.real_div(u, b.maximum(deviation, LEAST))


SMALL_NORM = 1 << 14  # In elements. A smaller norm layer takes a few microseconds, and replaces forty layers.
LONGEST_MEAN = 1 << 14  # The inverse of a larger number is subnormal in fp16.


def _per_channel(b: Builder, reduction: str, x: Value) -> Value:
    """Reduces each channel's pixels. Many pixels are reduced on one axis at a time."""
    axes = tuple(range(2, len(x.shape)))
    for some in (axes,) if prod(x.shape[2:]) <= LONGEST_MEAN else [(a,) for a in reversed(axes)]:
        x = b.apply(reduction, x, axes=some)
    return x


def group_norm(b: Builder, x: Value, gamma: Value | None, beta: Value | None, num_groups: int, epsilon: float) -> Value:
    """u * g + o, u = (x - mean of its group) * f, scaled so that squares fit fp16. g and o have one number per channel.

    Only the statistics of channels are regrouped, which are one number each: groups of x may be wider than a chip
    allows. The mean of u, a rounding error of the group's mean, is subtracted as well.
    """
    n, channels = x.shape[:2]
    groups = (n, num_groups, channels // num_groups, *(1 for _ in x.shape[3:]))
    each = (n, channels, *(1 for _ in x.shape[2:]))

    def of_group(reduction: str, of: Value) -> Value:
        inside = b.reshape(_per_channel(b, reduction, of), shape=groups)
        return inside if groups[2] == 1 else b.apply(reduction, inside, axes=(2,))

    def spread(of: Value) -> Value:
        if of.shape != groups:  # a product, because a repetition would be several layers
            of = b.mul(of, b.const(np.ones((1, 1, *groups[2:]), x.dtype.numpy)))
        return b.reshape(of, shape=each)

    def of_channels(v: Value) -> Value:
        return b.reshape(v, shape=(1, *groups[1:]))

    half = b.mul(x, 0.5)
    mean = of_group("reduce_mean", half)
    top = b.maximum(b.sub(of_group("reduce_max", half), mean), b.sub(mean, of_group("reduce_min", half)))
    least = LARGEST_SQUARED / 2 / (MOST_UP if epsilon <= MOST_EPSILON else 1.0)
    twice = b.inverse(b.mul(b.maximum(top, least), 1 / LARGEST_SQUARED))
    u = b.mul(b.sub(half, spread(mean)), spread(twice))
    rest = of_group("reduce_mean", u)
    variance = b.maximum(b.sub(of_group("reduce_mean", b.square(u)), b.square(rest)), 0.0)
    gain = b.rsqrt(b.add(variance, scaled_epsilon(b, b.mul(twice, 0.5), epsilon)))
    offset = b.mul(rest, gain)
    if gamma is not None:
        gain, offset = b.mul(gain, of_channels(gamma)), b.mul(offset, of_channels(gamma))
    offset = b.mul(offset, -1.0) if beta is None else b.sub(of_channels(beta), offset)
    return b.add(b.mul(u, spread(gain)), spread(offset))


def _scaled_twice(b: Builder, factor: Value, epsilon: float) -> Value:
    """epsilon * factor^2; a large epsilon by its root, so that no constant is near the end of fp16's range"""
    if epsilon > 1:
        return b.square(b.mul(factor, sqrt(epsilon)))
    return b.mul(b.mul(factor, epsilon), factor)

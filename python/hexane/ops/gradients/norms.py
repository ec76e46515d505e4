"""Gradients of normalisations, from the normalised x, with fewer roundings than gradients of the expansions."""

from collections.abc import Sequence
from math import prod
from typing import Any

from hexane.graph import Node, Value
from hexane.ops.compose import Builder, cast, wide
from hexane.ops.gradients.rule import operand, unary, unbroadcast

Gradients = Sequence[Value | None]


def layer_norm(b: Builder, node: Node, g: Value) -> Gradients:
    """n = (x - mean) / deviation  ->  dx = (h - mean(h) - n * mean(h * n)) / deviation, h = g * gamma"""
    x, gamma, beta = node.inputs
    assert x is not None
    axes = node.attrs["axes"]
    centred = b.sub(x, b.reduce_mean(x, axes=axes))
    over = b.rsqrt(b.add(b.reduce_mean(b.square(centred), axes=axes), node.attrs["epsilon"]))
    normal = b.mul(centred, over)
    h = g if gamma is None else b.mul(g, gamma)
    rest = b.sub(b.sub(h, b.reduce_mean(h, axes=axes)), b.mul(normal, b.reduce_mean(b.mul(h, normal), axes=axes)))
    return (
        b.mul(rest, over),
        None if gamma is None else unbroadcast(b, b.mul(g, normal), gamma),
        None if beta is None else unbroadcast(b, g, beta),
    )


def rms_norm(b: Builder, node: Node, g: Value) -> Gradients:
    """n = x / root  ->  dx = (h - n * mean(h * n)) / root, h = g * gamma"""
    x, gamma = node.inputs
    assert x is not None
    axes = node.attrs["axes"]
    over = b.rsqrt(b.add(b.reduce_mean(b.square(x), axes=axes), node.attrs["epsilon"]))
    normal = b.mul(x, over)
    h = g if gamma is None else b.mul(g, gamma)
    dx = b.mul(b.sub(h, b.mul(normal, b.reduce_mean(b.mul(h, normal), axes=axes))), over)
    return dx, None if gamma is None else unbroadcast(b, b.mul(g, normal), gamma)


def by_batch(b: Builder, x: Value, axis: int, epsilon: float) -> tuple[Value, Value, Value, Value]:
    """Returns x - mean, the mean, the variance and 1 / deviation. The statistics are over all axes but `axis`, and have
    its extent. A batch norm's expansion and gradient share these results."""
    axes = tuple(i for i in range(len(x.shape)) if i != axis)
    mean = b.reduce_mean(x, axes=axes)
    centred = b.sub(x, mean)
    variance = b.reduce_mean(b.square(centred), axes=axes)
    return centred, mean, variance, b.rsqrt(b.add(variance, epsilon))


def batch_norm_training(
    b: Builder, node: Node, g: Value | None, g_mean: Value | None, g_variance: Value | None
) -> Gradients:
    """The gradient of layer_norm, for each channel. Gradients of updated running statistics pass to the batch's
    statistics by `momentum`."""
    given, running_mean, _, gamma, beta = node.inputs
    assert given is not None
    assert running_mean is not None
    axis, momentum, rank = node.attrs["axis"], node.attrs["momentum"], len(given.shape)
    axes = tuple(i for i in range(rank) if i != axis)
    count = given.type.size // given.shape[axis]
    kind = wide(given)
    centred, _, _, over = by_batch(b, cast(b, given, kind), axis, node.attrs["epsilon"])

    def along(v: Value) -> Value:
        return b.reshape(cast(b, v, kind), shape=[-1 if i == axis else 1 for i in range(rank)])

    def of_channels(v: Value) -> Value:
        return cast(b, b.reduce_sum(v, axes=axes, keep_dims=False), running_mean.dtype)

    parts: list[Value] = []
    of_gamma = of_beta = None
    if g is not None:
        wide_g, normal = cast(b, g, kind), b.mul(centred, over)
        h = wide_g if gamma is None else b.mul(wide_g, along(gamma))
        swing = b.mul(normal, b.reduce_mean(b.mul(h, normal), axes=axes))
        parts.append(b.mul(b.sub(b.sub(h, b.reduce_mean(h, axes=axes)), swing), over))
        of_gamma = None if gamma is None else of_channels(b.mul(wide_g, normal))
        of_beta = None if beta is None else of_channels(wide_g)
    if g_mean is not None:
        parts.append(b.broadcast_to(b.mul(along(g_mean), momentum / count), shape=given.shape))
    if g_variance is not None:
        parts.append(b.mul(centred, b.mul(along(g_variance), 2 * momentum / (count - 1))))
    total = parts[0]
    for part in parts[1:]:
        total = b.add(total, part)
    return (
        cast(b, total, given.dtype),
        None if g_mean is None else b.mul(g_mean, 1 - momentum),
        None if g_variance is None else b.mul(g_variance, 1 - momentum),
        of_gamma,
        of_beta,
    )


@unary
def local_response_norm(
    b: Builder, x: Value, y: Value, g: Value, alpha: float, beta: float, k: float, size: int, axis: int
) -> Value:
    """The gradient for d = k + alpha / size * window sum of x^2: g * d^-beta - 2 * alpha * beta / size * x * the sum of
    g * x * d^(-beta - 1) over the windows that contain x."""
    before, after = (size - 1) // 2, size // 2
    d = b.add(b.mul(_window_sum(b, b.square(x), axis, before, after), alpha / size), k)
    inner = b.mul(b.mul(g, x), b.pow(d, -beta - 1))
    around = _window_sum(b, inner, axis, after, before)
    return b.sub(b.mul(g, b.pow(d, -beta)), b.mul(b.mul(x, around), 2 * alpha * beta / size))


def _window_sum(b: Builder, x: Value, axis: int, before: int, after: int) -> Value:
    """Returns for each element the sum from `before` elements before it to `after` elements after it. Elements outside
    the tensor count as 0."""

    def margin(n: int) -> list[int]:
        return [n if i == axis else 0 for i in range(len(x.shape))]

    total: Any = None
    for shift in range(-before, after + 1):
        moved = b.pad(x, begin=margin(-shift), end=margin(shift)) if shift else x
        total = moved if total is None else b.add(total, moved)
    return total  # type: ignore[no-any-return]


def dequantize(b: Builder, node: Node, g: Value) -> Gradients:
    """Returns the gradient of the scale. Integers have no gradient."""
    x, scale = operand(node, 0), operand(node, 1)
    whole = b.cast(x, dtype=g.dtype)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        zero = b.cast(node.inputs[2], dtype=g.dtype)
        whole = b.sub(whole, _along(b, zero, x, node.attrs["axis"]))
    summed = unbroadcast(b, b.mul(g, whole), _along(b, scale, x, node.attrs["axis"]))
    assert summed is not None
    return None, b.reshape(summed, shape=scale.shape), None


def _along(b: Builder, v: Value, x: Value, axis: int) -> Value:
    """Reshapes numbers for the indices of an axis to broadcast over x."""
    if prod(v.shape) == 1 or len(v.shape) != 1:
        return v if len(v.shape) in (0, len(x.shape)) else b.reshape(v, shape=())
    return b.reshape(v, shape=[-1 if i == axis % len(x.shape) else 1 for i in range(len(x.shape))])

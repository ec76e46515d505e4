"""Real numbers as integers: scales, zero points, and rounded weights and biases."""

from dataclasses import dataclass

import numpy as np

from hexane.graph import Array

TINY = float(np.finfo(np.float32).tiny)
BIAS_LIMIT = 2**30  # Half of int32's range; the sum of products may use the other half.
SHRUNK = np.linspace(1, 0.4, 25)  # Fractions of the largest magnitude that are tried as the end.


@dataclass(frozen=True, slots=True)
class Grid:
    """A scale in fp32 and a zero point of the integers' dtype: one of each, or one for each channel."""

    scale: Array
    zero: Array


@dataclass(frozen=True, slots=True)
class Rounded:
    """Integers and their grid; `axis` is the axis that has a scale for each index, or None."""

    integers: Array
    grid: Grid
    axis: int | None


def activation_grid(low: float, high: float, kind: str) -> Grid:
    """The grid whose integers span [low, high] and 0, which is represented exactly."""
    info = np.iinfo(kind)
    low, high = min(low, 0.0), max(high, 0.0)
    # For a tensor of zeros any scale is exact.
    scale = max((high - low) / (info.max - info.min), TINY) if high > low else 1.0
    zero = np.clip(np.rint(info.min - low / scale), info.min, info.max)
    return Grid(np.asarray(scale, np.float32), np.asarray(zero).astype(kind))


def round_weight(
    weight: Array, axis: int | None, kind: str, *, least_squares: bool, least_scale: Array | float = 0.0
) -> Rounded:
    """The weight as integers, with 127 steps on each side of the zero point.

    axis: each of its indices gets a scale; None for one scale. least_squares: try some ends below the largest
    magnitude, and use the end with the least squared error; else the largest magnitude is the end. least_scale: lower
    limit of scales.
    """
    rows = weight.astype(np.float64).reshape(1, -1)
    if axis is not None:
        rows = np.moveaxis(weight.astype(np.float64), axis, 0).reshape(weight.shape[axis], -1)
    most = np.abs(rows).max(axis=1)
    scale = most / 127
    if least_squares:
        tried = [_squared_error(rows, most * part / 127) for part in SHRUNK]
        scale = scale * SHRUNK[np.argmin(tried, axis=0)]
    scale = np.maximum(np.maximum(scale, least_scale), TINY)
    scale = np.where((most == 0) & (np.asarray(least_scale) == 0), 1.0, scale).astype(np.float32)
    middle = 128 if kind == "uint8" else 0
    spread = scale if axis is None else scale.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])
    steps = np.clip(np.rint(weight / spread.astype(np.float64)), -127, 127) + middle
    zero = np.full(scale.shape, middle, kind)
    shape = () if axis is None else scale.shape
    return Rounded(steps.astype(kind), Grid(scale.reshape(shape), zero.reshape(shape)), axis)


def _squared_error(rows: Array, scale: Array) -> Array:
    step = np.maximum(scale, TINY)[:, None]
    return np.asarray(((np.clip(np.rint(rows / step), -127, 127) * step - rows) ** 2).sum(axis=1))


def least_weight_scale(bias: Array | None, input_scale: float) -> Array | float:
    """The smallest weight scale with which the bias, counted in steps of the product, still fits int32."""
    return 0.0 if bias is None else np.abs(bias.astype(np.float64)) / (BIAS_LIMIT * input_scale)


def round_bias(bias: Array, input_scale: Array, weight_scale: Array) -> Rounded:
    """The bias in int32, in units of the product of both scales."""
    scale = (np.float32(input_scale) * weight_scale).astype(np.float32)
    shape = np.broadcast_shapes(bias.shape, scale.shape)  # a bias of one number has the scale of each channel
    bias, scale = np.broadcast_to(bias, shape), np.broadcast_to(np.maximum(scale, TINY), shape).astype(np.float32)
    steps = np.clip(np.rint(bias / scale.astype(np.float64)), -BIAS_LIMIT, BIAS_LIMIT)
    return Rounded(steps.astype(np.int32), Grid(scale, np.zeros(shape, np.int32)), 0)

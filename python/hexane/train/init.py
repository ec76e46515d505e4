"""Initial values of params: seeded random arrays in fp32, by the definitions of torch.nn.init.

A shape is that of a weight of `linear` or `conv`: outputs, inputs, and the extents of a window. The numbers come from
NumPy's PCG64 generator, so every machine gives equal numbers.
"""

from collections.abc import Sequence
from math import erf, isfinite, prod, sqrt
from typing import Any, Literal

import numpy as np

from hexane.errors import Error
from hexane.graph import Array

Fan = Literal["in", "out"]
LEAST_KEPT = 0.01  # smallest allowed share of a normal distribution inside the limits: numbers outside are drawn again

GAINS = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": sqrt(2), "selu": 0.75}


def gain(nonlinearity: str, slope: float = 0.01) -> float:
    """Returns the factor for the deviation of initial weights with which a nonlinearity after the layer keeps the
    variance. nonlinearity: linear, sigmoid, tanh, relu, selu, or leaky_relu with its slope."""
    if nonlinearity == "leaky_relu":
        return sqrt(2 / (1 + _number("slope", slope) ** 2))
    if nonlinearity not in GAINS:
        raise Error(f"[train.init] nonlinearity: got {nonlinearity!r}, need {', '.join(GAINS)} or leaky_relu")
    return GAINS[nonlinearity]


def xavier_uniform(shape: Sequence[int], seed: int, gain: float = 1.0) -> Array:
    """Glorot's uniform distribution in [-a, a], a = gain * sqrt(6 / (fan in + fan out))."""
    return _uniform(shape, seed, _xavier(shape, gain) * sqrt(3))


def xavier_normal(shape: Sequence[int], seed: int, gain: float = 1.0) -> Array:
    """Glorot's normal distribution with the deviation gain * sqrt(2 / (fan in + fan out))."""
    return normal(shape, seed, deviation=_xavier(shape, gain))


def kaiming_uniform(
    shape: Sequence[int], seed: int, fan: Fan = "in", nonlinearity: str = "relu", slope: float = 0.01
) -> Array:
    """He's uniform distribution in [-a, a], a = gain * sqrt(3 / fan). fan "in" keeps the variance of the values, "out"
    that of the gradients. nonlinearity, slope: see `gain`. torch.nn.Linear and Conv use `leaky_relu` with slope
    sqrt(5)."""
    return _uniform(shape, seed, _kaiming(shape, fan, nonlinearity, slope) * sqrt(3))


def kaiming_normal(
    shape: Sequence[int], seed: int, fan: Fan = "in", nonlinearity: str = "relu", slope: float = 0.01
) -> Array:
    """He's normal distribution with the deviation gain / sqrt(fan). For the arguments see `kaiming_uniform`."""
    return normal(shape, seed, deviation=_kaiming(shape, fan, nonlinearity, slope))


def normal(shape: Sequence[int], seed: int, mean: float = 0.0, deviation: float = 1.0) -> Array:
    """A normal distribution with this mean and standard deviation."""
    mean, deviation = _number("mean", mean), _number("deviation", deviation, least=0.0)
    return (mean + deviation * _generator(seed).standard_normal(_shape(shape))).astype(np.float32)


def truncated_normal(
    shape: Sequence[int], seed: int, mean: float = 0.0, deviation: float = 1.0, low: float = -2.0, high: float = 2.0
) -> Array:
    """A normal distribution whose numbers outside [low, high] are drawn again. low and high are values, not deviations.

    Raises Error if less than a hundredth of the distribution lies between them.
    """
    mean, deviation = _number("mean", mean), _number("deviation", deviation, least=0.0)
    if not deviation or not _share_between((low - mean) / deviation, (high - mean) / deviation) >= LEAST_KEPT:
        raise Error(
            f"[train.init] low, high: got {low} and {high} for the mean {mean} and the deviation {deviation}, need an"
            " interval that holds at least a hundredth of the distribution"
        )
    rng = _generator(seed)
    numbers = mean + deviation * rng.standard_normal(prod(_shape(shape)))
    outside = np.flatnonzero((numbers < low) | (numbers > high))
    while outside.size:
        numbers[outside] = mean + deviation * rng.standard_normal(outside.size)
        outside = outside[(numbers[outside] < low) | (numbers[outside] > high)]
    return _inside(numbers.reshape(_shape(shape)), low, high)


def _share_between(low: float, high: float) -> float:
    """Returns the share of the standard normal distribution between two limits."""
    return (erf(high / sqrt(2)) - erf(low / sqrt(2))) / 2


def _inside(numbers: Array, low: float, high: float) -> Array:
    """Returns the numbers in fp32, clipped to [low, high]: rounding may exceed a limit."""
    first, last = np.float32(low), np.float32(high)
    if float(first) < low:
        first = np.nextafter(first, np.float32(np.inf))
    if float(last) > high:
        last = np.nextafter(last, np.float32(-np.inf))
    return np.clip(numbers.astype(np.float32), first, last)


def _uniform(shape: Sequence[int], seed: int, bound: float) -> Array:
    return _inside(_generator(seed).uniform(-bound, bound, _shape(shape)), -bound, bound)


def _xavier(shape: Sequence[int], gain: float) -> float:
    return _number("gain", gain, least=0.0) * sqrt(2 / sum(_fans(shape)))


def _kaiming(shape: Sequence[int], fan: Fan, nonlinearity: str, slope: float) -> float:
    if fan not in ("in", "out"):
        raise Error(f"[train.init] fan: got {fan!r}, need 'in' or 'out'")
    return gain(nonlinearity, slope) / sqrt(_fans(shape)[fan == "out"])


def _fans(shape: Sequence[int]) -> tuple[int, int]:
    """Returns fan in and fan out: how many products a result sums, and how many results an input contributes to."""
    outputs, *inputs = dims = _shape(shape)
    if not inputs or not prod(dims):
        raise Error(f"[train.init] shape: got {dims}, need outputs and inputs, of at least one element")
    window = prod(inputs[1:])
    return inputs[0] * window, outputs * window


def _shape(shape: Any) -> tuple[int, ...]:
    dims = tuple(shape) if isinstance(shape, (list, tuple)) else (shape,)
    if not all(isinstance(d, (int, np.integer)) and not isinstance(d, bool) and d >= 0 for d in dims) or not dims:
        raise Error(f"[train.init] shape: got {shape!r}, need integers from 0 on, at least one")
    return tuple(int(d) for d in dims)


def _generator(seed: int) -> np.random.Generator:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise Error(f"[train.init] seed: got {seed!r}, need an integer from 0 on")
    return np.random.Generator(np.random.PCG64(int(seed)))


def _number(name: str, value: float, least: float = float("-inf")) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value) or value < least:
        raise Error(f"[train.init] {name}: got {value!r}, need a finite number" + (" from 0 on" if least == 0 else ""))
    return float(value)

"""Finds the cost of a call with no bytes, and the sizes at which time begins to grow differently. A continuous
piecewise line is fitted to (bytes, time), with confidence intervals for its floor and breaks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
MOST_BREAKS = 2
ROUNDS = 100  # number of bootstrap samples
BELIEVED = 0.99


@dataclass(frozen=True, slots=True)
class Break:
    """A size in bytes from which on time grows faster (a cliff) or slower, with its 95 % interval, and the us per MiB
    on both sides."""

    bytes: float
    low: float
    high: float
    slope_before: float
    slope_after: float


@dataclass(frozen=True, slots=True)
class Line:
    """The floor in us, at no bytes, with its 95 % interval, and the breaks in order of size. The floor is None for too
    few sizes."""

    floor: float | None = None
    floor_low: float | None = None
    floor_high: float | None = None
    breaks: tuple[Break, ...] = ()


def fit(sizes: Sequence[float], times: Sequence[float], seed: int = 0) -> Line:
    """Fits a straight line, or, if significantly better, a line with one or two breaks, to the times.

    The floor is what every call costs, such as dispatch, and at least 0. sizes: bytes, rising; times: us. Errors are
    relative to the time. A break is accepted if it is significant at 1 %: it reduces the error more than in 99 of 100
    bootstrap samples of the line without the break. The intervals come from fits to bootstrap samples of the fitted
    line. Fewer than eight sizes are not fitted.
    """
    x, t = np.asarray(sizes, float), np.asarray(times, float)
    if len(x) < 8:
        return Line()
    random = np.random.default_rng(seed)
    best = _fit(x, t, 0)
    while len(best.at) < MOST_BREAKS:
        bent = _fit(x, t, len(best.at) + 1)
        gains = [
            _fit(x, drawn, len(best.at)).error / _fit(x, drawn, len(bent.at)).error for drawn in _drawn(best, t, random)
        ]
        if best.error / bent.error <= np.quantile(gains, BELIEVED):
            break
        best = bent
    again = [_fit(x, drawn, len(best.at)) for drawn in _drawn(best, t, random)]
    floors = np.quantile([max(other.floor, 0.0) for other in again], (0.025, 0.975))
    at = np.array([other.at for other in again])
    # A break between two sizes looks like a break at either size, so the interval includes the neighbouring sizes.
    low = x[np.searchsorted(x, np.quantile(at, 0.025, axis=0)) - 1]
    high = x[np.searchsorted(x, np.quantile(at, 0.975, axis=0), side="right")]
    slopes = np.cumsum(best.slopes) * 2**20
    fits = [
        Break(size, float(low[i]), float(high[i]), float(slopes[i]), float(slopes[i + 1]))
        for i, size in enumerate(best.at)
    ]
    return Line(max(best.floor, 0.0), float(floors[0]), float(floors[1]), tuple(fits))


@dataclass(frozen=True, slots=True)
class _Fit:
    at: tuple[float, ...]
    floor: float
    slopes: Array  # slope of the first piece, then the increase at each break
    values: Array
    error: float  # mean square of the relative errors


def _drawn(fit: _Fit, t: Array, random: np.random.Generator) -> Iterator[Array]:
    """Bootstrap samples of the times: the fitted times, each with a random one of the fit's errors."""
    errors = (t - fit.values) / fit.values
    for _ in range(ROUNDS):
        yield fit.values * (1 + random.choice(errors, len(t)))


def _fit(x: Array, t: Array, count: int) -> _Fit:
    """The best line with `count` breaks, at any sizes except the first two and the last two. Solves a least-squares
    problem for every choice of breaks."""
    choices = list(combinations(x[2:-2], count))
    chosen = np.array(choices, float).reshape(len(choices), count)
    unit = x[-1]  # keeps the problems well conditioned
    line = np.broadcast_to(np.stack([np.ones_like(x), x / unit], axis=1), (len(chosen), len(x), 2))
    bends = np.maximum(x[None, :, None] - chosen[:, None, :], 0) / unit
    pieces = np.concatenate([line, bends], axis=2)  # (choice, size, unknown)
    weighted = pieces / t[:, None]
    transposed = weighted.transpose(0, 2, 1)
    solved = np.linalg.solve(transposed @ weighted, transposed.sum(axis=2)[:, :, None])[:, :, 0]
    errors = (((weighted @ solved[:, :, None])[:, :, 0] - 1) ** 2).mean(axis=1)
    i = int(errors.argmin())
    values = np.maximum(pieces[i] @ solved[i], 1e-9)
    return _Fit(
        tuple(map(float, chosen[i])), float(solved[i, 0]), solved[i, 1:] / unit, values, max(float(errors[i]), 1e-12)
    )

"""Measures how far the outputs of a quantised network are from the outputs in floats."""

from collections.abc import Iterable

import numpy as np

from hexane.graph import Array
from hexane.quant.calibrate import Feed, Run, each


class OutputError:
    """The largest relative error among the outputs: |y - y'| / |y| in Euclidean norms, where y is the float output and
    y' the quantised one, over all feeds and all finite numbers of y. The error is infinite if y' is not finite where y
    is finite."""

    def __init__(self, whole: Run, feeds: Iterable[Feed]) -> None:
        self._whole, self._feeds = whole, feeds

    def of(self, quantised: Run) -> float:
        squares: dict[str, float] = {}
        wrong: dict[str, float] = {}
        for feed, outputs in zip(self._feeds, each(self._whole, self._feeds), strict=True):
            got = quantised(feed)
            for name, y in outputs.items():
                size, error = _norms(y, got[name])
                squares[name] = squares.get(name, 0.0) + size
                wrong[name] = wrong.get(name, 0.0) + error
        return max((_relative(wrong[name], squares[name]) for name in squares), default=0.0)


def _norms(y: Array, other: Array) -> tuple[float, float]:
    a, b = y.astype(np.float64), other.astype(np.float64)
    known = np.isfinite(a)
    error = float(((a[known] - b[known]) ** 2).sum())
    return float((a[known] ** 2).sum()), error if np.isfinite(error) else float("inf")


def _relative(wrong: float, squares: float) -> float:
    if not squares:
        return 0.0 if not wrong else float("inf")
    return float((wrong / squares) ** 0.5)

"""Reduces a long series to fewer points, each of which summarises several neighbours."""

from dataclasses import dataclass
from itertools import pairwise
from math import nan

import numpy as np

from hexane.graph import Array


@dataclass(frozen=True, slots=True)
class Bucket:
    """Values at the indices `first` to `last`, both included. low, mean, high: of the finite ones; nan without any."""

    first: int
    last: int
    low: float
    mean: float
    high: float


def thinned(values: Array, most: int) -> list[Bucket]:
    """Returns at most `most` buckets of about equal size, in order. With few values each has its own bucket."""
    edges = np.linspace(0, len(values), min(most, len(values)) + 1).astype(np.int64).tolist()
    return [_bucket(values[begin:end], begin) for begin, end in pairwise(edges)]


def _bucket(values: Array, first: int) -> Bucket:
    last = first + len(values) - 1
    finite = values[np.isfinite(values)]
    if not len(finite):
        return Bucket(first, last, nan, nan, nan)
    return Bucket(first, last, float(finite.min()), float(finite.mean()), float(finite.max()))

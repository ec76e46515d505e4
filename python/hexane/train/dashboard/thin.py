"""Fewer points of a long series: each stands for several neighbours."""

from dataclasses import dataclass
from itertools import pairwise
from math import nan

import numpy as np

from hexane.graph import Array


@dataclass(frozen=True, slots=True)
class Bucket:
    """Values from place `first` to place `last`, both included. Only finite values count; without any, the three
    numbers are nan."""

    first: int
    last: int
    low: float
    mean: float
    high: float


def thinned(values: Array, most: int) -> list[Bucket]:
    """At most `most` buckets of about the same count of values, in order; one for each value where that is enough."""
    edges = np.linspace(0, len(values), min(most, len(values)) + 1).astype(np.int64).tolist()
    return [_bucket(values[begin:end], begin) for begin, end in pairwise(edges)]


def _bucket(values: Array, first: int) -> Bucket:
    last = first + len(values) - 1
    finite = values[np.isfinite(values)]
    if not len(finite):
        return Bucket(first, last, nan, nan, nan)
    return Bucket(first, last, float(finite.min()), float(finite.mean()), float(finite.max()))

"""Chooses the range of an activation's integers from a histogram."""

from collections.abc import Callable

import numpy as np

from hexane.graph import Array

BINS = 2048
PARTS = np.linspace(1, 0.25, 31)  # tried factors on the ends of the range

WIDER = np.append(PARTS, np.linspace(1.02, 1.5, 25))
EXCESSES = -np.log1p(-(np.arange(8) + 0.5) / 8)  # quantiles of an exponential distribution with a mean of 1


class Histogram:
    """Counts of numbers between two known ends. Zeros are left out, because every grid represents them exactly."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = min(low, 0.0), max(high, 0.0)
        self.counts = np.zeros(BINS, np.int64)
        self.zeros = 0

    def add(self, numbers: Array) -> None:
        """Counts numbers; numbers beyond the ends count in the outermost bins."""
        flat = numbers.reshape(-1)
        kept = flat[flat != 0]
        self.zeros += flat.size - kept.size
        if self.high > self.low:
            inside = np.clip(kept, np.float32(self.low), np.float32(self.high))
            self.counts += np.histogram(inside, BINS, (self.low, self.high))[0]

    @property
    def centres(self) -> Array:
        edges = np.linspace(self.low, self.high, BINS + 1)
        return np.asarray((edges[1:] + edges[:-1]) / 2)


Ends = tuple[float, float]


def minmax(histogram: Histogram, steps: int, percentile: float) -> Ends:
    return histogram.low, histogram.high


def percentile(histogram: Histogram, steps: int, percentile: float) -> Ends:
    """The range between two percentiles of the numbers that are not 0."""
    total = histogram.counts.sum()
    if not total:
        return histogram.low, histogram.high
    part = np.cumsum(histogram.counts) / total
    outside = 1 - percentile / 100
    centres = histogram.centres
    low = histogram.low if part[0] > outside else float(centres[np.searchsorted(part, outside)])
    high = histogram.high if 1 - part[-2] > outside else float(centres[np.searchsorted(part, 1 - outside)])
    return min(low, 0.0), max(high, 0.0)


def mse(histogram: Histogram, steps: int, percentile: float) -> Ends:
    """The ends with the least sum of squared errors, of those tried. First both ends are multiplied by one factor,
    then each end by its own."""
    if not histogram.counts.any():
        return histogram.low, histogram.high
    used = histogram.counts > 0
    more = unseen(histogram)
    numbers = np.concatenate([histogram.centres[used], more])
    counts = np.concatenate([histogram.counts[used], np.full(len(more), 1 / len(EXCESSES))])

    def error(ends: Ends) -> float:
        low, high = ends
        step = (high - low) / steps
        if step <= 0:
            return float("inf")
        # The ends are shifted so that 0 falls on a step.
        low = -np.rint(-low / step) * step
        inside = np.clip(np.rint((numbers - low) / step), 0, steps) * step + low
        return float((counts * (inside - numbers) ** 2).sum())

    low, high = min(((histogram.low * p, histogram.high * p) for p in WIDER), key=error)
    for _ in range(2):
        low = min((histogram.low * p for p in WIDER), key=lambda end: error((end, high)))
        high = min((histogram.high * p for p in WIDER), key=lambda end: error((low, end)))
    return low, high


def unseen(histogram: Histogram) -> Array:
    """Numbers that calibration has not shown: one beyond each end, spread over a few points of equal weight. The
    distance of such a number from the end follows an exponential tail. The tail's mean is estimated from the outermost
    sqrt(n) of n numbers: their mean excess over the innermost one. So an end with many equal numbers, such as that of a
    Clip, stays where it is."""
    numbers = [np.empty(0)]
    for side, end in ((1, histogram.high), (-1, histogram.low)):
        outward = side * histogram.centres[::-side]  # outermost first
        counts = histogram.counts[::-side][outward > 0]
        if not counts.any():
            continue
        count = np.cumsum(counts)
        least = int(np.searchsorted(count, min(max(count[-1] ** 0.5, 2), count[-1])))
        excess = (counts[:least] * (outward[:least] - outward[least])).sum() / max(count[least] - 1, 1)
        numbers.append(end + side * excess * EXCESSES)
    return np.concatenate(numbers)


def entropy(histogram: Histogram, steps: int, percentile: float) -> Ends:
    """The ends with the least relative entropy between two histograms, where both ends are moved by the same factor.
    The first histogram has the numbers, clamped to the ends. The second histogram has the integers: the count of each
    integer is spread evenly over its non-empty bins."""
    if not histogram.counts.any():
        return histogram.low, histogram.high
    edges = np.linspace(histogram.low, histogram.high, BINS + 1)
    centres = histogram.centres

    def divergence(ends: Ends) -> float:
        low, high = ends
        first = min(max(int(np.searchsorted(edges, low, "right")) - 1, 0), BINS - 1)
        last = min(max(int(np.searchsorted(edges, high, "left")), first + 1), BINS)
        inside = histogram.counts[first:last].astype(np.float64)
        true = inside.copy()
        true[0] += histogram.counts[:first].sum()
        true[-1] += histogram.counts[last:].sum()
        integer = np.rint((centres[first:last] - low) / max((high - low) / steps, 1e-300)).astype(np.int64)
        integer -= integer.min()
        used = inside > 0
        sums, bins = np.bincount(integer, inside), np.bincount(integer, used)
        said = np.where(used, sums[integer] / np.maximum(bins[integer], 1), 0.0)
        # Bins with clamped numbers only get a probability of almost 0.
        said = np.maximum(said, 1e-4)
        known = true > 0
        true, said = true[known] / true.sum(), said[known] / said.sum()
        return float((true * np.log(true / said)).sum())

    return min(((histogram.low * p, histogram.high * p) for p in PARTS), key=divergence)


RANGES: dict[str, Callable[[Histogram, int, float], Ends]] = {
    "minmax": minmax,
    "percentile": percentile,
    "entropy": entropy,
    "mse": mse,
}

"""Chooses encodings: the fewest bytes with which the error of the whole stays within a tolerance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

ROUNDS = 4  # in which the sum of the layers' errors is fitted to what was measured of all together
MARGIN = 0.95


@dataclass(frozen=True, slots=True)
class Choice:
    """An encoding of a layer: its bytes, and the error of the network's output where this layer alone has it."""

    encoding: str
    bytes: int
    error: float


def search(
    layers: Sequence[Sequence[Choice]], measure: Callable[[Sequence[str]], float], tolerance: float
) -> tuple[list[str], float]:
    """An encoding for each layer, and the error measured with all of them, which is at most the tolerance.

    Each layer needs a choice without error. Errors of layers add up as squares do, more or less; the factor is what was
    measured. Where a measurement is above the tolerance the next try is more careful.
    """
    budget, found = tolerance**2, None
    for _ in range(ROUNDS):
        tried = within(layers, budget)
        error = measure([c.encoding for c in tried])
        if error <= tolerance and (found is None or _bytes(tried) < _bytes(found[0])):
            found = tried, error
        if not any(c.error for c in tried):
            break
        budget *= (MARGIN * tolerance / max(error, tolerance / 4)) ** 2
    while found is None:
        tried = within(layers, budget)
        error = measure([c.encoding for c in tried])
        found = (tried, error) if error <= tolerance or not any(c.error for c in tried) else None
        budget /= 4
        budget = 0.0 if budget < tolerance**2 * 1e-6 else budget
    return [c.encoding for c in found[0]], found[1]


def within(layers: Sequence[Sequence[Choice]], budget: float) -> list[Choice]:
    """Choices whose squared errors add up to no more than the budget: from the smallest on, the exchange that saves
    most error for a byte, until they do."""
    chosen = [min(choices, key=lambda c: (c.bytes, c.error)) for choices in layers]
    while sum(c.error**2 for c in chosen) > budget:
        gain, index, better = max(
            (
                ((now.error**2 - c.error**2) / max(c.bytes - now.bytes, 1), i, c)
                for i, (now, choices) in enumerate(zip(chosen, layers, strict=True))
                for c in choices
                if c.error < now.error
            ),
            key=lambda exchange: exchange[0],
        )
        assert gain > 0
        chosen[index] = better
    return chosen


def _bytes(chosen: Sequence[Choice]) -> int:
    return sum(c.bytes for c in chosen)

"""Chooses encodings: the fewest bytes with which the network's error stays within a tolerance, or the least error
within a budget of bytes."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

ROUNDS = 4  # Each round scales the sum of the layers' errors to the network's measured error.
MARGIN = 0.95
LEAST_GAIN = 1e-9  # Least gain of a pair of exchanges; rounding errors are smaller.


@dataclass(frozen=True, slots=True)
class Choice:
    """An encoding of a layer: its bytes, and the error of the network's output if only this layer has it."""

    encoding: str
    bytes: int
    error: float


def search(
    layers: Sequence[Sequence[Choice]], measure: Callable[[Sequence[str]], float], tolerance: float
) -> tuple[list[str], float]:
    """Returns an encoding for each layer, and the error measured with all of them, which is at most the tolerance.

    Each layer needs one encoding without error. The network's squared error is assumed to be the sum of the layers'
    squared errors times a measured factor. If a measurement exceeds the tolerance, the next round uses a smaller
    budget.
    """
    budget, best = tolerance**2, None
    for _ in range(ROUNDS):
        tried = within(layers, budget)
        error = measure([c.encoding for c in tried])
        if error <= tolerance and (best is None or _bytes(tried) < _bytes(best[0])):
            best = tried, error
        if not any(c.error for c in tried):
            break
        budget *= (MARGIN * tolerance / max(error, tolerance / 4)) ** 2
    while best is None:
        tried = within(layers, budget)
        error = measure([c.encoding for c in tried])
        best = (tried, error) if error <= tolerance or not any(c.error for c in tried) else None
        budget /= 4
        budget = 0.0 if budget < tolerance**2 * 1e-6 else budget
    return [c.encoding for c in best[0]], best[1]


def within(layers: Sequence[Sequence[Choice]], budget: float) -> list[Choice]:
    """Returns choices whose squared errors sum to at most the budget. Starts from the smallest choices, and repeats
    the exchange that saves the most error per byte."""
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


def least_bytes(layers: Sequence[Sequence[Choice]]) -> int:
    """Returns the bytes of all layers with their smallest choices."""
    return sum(min(c.bytes for c in choices) for choices in layers)


def within_bytes(layers: Sequence[Sequence[Choice]], budget: int) -> list[Choice]:
    """Returns choices of at most `budget` bytes, with a small sum of squared errors. The budget must be at least
    `least_bytes`.

    The search starts from the smallest choices, and repeats the exchange within the budget that saves the most error
    per byte. Then it repeats pairs of exchanges, one of which frees bytes for the other, while a pair saves error.
    """
    chosen = [min(choices, key=lambda c: (c.bytes, c.error)) for choices in layers]
    possible = [_exchanges(i, choices, now) for i, (choices, now) in enumerate(zip(layers, chosen, strict=True))]
    room = budget - _bytes(chosen)
    while exchanges := _best(possible, room) or _best_pair(possible, room):
        for exchange in exchanges:
            i = exchange.layer
            room -= exchange.bytes
            chosen[i] = exchange.choice
            possible[i] = _exchanges(i, layers[i], chosen[i])
    return chosen


@dataclass(frozen=True, slots=True)
class _Exchange:
    """Another choice of a layer. bytes: more bytes than the present choice. saves: the reduction of the squared error.
    bytes and saves may be negative."""

    layer: int
    choice: Choice
    bytes: int
    saves: float


def _exchanges(layer: int, choices: Sequence[Choice], now: Choice) -> list[_Exchange]:
    return [_Exchange(layer, c, c.bytes - now.bytes, now.error**2 - c.error**2) for c in choices if c is not now]


def _best(possible: Sequence[Sequence[_Exchange]], room: int) -> list[_Exchange]:
    taken = [e for exchanges in possible for e in exchanges if e.saves > 0 and e.bytes <= room]
    return [max(taken, key=lambda e: e.saves / max(e.bytes, 1))] if taken else []


def _best_pair(possible: Sequence[Sequence[_Exchange]], room: int) -> list[_Exchange]:
    """Returns the two exchanges of different layers that together save the most in at most `room` bytes, or none if no
    two save anything."""
    ordered = sorted(chain.from_iterable(possible), key=lambda e: e.bytes)
    # Entry n: the best exchanges of the two best layers among the n + 1 smallest exchanges.
    leaders: list[tuple[_Exchange, ...]] = []
    for e in ordered:
        known = {k.layer: k for k in sorted([*(leaders[-1] if leaders else ()), e], key=lambda k: k.saves)}
        leaders.append(tuple(sorted(known.values(), key=lambda k: -k.saves)[:2]))
    sizes, result, most = [e.bytes for e in ordered], [], 0.0
    for e in ordered:
        fitting = bisect_right(sizes, room - e.bytes)
        partner = next((k for k in leaders[fitting - 1] if k.layer != e.layer), None) if fitting else None
        if partner is not None and e.saves + partner.saves > most * (1 + LEAST_GAIN) + LEAST_GAIN * abs(e.saves):
            result, most = [e, partner], e.saves + partner.saves
    return result


def _bytes(chosen: Sequence[Choice]) -> int:
    return sum(c.bytes for c in chosen)

"""The search for encodings, on layers whose errors are made up."""

import numpy as np
import pytest

from hexane.compression.search import Choice, search, within

SMALL, LARGE, WHOLE = ("palette2", 10), ("int8", 40), ("none", 80)


def layers(*errors: tuple[float, float]) -> list[list[Choice]]:
    return [[Choice(*SMALL, a), Choice(*LARGE, b), Choice(*WHOLE, 0.0)] for a, b in errors]


def measured(given: list[list[Choice]], factor: float, asked: list[float]):  # type: ignore[no-untyped-def]
    """The root of the squares' sum, by a factor."""

    def measure(encodings: list[str]) -> float:
        squares = [
            next(c.error for c in choices if c.encoding == e) ** 2 for choices, e in zip(given, encodings, strict=True)
        ]
        asked.append(factor * float(np.sqrt(sum(squares))))
        return asked[-1]

    return measure


def test_the_layer_that_hurts_most_for_its_bytes_gets_more_bits() -> None:
    given = layers((0.5, 0.01), (0.02, 0.01), (0.03, 0.01))
    assert [c.encoding for c in within(given, 0.05**2)] == ["int8", "palette2", "palette2"]


@pytest.mark.parametrize("factor", [0.3, 1.0, 3.0, 40.0])
@pytest.mark.parametrize("seed", range(5))
def test_what_is_found_is_measured_and_within_the_tolerance(seed: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    given = layers(*(tuple(sorted(rng.uniform(0, 0.1, 2), reverse=True)) for _ in range(6)))
    asked: list[float] = []
    found, error = search(given, measured(given, factor, asked), 0.05)
    assert error <= 0.05
    assert error in asked
    assert set(found) <= {"palette2", "int8", "none"}


def test_weights_stay_whole_where_nothing_else_is_within() -> None:
    given = layers((0.5, 0.4), (0.5, 0.4))
    assert search(given, measured(given, 1, []), 1e-9) == (["none", "none"], 0.0)


def test_a_network_that_bears_more_than_the_sum_says_gets_fewer_bits() -> None:
    given = layers((0.06, 0.01), (0.06, 0.01), (0.06, 0.01))
    assert search(given, measured(given, 0.4, []), 0.05)[0] == ["palette2"] * 3

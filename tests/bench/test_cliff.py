"""The fit of floors and breaks, on lines whose floors and breaks are known."""

import numpy as np
import pytest

from hexane.bench.cliff import Break, Line, fit

MIB = 2.0**20
SIZES = np.geomspace(0.05, 64, 24) * MIB


def line(*bends: tuple[float, float], start: float = 20.0, slope: float = 10.0) -> np.ndarray:
    """us at SIZES: start + slope per MiB, which each bend (MiB, us per MiB) changes."""
    return start + slope * SIZES / MIB + sum(d * np.maximum(SIZES / MIB - at, 0) for at, d in bends)


def breaks(sizes: np.ndarray, times: np.ndarray) -> tuple[Break, ...]:
    return fit(sizes, times).breaks


def noisy(times: np.ndarray, seed: int, by: float = 0.03) -> np.ndarray:
    return times * (1 + by * np.random.default_rng(seed).standard_normal(len(times)))


def test_a_straight_line_has_no_break() -> None:
    """At the level of one in a hundred, one false alarm in twenty lines is luck, three are not."""
    assert sum(breaks(SIZES, noisy(line(), seed)) != () for seed in range(20)) <= 2


@pytest.mark.parametrize("at", [4.0, *(pytest.param(at, marks=pytest.mark.slow) for at in (0.5, 24.0))])
def test_the_interval_of_a_break_holds_it(at: float) -> None:
    held = 0
    for seed in range(10):
        found = breaks(SIZES, noisy(line((at, 40.0)), seed))
        nearest = min(found, key=lambda b: abs(np.log(b.bytes / MIB / at)))
        held += nearest.low <= at * MIB <= nearest.high
        assert nearest.slope_after > 1.5 * nearest.slope_before
    assert held >= 9


def test_two_breaks_come_with_the_slopes_between_them() -> None:
    places = SIZES[[10, 18]] / MIB
    first, second = breaks(SIZES, noisy(line((places[0], 30.0), (places[1], 160.0)), 3, 0.005))
    assert (first.bytes / MIB, second.bytes / MIB) == pytest.approx(tuple(places))
    assert (first.slope_before, first.slope_after, second.slope_after) == pytest.approx((10, 40, 200), rel=0.1)


@pytest.mark.parametrize(
    ("floor", "bends"),
    [
        (90.0, ()),
        (5.0, ((4.0, 40.0),)),
        pytest.param(5.0, (), marks=pytest.mark.slow),
        pytest.param(90.0, ((4.0, 40.0),), marks=pytest.mark.slow),
    ],
)
def test_the_interval_of_the_floor_holds_it(floor: float, bends: tuple[tuple[float, float], ...]) -> None:
    held = 0
    for seed in range(10):
        found = fit(SIZES, noisy(line(*bends, start=floor), seed))
        assert found.floor is not None
        assert found.floor_low is not None
        assert found.floor_high is not None
        assert found.floor == pytest.approx(floor, rel=0.25)
        held += found.floor_low <= floor <= found.floor_high
    assert held >= 8


def test_no_call_takes_less_than_no_time() -> None:
    """Times that grow faster than bytes at first would put the floor below 0."""
    found = fit(SIZES, noisy(line(start=-0.4), 1))
    assert (found.floor, found.floor_low) == (0, 0)


def test_few_sizes_have_no_fit() -> None:
    assert fit(SIZES[:7], line((4.0, 40.0))[:7]) == Line()


def test_few_sizes_have_no_breaks() -> None:
    assert breaks(SIZES[:7], line((4.0, 40.0))[:7]) == ()


def test_the_same_times_give_the_same_interval() -> None:
    times = noisy(line((4.0, 40.0)), 1)
    assert breaks(SIZES, times) == breaks(SIZES, times)

"""What params begin with: the spread that PyTorch's initialisers have, and arrays that a seed decides."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array

init = hx.train.init
LINEAR, CONV = (800, 400), (60, 40, 5, 3)

# Deviation and largest magnitude of what torch.nn.init (2.13.0) drew, for normal distributions without the latter.
TORCH: list[tuple[Callable[..., Array], tuple[int, ...], dict[str, Any], float, float]] = [
    (init.xavier_uniform, LINEAR, {"gain": 1.5}, 0.06124383278033377, 0.10606580227613449),
    (init.xavier_uniform, CONV, {"gain": 1.5}, 0.05467552038973235, 0.09486740827560425),
    (init.xavier_normal, LINEAR, {"gain": 1.5}, 0.06123092515423629, np.inf),
    (init.xavier_normal, CONV, {"gain": 1.5}, 0.05461843577563677, np.inf),
    (init.kaiming_uniform, LINEAR, {}, 0.07069978986128424, 0.1224740743637085),
    (init.kaiming_uniform, CONV, {}, 0.057791479092458874, 0.09999947994947433),
    (init.kaiming_uniform, LINEAR, {"fan": "out", "nonlinearity": "leaky_relu", "slope": 0.2},
     0.0490367905581941, 0.08492060005664825),
    (init.kaiming_uniform, CONV, {"fan": "out", "nonlinearity": "leaky_relu", "slope": 0.2},
     0.04645132200872128, 0.08006023615598679),
    (init.kaiming_normal, LINEAR, {"nonlinearity": "tanh"}, 0.08337928440941629, np.inf),
    (init.kaiming_normal, CONV, {"nonlinearity": "tanh"}, 0.0675659784796511, np.inf),
    (init.kaiming_normal, LINEAR, {"fan": "out"}, 0.05004570760420625, np.inf),
    (init.kaiming_normal, CONV, {"fan": "out"}, 0.04706645834616152, np.inf),
    (init.truncated_normal, LINEAR, {"mean": 0.1, "deviation": 0.5, "low": -0.4, "high": 0.8},
     0.31283301436905997, 0.8),
]  # fmt: skip


@pytest.mark.parametrize(("draw", "shape", "options", "deviation", "largest"), TORCH)
def test_arrays_spread_as_those_of_torch(
    draw: Callable[..., Array], shape: tuple[int, ...], options: dict[str, Any], deviation: float, largest: float
) -> None:
    found = draw(shape, 3, **options)
    assert found.shape == shape
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.std(), deviation, rtol=0.02)
    if np.isfinite(largest):
        np.testing.assert_allclose(np.abs(found).max(), largest, rtol=1e-3)
    mean = 0.1593 if draw is init.truncated_normal else 0.0  # torch's, as above
    assert abs(found.mean() - mean) < 0.02 * deviation


def test_gains_are_those_of_torch() -> None:
    want = {"linear": 1, "sigmoid": 1, "tanh": 5 / 3, "relu": 1.4142135623730951, "selu": 0.75}
    assert {name: init.gain(name) for name in want} == want
    assert init.gain("leaky_relu", 0.2) == 1.3867504905630728
    assert init.gain("leaky_relu") == 1.4141428569978354


def test_a_normal_has_its_mean_and_deviation() -> None:
    found = init.normal((500, 400), 1, mean=3.0, deviation=0.25)
    np.testing.assert_allclose([found.mean(), found.std()], [3.0, 0.25], rtol=0.01)


def test_a_seed_gives_the_same_array_and_another_seed_another() -> None:
    for draw in (init.xavier_uniform, init.xavier_normal, init.kaiming_uniform, init.kaiming_normal, init.normal):
        first, again, other = (draw((5, 4), seed) for seed in (1, 1, 2))
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first, other)
    np.testing.assert_array_equal(init.normal((2, 2), 7), np.random.default_rng(7).standard_normal((2, 2)).astype("f4"))


def test_no_element_is_outside_though_fp32_rounds_the_ends() -> None:
    found = init.truncated_normal((20000,), 1, low=0.1, high=0.7).astype(np.float64)
    assert found.min() >= 0.1
    assert found.max() <= 0.7


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: init.xavier_uniform((3,), 1), "need outputs and inputs"),
        (lambda: init.kaiming_normal((3, 0), 1), "at least one element"),
        (lambda: init.kaiming_normal((3, 2), 1, fan="both"), "need 'in' or 'out'"),
        (lambda: init.kaiming_normal((3, 2), 1, nonlinearity="gelu"), "need linear, sigmoid"),
        (lambda: init.normal((3, -1), 1), "need integers from 0 on"),
        (lambda: init.normal((3,), -1), "seed: got -1"),
        (lambda: init.normal((3,), 1, deviation=float("nan")), "need a finite number"),
        (lambda: init.truncated_normal((3,), 1, low=8.0, high=9.0), "a hundredth of the distribution"),
        (lambda: init.truncated_normal((3,), 1, low=float("nan")), "a hundredth of the distribution"),
    ],
)
def test_bad_arguments_say_what_is_needed(make: Callable[[], Array], words: str) -> None:
    with pytest.raises(hx.Error, match="need") as told:
        make()
    assert words in str(told.value)

"""Norms of small numbers on chips: squares of 1e-4 are below fp16, the results are not."""

from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from hexane.ops.reference import run_reference

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
NORMS = {
    "mean_variance_norm": lambda x: hx.mean_variance_norm(x, epsilon=1e-9),
    "mean_variance_norm of rows": lambda x: hx.mean_variance_norm(x, axes=-1, epsilon=1e-9),
}


@pytest.mark.parametrize("size", [3e-4, 1e-2, 1.0, 300.0])
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_of_small_and_large_rows(name: str, size: float) -> None:
    x = hx.input("x", (1, 8, 6, 20))
    graph = hx.graph(NORMS[name](x))
    data = (np.random.default_rng(3).standard_normal(x.shape) * size).astype(np.float16).astype(np.float32)
    (want,) = run_reference(graph, {"x": data}).values()
    for options in ({"target": "h11"}, {"target": "h13"}, {"target": "h16g", "numerics": "ieee"}):
        got = np.asarray(hx.compile(graph, threads=1, **options)(data), np.float64)
        assert np.linalg.norm(got - want) <= 3e-3 * np.linalg.norm(want), options


@pytest.mark.parametrize("epsilon", [1e-15, 1e-12, 1e-8])
def test_an_rms_norm_with_an_epsilon_below_fp16_gives_zeros_for_a_row_of_zeros(epsilon: float) -> None:
    """It was NaN: the epsilon, times the factor of the row, was 0 in fp16."""
    x = hx.input("x", (4, 64))
    graph = hx.graph(hx.rms_norm(x, axes=(-1,), epsilon=epsilon))
    data = np.random.default_rng(3).standard_normal(x.shape) * [[0.0], [1e-4], [1.0], [2e4]]
    data = data.astype(np.float16).astype(np.float32)
    (want,) = run_reference(graph, {"x": data}).values()
    for options in ({"target": "h11"}, {"target": "h13"}, {"target": "h16g", "numerics": "ieee"}):
        got = np.asarray(hx.compile(graph, threads=1, **options)(data), np.float64)
        assert not got[0].any(), options
        off = np.linalg.norm(got - want, axis=1)[1:] / np.linalg.norm(want, axis=1)[1:]
        assert (off <= 3e-3).all(), options


def _mean(x: hx.Tensor) -> hx.Tensor:
    return hx.reduce_mean(x, axes=(1,), keep_dims=True)


def _sum(x: hx.Tensor) -> hx.Tensor:
    return hx.reduce_sum(x, axes=(1,), keep_dims=True)


# Charbonnier, pseudo-Huber and Cauchy losses, inverse square root units, and norms, each with an epsilon.
ROOTS: dict[str, Callable[[hx.Tensor, float], hx.Tensor]] = {
    "root of a square": lambda x, e: hx.sqrt(x * x + e),
    "root of two": lambda x, e: hx.sqrt(hx.square(x) + hx.square(x[::-1]) + e),
    "root of four": lambda x, e: hx.sqrt(
        x * x + hx.square(x[::-1]) + hx.square(x[:, ::-1]) + hx.square(x[::-1, ::-1]) + e
    ),
    "x over the root": lambda x, e: x / hx.sqrt(x * x + e),
    "log of a square": lambda x, e: hx.log(x * x + e),
    "log of a sum": lambda x, e: hx.log(_sum(x * x) + e),
    "norm": lambda x, e: hx.sqrt(_sum(x * x) + e),
    "deviation": lambda x, e: hx.sqrt(_mean(x * x) + e),
    "inverse of it": lambda x, e: hx.rsqrt(_mean(x * x) + e),
    "x over the norm": lambda x, e: x / (hx.sqrt(_sum(x * x)) + e),
    "x over the norm, limited": lambda x, e: x / hx.maximum(hx.sqrt(_sum(x * x)), e),
    "rms_norm": lambda x, e: hx.rms_norm(x, axes=(1,), epsilon=e),
}


@pytest.mark.parametrize("size", [0.01, 1.0, 9000.0])
@pytest.mark.parametrize("epsilon", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("name", ROOTS)
def test_any_epsilon_beside_any_numbers(name: str, epsilon: float, size: float) -> None:
    """The factor that brings small numbers up made epsilons near 1 infinite: sqrt(x^2 + 1) was, for x near 1."""
    x = hx.input("x", (4, 64))
    graph = hx.graph(ROOTS[name](x, epsilon))
    data = (np.random.default_rng(5).standard_normal(x.shape) * size).astype(np.float16).astype(np.float32)
    data[:, 1] = data[:, 0]
    (want,) = run_reference(graph, {"x": data}).values()
    for options in ({"target": "h13"}, {"target": "h17s", "numerics": "ieee"}):
        got, plain = (np.asarray(hx.compile(graph, threads=1, repair=on, **options)(data)) for on in (True, False))
        off, without = (np.linalg.norm(y.astype(np.float64) - want) for y in (got, plain))
        steps = 1e-3 * want.size**0.5 if name.startswith("log") else 1e-6  # of fp16, for roots near 1
        assert off <= 3e-3 * np.linalg.norm(want) + steps or off <= 1.5 * without, options


@pytest.mark.parametrize("size", [10.0, 9000.0])
def test_the_root_of_a_square_and_a_large_number(size: float) -> None:
    x = hx.input("x", (4, 64))
    data = (np.random.default_rng(5).standard_normal(x.shape) * size).astype(np.float16).astype(np.float32)
    want = np.hypot(data.astype(np.float64), 1e3)
    for options in ({"target": "h13"}, {"target": "h17s", "numerics": "ieee"}):
        got = np.asarray(hx.compile(hx.graph(hx.sqrt(x * x + 1e6)), threads=1, **options)(data), np.float64)
        assert np.linalg.norm(got - want) <= 3e-3 * np.linalg.norm(want), options


def test_the_root_of_four_equal_squares() -> None:
    x = hx.input("x", (4, 64))
    graph = hx.graph(ROOTS["root of four"](x, 1e-6))
    data = np.full((4, 64), 300.0, np.float32)
    for options in ({"target": "h13"}, {"target": "h17s", "numerics": "ieee"}):
        np.testing.assert_allclose(hx.compile(graph, threads=1, **options)(data), 600, rtol=2e-3)


def test_the_logarithm_of_a_square_with_an_epsilon_below_fp16() -> None:
    """Zeros with 1e-12 were -infinity: the epsilon times the factor was 0."""
    x = hx.input("x", (4, 64))
    data = np.zeros((4, 64), np.float32)
    data[1:] = (np.random.default_rng(5).standard_normal((3, 64)) * [[1e-3], [1.0], [2e4]]).astype(np.float16)
    want = np.log(data.astype(np.float64) ** 2 + 1e-12)
    for options in ({"target": "h13"}, {"target": "h17s", "numerics": "ieee"}):
        got = np.asarray(hx.compile(hx.graph(hx.log(x * x + 1e-12)), threads=1, **options)(data), np.float64)
        assert abs(got - want).max() <= 0.15, options

"""Norms of small numbers on chips: squares of 1e-4 are below fp16, the results are not."""

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

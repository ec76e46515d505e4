"""Packages in fp16 of networks whose numbers leave fp16: right without a target, as trained networks need it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Graph
from hexane.lowering.held_batch_norms import held_batch_norms

Array = np.ndarray[Any, Any]


def pixels(seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (1, 3, 12, 12)).astype(np.float32)


def convolution_of_pixels(variance: float, gamma: float = 1.0) -> Graph:
    """A first convolution of a detector and its batch norm, which another reader keeps from being folded."""
    rng = np.random.default_rng(1)
    x = hx.input("x", (1, 3, 12, 12))
    y = hx.conv(x, rng.normal(0, 1, (8, 3, 3, 3)).astype(np.float32))
    mean, spread = rng.normal(0, 200, 8), variance * rng.uniform(0.5, 2, 8)
    factors, beta = gamma * rng.uniform(0.5, 2, 8), rng.normal(0, 1, 8)
    z = hx.batch_norm(y, *(v.astype(np.float32) for v in (mean, spread, factors, beta)))
    return hx.graph({"z": hx.relu(z), "peak": hx.reduce_max(y, axes=(2, 3))})


def norm_by_sums(count: int = 512) -> Graph:
    """A layer norm as a classifier of files has it: sums times 1 / n, E[x^2] - E[x]^2."""
    x = hx.input("x", (1, count))
    last: dict[str, Any] = {"axes": (1,), "keep_dims": True}
    mean = hx.reduce_sum(x, **last) * (1 / count)
    variance = hx.reduce_sum(x * x, **last) * (1 / count) - mean * mean
    return hx.graph({"y": (x - mean) * hx.rsqrt(variance + 1e-6)})


CASES: dict[str, tuple[Callable[[], Graph], Array]] = {
    "variances of 388,000": (lambda: convolution_of_pixels(388_000.0), pixels()),
    "variances and factors beyond fp16": (lambda: convolution_of_pixels(4e9, 1e5), pixels()),
    "variances below 1e-6": (lambda: convolution_of_pixels(1e-7, 1e-5), pixels() / 255),
    "sums of squares": (norm_by_sums, np.random.default_rng(2).normal(20, 30, (1, 512)).astype(np.float32)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_package_in_fp16_computes_the_network(name: str, tmp_path: Path) -> None:
    build, x = CASES[name]
    hx.save_coreml(build(), tmp_path / "net.mlpackage")
    want, got = hx.compile(build())(x), hx.compile(tmp_path / "net.mlpackage")(x)
    outputs = [(want, got)] if not isinstance(want, dict) else [(want[k], got[k]) for k in want]
    for exact, made in outputs:
        assert np.linalg.norm(made - exact) < 4e-3 * np.linalg.norm(exact)


@pytest.mark.parametrize("variance", [1e-7, 0.5, 388_000.0, 4e9])
def test_a_batch_norm_that_is_written_otherwise_is_the_same_function(variance: float) -> None:
    graph = convolution_of_pixels(variance, 100.0 if variance > 1e6 else 1.0)
    made = held_batch_norms(graph)
    assert (made.nodes == graph.nodes) == (variance == 0.5)
    x = pixels()
    want, got = hx.compile(graph)(x)["z"], hx.compile(made)(x)["z"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())

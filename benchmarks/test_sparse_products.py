"""Products whose weights are stored without their zeros, compared with whole weights."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Graph

SIZE = 4096


@cache
def network(rows: int, zeros: float) -> tuple[Graph, np.ndarray]:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((SIZE, SIZE)).astype(np.float32)
    weight.reshape(-1)[rng.permutation(weight.size) < zeros * weight.size] = 0
    graph = hx.graph(hx.linear(hx.input("x", (rows, SIZE)), weight))
    return graph, rng.standard_normal((rows, SIZE)).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("contestant", ["hexane", "hexane, whole weights"])
@pytest.mark.parametrize("zeros", [0.5, 0.6, 0.7, 0.8, 0.9])
@pytest.mark.parametrize("rows", [1, 12, 64])
def test_product(rows: int, zeros: float, contestant: str, threads: int, contest: Callable[..., None]) -> None:
    graph, x = network(rows, zeros)
    net = hx.compile(graph, threads=threads, memory=hx.Memory(whole_weights=contestant != "hexane"))
    assert isinstance(net, hx.Model)
    assert (net.steps[0]["kernel"] == "sparse_matmul") == (contestant == "hexane")
    contest(f"{rows} x {SIZE} x {SIZE}, {zeros:.0%} zeros | {threads} | -", contestant, net.bind(x=x))

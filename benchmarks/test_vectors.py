"""Products and a convolution whose weights are indices of vectors, compared with whole weights."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

import hexane as hx
from hexane.compression.compress import compress
from hexane.graph import Graph
from hexane.targets import load_target

SIZE = 4096
MODES = ("palette4:v2", "palette4:v4", "palette8:v2", "palette8:v4")
# The shapes of x and of the weight, and the function that multiplies them.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], Callable[[hx.Tensor, np.ndarray], hx.Tensor]]] = {
    "a row x 4096 x 4096": ((1, SIZE), (SIZE, SIZE), hx.linear),
    "conv 3x3, 256 channels, 28x28": ((1, 256, 28, 28), (256, 256, 3, 3), lambda x, w: hx.conv(x, w, pad=1)),
    "conv_transpose 4x4, 256 channels, 14x14": (
        (1, 256, 14, 14), (256, 256, 4, 4), lambda x, w: hx.conv_transpose(x, w, strides=2, pad=1),
    ),
}  # fmt: skip


@cache
def network(case: str, mode: str | None) -> tuple[Graph, np.ndarray]:
    x, weight, make = CASES[case]
    rng = np.random.default_rng(0)
    graph = hx.graph(make(hx.input("x", x), rng.standard_normal(weight).astype(np.float32)))
    small = graph if mode is None else compress(graph, hx.Compression(mode), load_target("host"))
    return small, rng.standard_normal(x).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("contestant", ["hexane", "hexane, fp32"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_product(case: str, mode: str, contestant: str, threads: int, contest: Callable[..., None]) -> None:
    graph, x = network(case, mode if contestant == "hexane" else None)
    net = hx.compile(graph, threads=threads)
    assert isinstance(net, hx.Model)
    contest(f"{case}, {mode} | {threads} | -", contestant, net.bind(x=x))

"""Programs built to break the compiler: memory that is shared, overwritten or empty, passes that meet. Each once failed or
was meant to; all are compared with the reference, with and without the passes that touch them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import hexane as hx
from compare import assert_close
from hexane.graph import Array, Graph
from hexane.reference import run_reference


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def feeds_of(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(11)
    return {
        str(v.node.attrs["name"]): np.asarray(rng.integers(-3, 4, v.shape)).astype(v.dtype.numpy) for v in graph.inputs
    }


def assert_computes(outputs: Any, updates: Sequence[hx.Tensor] = (), calls: int = 1) -> None:
    """What is compiled does what the reference does, in several calls where states remember."""
    graph = hx.graph(outputs, updates)
    net = hx.compile(graph, threads=1)
    feeds, states = feeds_of(graph), {}
    for _ in range(calls):
        want = run_reference(graph, feeds, states)
        got = net(feeds)
        for name, array in want.items():
            assert_close(got if isinstance(got, np.ndarray) else got[name], array)


# ---- nothing in it ----


def test_a_padded_convolution_of_no_channels_is_its_bias() -> None:
    x = hx.input("x", (1, 0, 5, 11))
    assert_computes(hx.conv(x, np.zeros((2, 0, 1, 3), "f"), bias=normal(2), pad=(0, 0, 1, 2)))


def test_an_empty_concatenation_stays_inside_its_memory() -> None:
    x = hx.input("x", (0, 3, 4))
    y = hx.concat(hx.exp(x), hx.tanh(x), axis=1)
    assert_computes([hx.transpose(y), hx.concat(hx.relu(x[:, :0]), hx.neg(x[:, :0]), axis=1)])


def test_a_convolution_of_no_batches_is_empty() -> None:
    x = hx.input("x", (0, 3, 5, 5))
    assert_computes([hx.conv(x, normal(4, 3, 2, 2)), hx.conv_transpose(x, normal(3, 4, 2, 2), groups=1)])


def test_no_coordinates_gather_nothing() -> None:
    x = hx.input("x", (1, 0))
    assert_computes(hx.gather_nd(x, np.zeros((3, 1), np.int64)))


def test_a_transposed_convolution_of_nothing_is_refused() -> None:
    with pytest.raises(hx.Error, match="need positive extents"):
        hx.conv_transpose(hx.input("x", (1, 1, 0, 3)), normal(1, 1, 3, 3), strides=2)

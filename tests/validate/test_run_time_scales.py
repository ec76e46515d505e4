"""Networks quantised by scales of run time: the engine gets what stands next to a product of its own, and nothing
else."""

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array, Graph
from hexane.pipeline import divide
from hexane.targets.query import load_chip

CHIPS = ("h13", "h15", "h17s")
pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")


def weight(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-127, 128, shape).astype(np.int8)


def bytes_and_scale(x: hx.Tensor) -> tuple[hx.Tensor, hx.Tensor]:
    """x in int8 by the scale of its own largest number, as dynamic quantisation writes it."""
    scale = hx.reduce_max(hx.abs(x), axes=tuple(range(len(x.shape))), keep_dims=False) / 127.0
    return hx.quantize(x, scale, dtype="int8"), scale


def multiplied(x: hx.Tensor, columns: int) -> hx.Tensor:
    q, scale = bytes_and_scale(x)
    total = hx.quantized_matmul(q, hx.const(weight(x.shape[-1], columns)), dtype="int32")
    return hx.cast(total, dtype="fp32") * (scale * 0.01) + 0.5


def convolved(x: hx.Tensor, channels: int) -> hx.Tensor:
    q, scale = bytes_and_scale(x)
    total = hx.quantized_conv(q, hx.const(weight(channels, x.shape[1], 3, 3)), pad=1, dtype="int32")
    return hx.relu(hx.cast(total, dtype="fp32") * (scale * 0.01) + 0.5)


def residual_network() -> Graph:
    x = convolved(hx.input("x", (1, 3, 8, 8)), 4)
    for _ in range(3):
        x = hx.relu(x + convolved(x, 4))
    pooled = hx.reduce_mean(x, axes=(2, 3), keep_dims=False)
    return hx.graph({"y": hx.softmax(multiplied(pooled, 10))})


def attention_network() -> Graph:
    x = hx.input("x", (1, 6, 8))
    q, k, v = (multiplied(x, 8) for _ in range(3))
    scores = hx.softmax(hx.matmul(q, hx.transpose(k, perm=(0, 2, 1))) * 0.3)
    return hx.graph({"y": hx.relu(multiplied(hx.matmul(scores, v), 8))})


def float_network() -> Graph:
    x = hx.input("x", (1, 3, 8, 8))
    return hx.graph({"y": hx.mod(hx.relu(x), 3.0) + 1.0})


def devices(graph: Graph, chip: str) -> list[str]:
    return [s.device for s in divide(graph, load_chip(chip))[1]]


@pytest.mark.parametrize("chip", CHIPS)
def test_a_network_without_a_product_of_the_engine_is_the_hosts_as_a_whole(chip: str) -> None:
    graph = residual_network()
    assert devices(graph, chip) == ["host"]
    report = hx.preflight(graph, chip)
    assert not any(e.verdict.runs for e in report.entries)
    reasons = {e.op: e.verdict for e in report.entries}
    assert "scales of quantisation are computed at run time" in reasons["relu"].reason
    assert "static" in reasons["relu"].change
    x = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
    np.testing.assert_array_equal(hx.compile(graph, target=chip, threads=1)(x), hx.compile(graph, threads=1)(x))


@pytest.mark.parametrize("chip", CHIPS)
def test_a_product_of_the_engine_keeps_what_is_next_to_it(chip: str) -> None:
    graph = attention_network()
    assert devices(graph, chip) == ["host", "ane", "host"]
    (engine,) = [s for s in divide(graph, load_chip(chip))[1] if s.device == "ane"]
    assert {"matmul", "softmax"} <= {n.op for n in engine.nodes}
    runs = [e.op for e in hx.preflight(graph, chip).entries if e.verdict.runs]
    assert set(runs) == {n.op for n in engine.nodes}


def test_networks_of_floats_are_left_alone() -> None:
    assert devices(float_network(), "h13") == ["ane", "host", "ane"]

"""Real networks end to end: the benchmark models (gen.py) against onnxruntime, and what memory they take."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import hexane as hx
from compare import assert_close
from networks import small_networks

NETWORKS = (
    *small_networks(),
    "autoencoder", "ds_cnn", "mobilenet_v1_025_96", "mobilenet_v2_035_96", "mobilenet_v2_100_224", "randwire",
    "resnet18_224", "resnet8", "resnet8_bn", "transformer", "unet_128", "yolo_160",
)  # fmt: skip
Find = Callable[[str], Path]


def random_feeds(net: hx.Model) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {p.name: rng.standard_normal(p.shape).astype(p.dtype.numpy) for p in net.inputs}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_matches_onnxruntime_with_any_number_of_threads(name: str, model_file: Find) -> None:
    path = model_file(name)
    one, two = (hx.compile(path, threads=threads).bind for threads in (1, 2))
    feeds = random_feeds(hx.compile(path, threads=1))
    calls = [one(**feeds), two(**feeds)]
    for call in calls:
        call()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for output, want in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        assert_close(calls[0].outputs[output.name], want)
        np.testing.assert_array_equal(calls[0].outputs[output.name], calls[1].outputs[output.name])


@pytest.mark.parametrize("name", NETWORKS)
def test_the_arena_is_no_larger_than_what_is_live_at_once(name: str, model_file: Find) -> None:
    net = hx.compile(model_file(name), threads=1)
    assert isinstance(net, hx.Model)
    assert net.program is not None
    assert net.memory["arena"] == net.program.extents["arena"].bound


@pytest.mark.parametrize("name", ["resnet8", "transformer", "mobilenet_v2_035_96"])
def test_a_network_runs_in_fp16(name: str, model_file: Find) -> None:
    """How far off it is is reported by the benchmarks; here: it is the same network, in half the bytes."""
    path = model_file(name)
    whole, half = hx.compile(path, threads=1), hx.compile(path, threads=1, dtype="fp16")
    feeds = random_feeds(whole)
    want, got = whole(feeds), half(feeds)
    assert np.corrcoef(want.reshape(-1), got.reshape(-1))[0, 1] > 0.99
    assert half.memory["weights"] < 0.6 * whole.memory["weights"]

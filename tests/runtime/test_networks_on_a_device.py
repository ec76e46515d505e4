"""Whole networks on a device that runs the MIL it gets: the bits of the CPU."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from networks import small_networks
from on_a_device import compiled, outputs


def decoder_layer(dim: int, heads: int, length: int, hidden: int, norm: str) -> hx.Graph:
    """Norm, attention over a cache of keys and values, a gated MLP, with residuals."""
    size = dim // heads
    x, position = hx.input("x", (1, dim)), hx.input("position", (), "int32")
    rng = np.random.default_rng(3)

    def linear(x: hx.Tensor, rows: int, columns: int) -> hx.Tensor:
        return hx.matmul(x, (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32))

    def normed(x: hx.Tensor) -> hx.Tensor:
        if norm == "layer_norm":
            return hx.layer_norm(x, axes=(-1,), epsilon=2**-16)
        return hx.rms_norm(x, np.ones(dim, np.float32), axes=(-1,), epsilon=2**-16)

    n = normed(x)
    q, k, v = (hx.reshape(linear(n, dim, dim), shape=(heads, 1, size)) for _ in range(3))
    keys = hx.write_state(hx.state("keys", (heads, length, size)), k, position, axis=1)
    values = hx.write_state(hx.state("values", (heads, length, size)), v, position, axis=1)
    scores = hx.matmul(q, hx.transpose(keys, perm=(0, 2, 1))) * float(size**-0.5)
    later = hx.greater(np.arange(length, dtype=np.int32).reshape(1, 1, length), hx.reshape(position, shape=(1, 1, 1)))
    mixed = hx.matmul(hx.softmax(hx.select(later, np.float32(-1e4), scores), axis=-1), values)
    x = x + linear(hx.reshape(mixed, shape=(1, dim)), dim, dim)
    n = normed(x)
    gated = hx.silu(linear(n, dim, hidden)) * linear(n, dim, hidden)
    return hx.graph({"y": x + linear(gated, hidden, dim)})


OF_110M = (768, 12, 256, 2048)  # a layer of 12 heads of 64, as in a model of 110 million parameters


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("size", [(32, 2, 16, 64), pytest.param(OF_110M, marks=pytest.mark.slow)])
def test_a_decoder_layer_keeps_its_cache_on_the_device(size: tuple[int, ...], norm: str, engine: _core.Device) -> None:
    """MIL has no rms_norm: it is written as six ops, each of which rounds to fp16, where the CPU's rounds once. All
    else is equal."""
    net, cpu = (compiled(decoder_layer(*size, norm), device=device) for device in ("ane", "cpu"))
    rng = np.random.default_rng(0)
    for i in range(6):
        x = rng.standard_normal((1, size[0]), np.float32)
        results = [{"y": m(x=x, position=np.int32(i))} for m in (net, cpu)]
        for m, found in zip((net, cpu), results, strict=True):
            found |= {name: m.read_state(name) for name in ("keys", "values")}
        for name, want in results[1].items():
            tolerance = 0.0 if norm == "layer_norm" else 6 * 2**-11 * np.abs(want).max()
            np.testing.assert_allclose(results[0][name], want, rtol=0, atol=tolerance, err_msg=f"{name} {i}")
    assert engine.counters["loaded"] == 1  # the host writes the rows afterwards
    assert net.program is not None
    caches = (size[1], size[2], size[0] // size[1])
    assert all(b.surface for b in net.program.buffers if b.kind == "state")
    copied = [s for s in net.program.steps if s.kernel == "copy" and s.inputs[0].type.shape == caches]  # type: ignore[union-attr]
    assert not copied


BENCHMARKS = [
    "autoencoder", "ds_cnn", "mobilenet_v1_025_96", "mobilenet_v2_035_96", "randwire", "resnet8", "resnet8_bn", "transformer",
    "unet_128", "yolo_160", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mobilenet_v2_100_224", "resnet18_224")),
]  # fmt: skip


@pytest.mark.parametrize("name", [*small_networks(), *BENCHMARKS])
def test_networks_run_on_a_device(name: str, engine: _core.Device, model_file: Callable[[str], Path]) -> None:
    model = model_file(name)
    net, cpu = compiled(model, device="ane"), compiled(model, device="cpu")
    rng = np.random.default_rng(0)
    arrays = {p.name: rng.uniform(-1, 1, p.shape).astype(np.float32) for p in net.inputs}
    got, want = outputs(net, arrays), outputs(cpu, arrays)
    for key in want:
        np.testing.assert_array_equal(got[key], want[key])

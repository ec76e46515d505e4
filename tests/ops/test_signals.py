"""Transforms of lengths whose matrix would be too large."""

import numpy as np
import pytest

import hexane as hx


@pytest.mark.parametrize(("length", "parts"), [(2049, 2), (4099, 1), (1 << 17, 1)])
def test_the_host_transforms_any_length(length: int, parts: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, length, parts)).astype(np.float32)
    y = hx.compile(hx.graph({"y": hx.dft(hx.input("x", x.shape, "fp32"), axis=1)}))(x)
    want = np.fft.fft(x[..., 0] + (1j * x[..., 1] if parts == 2 else 0.0), axis=1)
    assert np.linalg.norm(y[..., 0] + 1j * y[..., 1] - want) <= 2e-6 * np.linalg.norm(want)


def test_the_host_transforms_long_frames() -> None:
    x = np.random.default_rng(0).standard_normal((1, 9000, 1)).astype(np.float32)
    y = hx.compile(hx.graph({"y": hx.stft(hx.input("x", x.shape, "fp32"), frame_step=400, frame_length=8192)}))(x)
    want = np.stack([np.fft.fft(x[0, s : s + 8192, 0]) for s in (0, 400, 800)])
    assert np.linalg.norm(y[0, ..., 0] + 1j * y[0, ..., 1] - want) <= 2e-6 * np.linalg.norm(want)


def test_a_chip_leaves_a_long_transform_to_the_host() -> None:
    graph = hx.graph({"y": hx.dft(hx.input("x", (1, 8192, 1), "fp32"), axis=1)})
    with pytest.warns(hx.FallbackWarning, match="dft"):
        net = hx.compile(graph, target="M1")
    assert net(np.ones((1, 8192, 1), np.float32))[0, 0, 0] == 8192


def test_too_long_a_transform_is_refused() -> None:
    graph = hx.graph({"y": hx.dft(hx.input("x", (1, 8192, 1), "fp32"), axis=1)})
    with pytest.raises(
        hx.Error, match=r"transform of 8192 elements, whose matrix takes 512.0 MiB, need at most 64.0 MiB"
    ):
        hx.compile(graph, memory=hx.Memory(runtime="c99"))
    with pytest.raises(hx.Error, match="got a transform of 131073 elements, need at most 131072"):
        hx.dft(hx.input("x", (1, (1 << 17) + 1, 1), "fp32"), axis=1)
    with pytest.raises(hx.Error, match="got frames of 131073 elements, need at most 131072"):
        hx.stft(hx.input("x", (1, 1 << 18, 1), "fp32"), frame_step=1 << 17, frame_length=(1 << 17) + 1)

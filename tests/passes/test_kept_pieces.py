"""Tensors wider than a chip takes stay in pieces between ops: the host neither joins nor cuts them in between."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.build import graph
from hexane.pipeline import divide
from hexane.targets import Chip, load_target

WIDE = 20_000  # M1 takes 16,384, M4 65,536
Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(11)
KERNELS = {n: RNG.normal(0, 0.3, (4, 4, n)).astype(np.float32) for n in (1, 3, 7, 8)}


def conv(x: hx.Tensor, taps: int, dilation: int = 1) -> hx.Tensor:
    side = dilation * (taps - 1) // 2
    return hx.conv(x, KERNELS[taps], pad=(side, side), dilations=(dilation,))


def residual(x: hx.Tensor) -> hx.Tensor:
    """A block of HiFi-GAN."""
    for dilation in (1, 3):
        x = x + conv(hx.leaky_relu(conv(hx.leaky_relu(x, alpha=0.1), 3, dilation), alpha=0.1), 3)
    return x


def reflected(x: hx.Tensor) -> hx.Tensor:
    """A convolution of EnCodec: reflected margins on the left, and a slice of all of it."""
    y = hx.pad(hx.elu(x, alpha=1.0), begin=(0, 0, 6), end=(0, 0, 0), mode="reflect")
    y = hx.slice_by_index(y, begin=(0, 0, 0), end=y.shape, stride=(1, 1, 1))
    return hx.conv(y, KERNELS[7])


def upsampled(x: hx.Tensor) -> hx.Tensor:
    y = hx.conv_transpose(x[:, :, : WIDE // 2], KERNELS[8], strides=(2,), pad=(3, 3))
    return hx.tanh(conv(hx.leaky_relu(y, alpha=0.1), 7))


def several(x: hx.Tensor) -> hx.Tensor:
    """Two ways with cuts at other places, and one that reads a part."""
    return residual(x) * 0.5 + conv(x, 7) * conv(hx.abs(x), 1)


def gates(x: hx.Tensor) -> hx.Tensor:
    """WaveNet: halves of the channels are a value and its gate, then a residual and a skip."""
    total = x
    for dilation in (1, 4):
        y = hx.concat(conv(x, 3, dilation), conv(x, 3), axis=1)
        y = hx.tanh(y[:, :4]) * hx.sigmoid(y[:, 4:])
        first, second = hx.split(hx.concat(conv(y, 1), y, axis=1), split_sizes=(4, 4), axis=1)
        x, total = x + first, total + second
    return conv(total, 3)


def skips(x: hx.Tensor) -> hx.Tensor:
    """A U-Net joins channels, here of the input too."""
    y = hx.relu(conv(x, 3))
    half = hx.relu(hx.conv(y, KERNELS[8], strides=(2,), pad=(3, 3)))
    y = hx.concat(hx.conv_transpose(half, KERNELS[8], strides=(2,), pad=(3, 3)), y, x[:, 1:3], axis=1)
    return hx.conv(y, np.concatenate([KERNELS[3]] * 3, 1)[:, :10], pad=(1, 1))


def causal(x: hx.Tensor) -> hx.Tensor:
    """Margins of a constant in ops of their own."""
    for dilation, margins in ((1, (2, 0)), (16, (32, 0)), (3, (1, 9))):
        low, high = margins
        padded = hx.pad(hx.relu(x), begin=(0, 0, low), end=(0, 0, high), value=0.25)
        x = hx.conv(padded, KERNELS[3], dilations=(dilation,))[:, :, : WIDE - 50]
    return x


NETWORKS: dict[str, Callable[[hx.Tensor], hx.Tensor]] = {
    "residual": residual,
    "reflected": reflected,
    "upsampled": upsampled,
    "several": several,
    "part": lambda x: conv(residual(x)[:, :, 123:-77], 3),
    "gates": gates,
    "skips": skips,
    "causal": causal,
    "corner": lambda x: conv(hx.concat(residual(x)[:, 2:, 50:-7], conv(x, 7)[:, :2, 57:], axis=1), 3),
    "images": lambda x: hx.relu(hx.reshape(residual(x), shape=(1, 4, 1, WIDE)) * 2.0),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_wide_network_is_one_program(name: str) -> None:
    build = NETWORKS[name]
    chip = load_target("h13")
    assert isinstance(chip, Chip)
    made = graph(build(hx.input("x", (1, 4, WIDE))))
    _, segments = divide(made, chip)
    assert [s.device for s in segments].count("ane") == 1
    assert len(segments) <= 3  # the host cuts the input and joins the output
    numbers = RNG.normal(0, 1, (1, 4, WIDE)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hx.FallbackWarning)
        if name in ("upsampled", "skips"):  # its own cuts are of a tensor that the chip takes
            warnings.simplefilter("ignore", hx.HazardWarning)
        nets = [hx.compile(made, target=target) for target in ("h13", "h16g")]
    pieces, whole = (np.asarray(net(numbers), np.float64) for net in nets)
    want = np.asarray(hx.compile(made)(numbers), np.float64)
    assert pieces.shape == want.shape
    for got in (pieces, whole):
        assert np.linalg.norm(got - want) < 5e-3 * np.linalg.norm(want)
    edge = np.abs(pieces - want).max(axis=(0, 1)).reshape(-1)
    assert edge.max() < 0.05 * np.abs(want).max()  # at the cuts as well


def test_logic_between_ops_of_the_host_stays_there() -> None:
    """A mask of integers, as MPNet and BERT have it: the engine had one logical_not, for a call of its own."""
    ids, x = hx.input("ids", (1, 32), dtype="int32"), hx.input("x", (1, 32, 16))
    shown = hx.cast(hx.logical_not(hx.equal(ids, 1)), dtype="int32")
    places = hx.cumsum(shown, axis=1) * shown
    table = RNG.normal(0, 1, (64, 16)).astype(np.float32)
    net = graph(hx.relu((x + hx.gather(table, places, axis=0)) @ RNG.normal(0, 1, (16, 16)).astype(np.float32)))
    chip = load_target("h16g")
    assert isinstance(chip, Chip)
    made, segments = divide(net, chip)
    assert [s.device for s in segments] == ["host", "ane"]
    assert any(d.verdict == "moved" and d.node.startswith("logical_not") for d in made.decisions)

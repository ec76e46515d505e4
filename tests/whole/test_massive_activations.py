"""Decoder blocks whose residual has channels of hundreds to 20,000, as trained language models have, and norms behind any
scale: right on chips in both arithmetics."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.cost.estimate import estimate_program
from hexane.targets.query import load_chip

Array = np.ndarray[Any, Any]
WIDTH, HEADS, LENGTH, WORDS = 96, 4, 50, 128
LAST: dict[str, Any] = {"axes": (-1,), "keep_dims": True}
# Channels and their sizes, at all positions or at the first alone, as attention sinks have them.
PLANTED: dict[str, tuple[dict[int, float], bool]] = {
    "300": ({3: 300.0}, True),
    "3,000": ({3: 3000.0, 40: -300.0}, True),
    "20,000": ({3: 20000.0, 40: 3000.0, 41: 300.0}, True),
    "20,000 at the first position": ({3: 20000.0, 40: -3000.0}, False),
}


def rms_norm(h: hx.Tensor, gain: Array) -> hx.Tensor:
    """As exports of Llama's family write it."""
    return h * hx.rsqrt(hx.reduce_mean(hx.pow(h, 2.0), **LAST) + 1e-5) * gain


def decoder(seed: int, planted: dict[int, float]) -> hx.Tensor:
    """Two blocks of Llama's kind and a head. Gains are small where activations are large, as training makes them."""
    rng = np.random.default_rng(seed)

    def weight(rows: int, columns: int) -> Array:
        return (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

    def gain() -> Array:
        found = np.abs(1 + 0.3 * rng.standard_normal(WIDTH)).astype(np.float32)
        found[list(planted)] *= 0.02
        return found

    size = WIDTH // HEADS
    angles = np.arange(LENGTH)[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
    cos, sin = (np.concatenate([f(angles)] * 2, -1).astype(np.float32)[None, None] for f in (np.cos, np.sin))
    mask = np.triu(np.full((LENGTH, LENGTH), np.finfo(np.float32).min, np.float32), 1)[None, None]

    def heads(x: hx.Tensor) -> hx.Tensor:
        return hx.transpose(hx.reshape(x, shape=(1, LENGTH, HEADS, size)), perm=(0, 2, 1, 3))

    def rotated(x: hx.Tensor) -> hx.Tensor:
        return x * cos + hx.concat([-x[:, :, :, size // 2 :], x[:, :, :, : size // 2]], axis=3) * sin

    h = hx.input("x", (1, LENGTH, WIDTH))
    for _ in range(2):
        n = rms_norm(h, gain())
        q, k, v = (heads(hx.matmul(n, weight(WIDTH, WIDTH))) for _ in range(3))
        scores = hx.matmul(rotated(q), rotated(k), transpose_y=True) * size**-0.5 + mask
        mixed = hx.transpose(hx.matmul(hx.softmax(scores, axis=-1), v), perm=(0, 2, 1, 3))
        h = h + hx.matmul(hx.reshape(mixed, shape=(1, LENGTH, WIDTH)), weight(WIDTH, WIDTH))
        n = rms_norm(h, gain())
        h = h + hx.matmul(
            hx.silu(hx.matmul(n, weight(WIDTH, 256))) * hx.matmul(n, weight(WIDTH, 256)), weight(256, WIDTH)
        )
    return hx.matmul(rms_norm(h, gain()), weight(WIDTH, WORDS))


@pytest.mark.parametrize("target", ["M1", "M4"])
@pytest.mark.parametrize("numerics", ["engine", "ieee"])
@pytest.mark.parametrize("name", PLANTED)
def test_a_decoder_with_massive_channels_keeps_its_words(name: str, numerics: str, target: str) -> None:
    """Over 200 positions."""
    planted, everywhere = PLANTED[name]
    model = decoder(5, planted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        chip = hx.compile(model, target=target, numerics=numerics)
    host = hx.compile(model)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((1, LENGTH, WIDTH)).astype(np.float32)
        for channel, size in planted.items():
            at = slice(None) if everywhere else slice(0, 1)
            x[:, at, channel] = size * (1 + 0.05 * rng.standard_normal(x[:, at, channel].shape))
        got, want = np.asarray(chip(x)), np.asarray(host(x))
        assert np.linalg.norm(got - want) <= 2e-2 * np.linalg.norm(want)
        chosen = np.take_along_axis(want, got.argmax(-1)[..., None], -1)[..., 0]
        assert (chosen >= want.max(-1) - 2e-2 * want.std()).all(), "the first word, or one that is as likely"


@pytest.mark.filterwarnings("ignore::hexane.HazardWarning")
@pytest.mark.parametrize("target", ["h13", "h17s"])
def test_a_decoder_s_repaired_norms_cost_two_percent_at_most_by_the_estimate(target: str) -> None:
    model = decoder(5, PLANTED["3,000"][0])
    with_it, without = (
        estimate_program(hx.compile(model, target=target, repair=on).program, load_chip(target)).latency_us
        for on in (True, False)
    )
    assert with_it <= 1.02 * without


Form = Callable[[hx.Tensor], hx.Tensor]


def _mean(x: hx.Tensor) -> hx.Tensor:
    return hx.reduce_mean(x, **LAST)


# Functions that do not depend on the size of their operand, in the spellings of files.
FORMS: tuple[Form, ...] = (
    lambda h: h / hx.sqrt(_mean(h * h) + 1e-9),
    lambda h: h * hx.rsqrt(_mean(hx.square(h)) + 1e-9),
    lambda h: h / (hx.reduce_l2_norm(h, **LAST) + 1e-12),
    lambda h: h / hx.maximum(hx.sqrt(hx.reduce_sum(h * h, **LAST)), np.float32(1e-12)),
    lambda h: hx.lp_norm(h, p=2, axis=1),
    lambda h: hx.lp_norm(h, p=1, axis=1),
    lambda h: (h - _mean(h)) / hx.sqrt(_mean(hx.square(h - _mean(h))) + 1e-9),
    lambda h: (h - _mean(h)) * hx.rsqrt(_mean(h * h) - _mean(h) * _mean(h) + 1e-9),
    lambda h: hx.layer_norm(h, axes=(1,), epsilon=1e-9),
    lambda h: hx.rms_norm(h, axes=(1,), epsilon=1e-9),
    lambda h: h / hx.reduce_max(hx.abs(h), **LAST),
)


def _network(seed: int, scale: float) -> hx.Tensor:
    """Random forms between products, each behind a factor that takes its numbers to this scale."""
    rng = np.random.default_rng(seed)
    h = hx.input("x", (8, 64))
    for _ in range(2):
        h = hx.matmul(h, (rng.standard_normal((64, 64)) / 8).astype(np.float32))
        h = hx.gelu(h) if rng.random() < 0.5 else h + 0.3
        h = FORMS[rng.integers(len(FORMS))](h * np.float32(scale)) * np.float32(4)
    return hx.matmul(h, (rng.standard_normal((64, 16)) / 8).astype(np.float32))


def _off(seed: int, scale: float, target: str, numerics: str) -> tuple[float, bool]:
    """How far the chip is from the host, and whether it was warned of."""
    model = _network(seed, scale)
    x = np.random.default_rng(seed).standard_normal((8, 64)).astype(np.float32)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        got = np.asarray(hx.compile(model, target=target, numerics=numerics)(x), np.float64)
    want = np.asarray(hx.compile(model)(x), np.float64)
    warned = any(issubclass(w.category, hx.HazardWarning) for w in said)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want)) if np.isfinite(got).all() else np.inf, warned


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(s, marks=pytest.mark.slow) for s in range(20, 300))])
def test_a_scale_between_products_changes_nothing_silently(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    target, numerics = ("M1", "M4", "h17s")[seed % 3], ("engine", "ieee")[seed % 2]
    scale = float(np.float32(10 ** rng.uniform(-1, 6)))
    plain, _ = _off(seed, 1.0, target, numerics)
    far, warned = _off(seed, scale, target, numerics)
    assert warned or far <= 5 * plain + 2e-3, (scale, plain, far)

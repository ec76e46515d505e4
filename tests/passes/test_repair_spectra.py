"""Log-mel spectra that a network computes itself, on chips."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.build import graph
from hexane.ops.reference import run_reference
from hexane.passes.repair import repair
from hexane.passes.repair.repair import repairs_of
from hexane.targets import load_target

Array = np.ndarray[Any, Any]
BINS, BANDS, FRAMES = 65, 20, 30
HUGE = float("inf")
CHIPS = [("h13", "engine"), ("h17s", "ieee")]
BANK = np.maximum(0, 1 - abs(np.arange(BINS)[:, None] - np.linspace(2, 60, BANDS)) / 4).astype(np.float32)
ROWS = BANK.T.copy()
Spelling = Callable[[hx.Tensor, hx.Tensor], hx.Tensor]


def turned(x: hx.Tensor) -> hx.Tensor:
    return hx.transpose(x, perm=(0, 2, 1))


def pairs(a: hx.Tensor, b: hx.Tensor) -> hx.Tensor:
    """As torch.stft gives them."""
    return hx.concat(hx.expand_dims(a, axes=(3,)), hx.expand_dims(b, axes=(3,)), axis=3)


# Each with the factor of the bank and the floor, as an addition and a limit.
SPELLINGS: dict[str, tuple[Spelling, float, float, float]] = {
    "Kaldi": (lambda a, b: hx.log(hx.maximum(hx.matmul(turned(a * a + b * b), BANK), 1.19e-7)), 1, 0, 1.19e-7),
    "Whisper": (
        lambda a, b: turned(
            hx.log(hx.clip(hx.matmul(ROWS * 0.03, hx.square(hx.sqrt(a * a + b * b))), alpha=1e-10, beta=HUGE))
        ),
        0.03,
        0,
        1e-10,
    ),
    "NeMo": (
        lambda a, b: turned(
            hx.log(hx.matmul(ROWS, hx.reduce_sum(hx.square(pairs(a, b)), axes=(-1,), keep_dims=False)) + 2.0**-24)
        ),
        1,
        2.0**-24,
        0,
    ),
    "a convolution": (
        lambda a, b: turned(hx.log(hx.conv(hx.square(a) + hx.square(b), ROWS[:, :, None].copy()) + 1e-6)),
        1,
        1e-6,
        0,
    ),
    "a layer over a number": (
        lambda a, b: hx.log(hx.linear(turned(hx.pow(a, 2.0) + hx.pow(b, 2.0)), ROWS) / 400.0 + 1e-6),
        1 / 400,
        1e-6,
        0,
    ),
    "turned behind": (
        lambda a, b: hx.log(hx.maximum(turned(turned(hx.matmul(a * a + b * b, BANK, transpose_x=True))), 1e-5)),
        1,
        0,
        1e-5,
    ),
}


def given(size: float) -> dict[str, Array]:
    """25 dB from the lowest to the highest bin, 15 dB between frames, and a frame of zeros."""
    rng = np.random.default_rng(4)
    falls = 10 ** (-2.5 * np.arange(BINS) / BINS)[None, :, None] * 10 ** (-1.5 * rng.random((1, 1, FRAMES)))
    feeds = {name: rng.normal(0, size, (1, BINS, FRAMES)) * falls for name in ("re", "im")}
    for x in feeds.values():
        x[:, :, 4] = 0
    return {name: np.clip(x, -45000, 45000).astype(np.float16).astype(np.float32) for name, x in feeds.items()}


def network(spelling: Spelling) -> hx.Graph:
    return graph(spelling(*(hx.input(name, (1, BINS, FRAMES)) for name in ("re", "im"))))


def exactly(feeds: dict[str, Array], factor: float, inside: float, least: float) -> Array:
    power = sum(x.astype(np.float64) ** 2 for x in feeds.values())
    return np.log(np.maximum(np.swapaxes(power, 1, 2) @ BANK.astype(np.float64) * factor + inside, least))


@pytest.mark.parametrize("size", [0.3, 30.0, 1000.0, 20000.0])
@pytest.mark.parametrize("name", SPELLINGS)
def test_a_log_mel_spectrum_is_right(name: str, size: float) -> None:
    spelling, *numbers = SPELLINGS[name]
    feeds = given(size)
    want = exactly(feeds, *numbers)
    for target, numerics in CHIPS:
        got = np.asarray(hx.compile(network(spelling), target=target, numerics=numerics, threads=1)(feeds), np.float64)
        assert abs(got - want).mean() <= 0.02, (target, numerics)
        assert abs(got - want)[want > want.max() - 12].max() <= 0.05, (target, numerics)  # 52 dB below the loudest


@pytest.mark.parametrize("name", SPELLINGS)
def test_it_is_the_same_function_and_stays_on_the_engine(name: str) -> None:
    spelling, *numbers = SPELLINGS[name]
    model, feeds = network(spelling), given(300.0)
    written = repair(model, load_target("h16g"))
    assert any("bins are scaled" in d.reason for d in repairs_of(written))
    assert str(repair(written, load_target("h16g"))) == str(written)
    (got,) = run_reference(written, feeds).values()
    np.testing.assert_allclose(got, exactly(feeds, *numbers), rtol=1e-4, atol=1e-3)
    assert all(entry.verdict.runs for entry in hx.preflight(model, "M4").entries)


def test_a_logarithm_near_1_keeps_its_digits() -> None:
    """log(p + 1) of small powers is small: a difference of two logarithms would lose it."""
    model, feeds = network(lambda a, b: hx.log(hx.linear(turned(a * a + b * b), ROWS) / 400.0 + 1.0)), given(1.0)
    want = exactly(feeds, 1 / 400, 1.0, 0)
    plain, got = (
        np.asarray(hx.compile(model, target="h17s", numerics="ieee", threads=1, repair=on)(feeds), np.float64)
        for on in (False, True)
    )
    assert np.linalg.norm(got - want) <= 2 * np.linalg.norm(plain - want) + 1e-3 * np.linalg.norm(want)


@pytest.mark.parametrize("floor", [1e-6, 1.0])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1000.0, 12000.0])
def test_the_logarithm_of_a_power_times_a_factor(size: float, floor: float) -> None:
    """Power over the length of a window."""
    x = hx.input("x", (4, 256))
    numbers = (np.random.default_rng(8).normal(0, size, (4, 256))).clip(-45000, 45000).astype(np.float16)
    feed = numbers.astype(np.float32)
    model = graph(hx.log((x * x + x[::-1] * x[::-1]) / 64.0 + floor))
    want = np.log((numbers.astype(np.float64) ** 2 + numbers[::-1].astype(np.float64) ** 2) / 64 + floor)
    for target, numerics in CHIPS:
        got = np.asarray(hx.compile(model, target=target, numerics=numerics, threads=1)(feed), np.float64)
        assert abs(got - want).max() <= 0.03, (target, numerics)

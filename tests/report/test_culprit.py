"""The op that breaks the outputs is the one that was planted, wherever it stands in a network."""

from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from hexane.report.compare import compare

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
WIDTH, DEPTH = 64, 6
Make = Callable[[hx.Tensor], hx.Tensor]
LAST = {"axes": (1,), "keep_dims": True}


def _linear(rng: np.random.Generator, h: hx.Tensor) -> hx.Tensor:
    weight = (rng.standard_normal((WIDTH, WIDTH)) / 8).astype(np.float32)
    return hx.matmul(h, weight)


def network(seed: int, place: int, plant: Make | None) -> hx.Tensor:
    """A residual network of matrix products and activations, and something planted behind one of its blocks."""
    rng = np.random.default_rng(seed)
    h = hx.input("x", (8, WIDTH))
    for block in range(DEPTH):
        h = h + 0.5 * hx.gelu(_linear(rng, h))
        if block % 2:
            h = hx.layer_norm(h, axes=(1,))
        if block == place and plant is not None:
            h = hx.tanh(plant(h)) + h
    return _linear(rng, h)


def _matmul_overflow(h: hx.Tensor) -> hx.Tensor:
    weight = np.full((WIDTH, WIDTH), 80, np.float32)
    return hx.sqrt(hx.matmul(hx.abs(h) * 40.0, weight)) * 0.0015


# What is planted, and the ops of which one has to be named.
PLANTS: dict[str, tuple[Make, tuple[str, ...]]] = {
    "a square that overflows": (lambda h: hx.sqrt(hx.reduce_mean(hx.square(h * 400.0), **LAST)) * 1e-3, ("square",)),
    "exp in a softplus": (lambda h: hx.log(1.0 + hx.exp(hx.abs(h) * 9.0)) * 0.05, ("exp",)),
    "a power": (lambda h: hx.log(hx.pow(hx.abs(h) * 6.0, 7.0) + 1.0) * 0.1, ("pow",)),
    "a square that vanishes": (lambda h: 0.05 * hx.log(hx.square(hx.square(h * 0.01)) + 1e-12), ("square", "add")),
    "a difference of large numbers": (lambda h: (h * 3000.0 + h) - h * 3000.0, ("sub", "add")),
    "a sum of products": (_matmul_overflow, ("matmul",)),
    "a quotient of squares": (
        lambda h: hx.square(h * 0.0003) / (hx.square(h * 0.0003) + 1e-9),
        ("square", "add", "real_div"),
    ),
    "a variance by moments": (
        lambda h: hx.reduce_mean(hx.square(h + 60.0), **LAST) - hx.square(hx.reduce_mean(h + 60.0, **LAST)),
        ("sub", "reduce_mean", "square"),
    ),
    "a quotient by small numbers": (lambda h: h / (hx.abs(h) * 1e-6 + 1e-7) * 1e-6, ("real_div",)),
    "a product of two": (lambda h: (h * 300.0) * (h * 400.0) * 1e-5, ("mul",)),
    "exp without its largest": (
        lambda h: hx.exp(h * 4.0 + 8.0) / hx.reduce_sum(hx.exp(h * 4.0 + 8.0), **LAST),
        ("exp",),
    ),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", PLANTS)
def test_the_op_that_was_planted_is_the_op_that_is_named(name: str, seed: int) -> None:
    plant, ops = PLANTS[name]
    x = np.random.default_rng(seed + 10).standard_normal((8, WIDTH)).astype(np.float32)
    found = compare(network(seed, seed + 1, plant), ["M1", "ieee"], {"x": x}, repair=False)
    (parted,) = found.partings
    assert parted.outputs
    assert parted.cause is not None
    op, _, place = parted.cause.where.partition(" at ")
    assert op in ops
    assert "test_culprit.py" in place
    if op == "real_div" and parted.cause.kind == "overflow":
        assert "the divisor of this op has to be larger" in parted.cause.change
    assert parted.cause.kind != "accumulated", "what the layer reads is exact"


@pytest.mark.parametrize("seed", range(4))
def test_a_square_before_a_constant_beyond_fp16_is_right_without_repair(seed: int) -> None:
    """The CPU has the product, and the square that fp16 would make zeros of."""
    x = np.random.default_rng(seed + 10).standard_normal((8, WIDTH)).astype(np.float32)
    made = network(seed, seed + 1, lambda h: hx.square(h * 1e-4) * 1e8)
    (parted,) = compare(made, ["M1", "ieee"], {"x": x}, repair=False).partings
    assert parted.outputs == ()


@pytest.mark.parametrize("seed", range(4))
def test_a_network_with_nothing_planted_has_no_culprit(seed: int) -> None:
    x = np.random.default_rng(seed + 10).standard_normal((8, WIDTH)).astype(np.float32)
    (parted,) = compare(network(seed, 0, None), ["M1", "ieee"], {"x": x}).partings
    assert parted.culprit is None

"""Quotients of sums on chips: numbers over their own sum, sums over sums, and means under weights of any range."""

import numpy as np
import pytest

import hexane as hx
from hexane.build import graph
from hexane.passes.repair import repair
from hexane.targets import load_target
from repair_cases import (
    Array,
    Build,
    Case,
    assert_decided,
    assert_holds,
    assert_same_function,
    normal,
    total,
)

SPREAD = np.abs(normal(3000)) + np.float32(1)
MAPS = np.abs(normal(30, shape=(1, 2, 256, 256)))
FAR = normal(1, 20)
VALUES = normal(3, 5, (256, 16))
SLOPE = normal(0.06, shape=(256, 1))


def pixels(x: hx.Tensor) -> hx.Tensor:
    return hx.reduce_sum(x, axes=(2, 3), keep_dims=True)


def over(x: Array, axes: tuple[int, ...] = (1,), epsilon: float = 0.0) -> Array:
    return x / (x.sum(axes, keepdims=True) + epsilon)


def dice(x: hx.Tensor) -> hx.Tensor:
    """Of two masks of 512 x 512, smoothed by 1."""
    p, t = hx.sigmoid(x[:, :1]), hx.sigmoid(x[:, 1:])
    axes = (1, 2, 3)
    both, parts = hx.reduce_sum(p * t, axes=axes), hx.reduce_sum(p, axes=axes) + hx.reduce_sum(t, axes=axes)
    return (2.0 * both + 1.0) / (parts + 1.0)


def overlap(x: hx.Tensor) -> hx.Tensor:
    """Intersection over union of two masks of 512 x 512 that come in."""
    p, t = x[:, :1], x[:, 1:]
    both = hx.reduce_sum(p * t, axes=(2, 3))
    return both / (hx.reduce_sum(p, axes=(2, 3)) + hx.reduce_sum(t, axes=(2, 3)) - both + 1e-6)


def of_masks(x: Array, is_overlap: bool) -> Array:
    p, t = x[:, :1], x[:, 1:]
    if not is_overlap:
        p, t = 1 / (1 + np.exp(-p)), 1 / (1 + np.exp(-t))
        return (2 * (p * t).sum((1, 2, 3), keepdims=True) + 1) / ((p + t).sum((1, 2, 3), keepdims=True) + 1)
    both = (p * t).sum((2, 3), keepdims=True)
    return both / ((p + t).sum((2, 3), keepdims=True) - both + 1e-6)


LOGITS = normal(3, 1, (1, 2, 512, 512))
MASKS = (normal(1, 0.5, (1, 2, 512, 512)) > 0).astype(np.float32)


def pooled(x: hx.Tensor) -> hx.Tensor:
    """Attention pooling with exponentials that are written out."""
    weights = hx.exp(hx.matmul(x, SLOPE))
    return hx.reduce_sum(x * weights, axes=(0,), keep_dims=False) / hx.reduce_sum(weights, axes=(0,), keep_dims=False)


def pooled_array(x: Array) -> Array:
    scores = x @ SLOPE.astype(np.float64)
    weights = np.exp(scores - scores.max())
    return np.asarray((x * weights).sum(0) / weights.sum())


def shares(x: hx.Tensor, epsilon: float = 0.0) -> hx.Tensor:
    """A spectrum's power over its sum."""
    power = x * x + hx.square(x[:, ::-1])
    return power / (total(power) + epsilon) if epsilon else power / total(power)


def power_of(x: Array) -> Array:
    return x**2 + x[:, ::-1] ** 2


def masked(x: hx.Tensor) -> hx.Tensor:
    """Exponentials times a mask, as graph attention has them."""
    return hx.exp(x) * hx.cast(hx.greater(x[::-1], np.float32(13)), dtype="fp32")


def signed(x: hx.Tensor) -> hx.Tensor:
    return hx.tanh((x[::-1] - 9000.0) * 0.0625) * 600.0


def signed_array(x: Array) -> Array:
    return np.asarray(np.tanh((x[::-1] - 9000) * 0.0625) * 600)


CASES = {
    "numbers over their sum": Case(lambda x: hx.abs(x) / total(hx.abs(x)), SPREAD, over),
    "numbers of unknown sign over their sum": Case(lambda x: x / total(x), SPREAD, over),
    "numbers times the inverse of their sum": Case(lambda x: x * (1.0 / (total(x) + 1e-6)), SPREAD, over),
    "numbers over the sum of their magnitudes": Case(
        lambda x: x / hx.clip(total(hx.abs(x)), alpha=1e-12, beta=3.4e38),
        normal(3000),
        lambda x: x / abs(x).sum(1, keepdims=True),
    ),
    "numbers over their l1 norm": Case(
        lambda x: x / hx.reduce_l1_norm(x, axes=(1,), keep_dims=True),
        normal(3000),
        lambda x: x / abs(x).sum(1, keepdims=True),
    ),
    "a map over its sum": Case(lambda x: hx.relu(x) / (pixels(hx.relu(x)) + 1e-6), MAPS, lambda x: over(x, (2, 3))),
    "a sum that is reshaped": Case(
        lambda x: x / hx.reshape(hx.reduce_sum(x, axes=(1,), keep_dims=False), shape=(4, 1)), SPREAD, over
    ),
    "powers over their sum": Case(shares, normal(300), lambda x: over(power_of(x))),
    "small powers over their sum": Case(
        lambda x: shares(x, 1e-10), normal(0.0003), lambda x: over(power_of(x), (1,), 1e-10)
    ),
    "exponentials over their l1 norm": Case(
        lambda x: (
            hx.exp(x)
            / hx.broadcast_to(
                hx.clip(hx.reduce_l1_norm(hx.exp(x), axes=(1,), keep_dims=True), alpha=1e-12, beta=3.4e38),
                shape=(4, 256),
            )
        ),
        normal(3, 15),
        lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True),
    ),
    "squares over their sum with factors": Case(
        lambda x: hx.square(x) / (4.0 * (total(hx.square(x)) / 255.0 + 1e-4)),
        normal(400),
        lambda x: x**2 / (4 * ((x**2).sum(1, keepdims=True) / 255 + 1e-4)),
    ),
    "rows of a matrix with a sum": Case(
        lambda x: hx.matmul(hx.abs(x), VALUES) / (total(hx.abs(x)) + 1e-6),
        SPREAD,
        lambda x: x @ VALUES.astype(np.float64) / x.sum(1, keepdims=True),
    ),
    "a running sum over its sum": Case(
        lambda x: hx.cumsum(x, axis=1) / total(x), SPREAD, lambda x: np.cumsum(x, 1) / x.sum(1, keepdims=True)
    ),
    "a softmax under a mask": Case(
        lambda x: masked(x) / (total(masked(x)) + 1e-9),
        normal(5, 13),
        lambda x: np.exp(x) * (x[::-1] > 13) / ((np.exp(x) * (x[::-1] > 13)).sum(1, keepdims=True) + 1e-9),
    ),
    "dice": Case(dice, LOGITS, lambda x: of_masks(x, False)),
    "overlap of masks": Case(overlap, MASKS, lambda x: of_masks(x, True)),
    "attention pooling": Case(pooled, FAR, pooled_array),
    "a mean with weights that come in": Case(
        lambda x: total(x[:2] * x[2:]) / total(x[2:]),
        SPREAD,
        lambda x: (x[:2] * x[2:]).sum(1, keepdims=True) / x[2:].sum(1, keepdims=True),
    ),
    "a mean with weights of pixels": Case(
        lambda x: hx.reduce_sum(x[:1, 1:] * x[:1, :1], axes=(2, 3)) / hx.reduce_sum(x[:1, :1], axes=(2, 3)),
        np.abs(normal(3000, 500, (1, 4, 16, 16))),
        lambda x: (x[:1, 1:] * x[:1, :1]).sum((2, 3), keepdims=True) / x[:1, :1].sum((2, 3), keepdims=True),
    ),
    "a mean with weights of tokens": Case(
        lambda x: (
            hx.reduce_sum(
                hx.reshape(x[:2], shape=(2, 16, 16)) * hx.expand_dims(x[2:, :16], axes=(2,)), axes=(1,), keep_dims=False
            )
            / hx.clip(hx.reduce_sum(x[2:, :16], axes=(1,)), alpha=1e-9, beta=3.4e38)
        ),
        SPREAD,
        lambda x: (x[:2].reshape(2, 16, 16) * x[2:, :16, None]).sum(1) / x[2:, :16].sum(1, keepdims=True),
    ),
    "a mean with the power as weight": Case(
        lambda x: total(x * hx.square(x[:, ::-1])) / (total(hx.square(x[:, ::-1])) + 1e-6),
        normal(900, 300),
        lambda x: (x * x[:, ::-1] ** 2).sum(1, keepdims=True) / (x**2).sum(1, keepdims=True),
    ),
    "a product over a sum of inputs": Case(
        lambda x: x[:2] * x[2:] / (x[:2] + x[2:]), SPREAD, lambda x: x[:2] * x[2:] / (x[:2] + x[2:])
    ),
    "a product over a sum, of both signs": Case(
        lambda x: x * signed(x) / (x + signed(x)),
        normal(300, 9000),
        lambda x: x * signed_array(x) / (x + signed_array(x)),
    ),
    "a variance of n - 1": Case(
        lambda x: hx.reduce_mean(hx.square(x - hx.reduce_mean(x, axes=(1,))), axes=(1,)) * 256.0 / 255.0,
        normal(40, 500),
        lambda x: x.var(1, ddof=1, keepdims=True),
    ),
    "pixels in thousands": Case(
        lambda x: pixels(hx.sigmoid(x)) / 1000.0,
        LOGITS,
        lambda x: (1 / (1 + np.exp(-x))).sum((2, 3), keepdims=True) / 1000,
    ),
    "a running sum in hundreds": Case(lambda x: hx.cumsum(x, axis=1) * 0.01, SPREAD, lambda x: np.cumsum(x, 1) * 0.01),
    "a distance with a limit": Case(
        lambda x: hx.sqrt(
            hx.clip(
                total(x * x)
                + hx.transpose(total(x[::-1] * x[::-1]), perm=(1, 0))
                - hx.matmul(2.0 * x, hx.transpose(x[::-1], perm=(1, 0))),
                alpha=1e-12,
                beta=3.4e38,
            )
        ),
        normal(1000) * np.float32(0.5),
        lambda x: np.sqrt(np.maximum(((x[:, None] - x[None, ::-1]) ** 2).sum(2), 1e-12)),
        most=6e-3,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_form_holds_on_every_chip_and_the_risky_one_does_not(name: str) -> None:
    assert_holds(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_a_form_is_the_same_function(name: str) -> None:
    assert_same_function(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_each_change_is_a_decision_and_a_second_run_changes_nothing(name: str) -> None:
    assert_decided(CASES[name], name != "pixels in thousands")  # a sum with a factor is respelled as a mean


@pytest.mark.parametrize("size", [0.004, 0.03, 1.0])
def test_small_numbers_lose_no_digits_to_the_power_of_two(size: float) -> None:
    """A projection of numbers whose sums fp16 holds as they are."""
    given = normal(size, 2 * size, (2, 4096))
    x = hx.input("x", given.shape)
    y = total(x * x[::-1]) / total(x * x)
    want = (given * given[::-1]).astype(np.float64).sum(1, keepdims=True) / (given.astype(np.float64) ** 2).sum(
        1, keepdims=True
    )
    off = {
        repairs: np.abs(np.asarray(hx.compile(y, target="h13", repair=repairs)(given)) / want - 1).max()
        for repairs in (True, False)
    }
    assert off[True] < max(4e-3, 1.5 * off[False])


def test_exponentials_below_an_epsilon_stay_hidden() -> None:
    """exp(-38) is far below 1e-9: the share is 0, in fp32 too."""
    x = hx.input("x", (2, 4))
    made = repair(graph(hx.exp(x) / (hx.reduce_l1_norm(hx.exp(x), axes=(1,)) + 1e-9)), load_target("h13"))
    scores = np.array([[-38, -37, -39, -38], [-20, -20, -21, 3]], np.float32)
    want = np.exp(scores) / (np.exp(scores.astype(np.float64)).sum(1, keepdims=True) + 1e-9)
    np.testing.assert_allclose(np.asarray(hx.compile(made)(scores)), want, atol=1e-6)
    np.testing.assert_allclose(np.asarray(hx.compile(made, target="h13")(scores)), want, atol=1e-3)


def test_a_row_without_keys_is_zero_under_a_mask() -> None:
    x, mask = hx.input("x", (2, 8)), hx.input("mask", (2, 8))
    weights = hx.exp(x) * mask
    scores = np.array([[20, 3, 15, 0, -5, 19, 2, 1], [30, -40, -38, 0, 0, 0, 0, 0]], np.float32)
    keys = np.array([[0] * 8, [0, 1, 1, 0, 0, 0, 0, 0]], np.float32)
    got = np.asarray(hx.compile(weights / (total(weights) + 1e-30), target="h13")(x=scores, mask=keys))
    share = 1 / (1 + np.exp(-2))
    np.testing.assert_allclose(got[0], 0, atol=0)
    np.testing.assert_allclose(got[1, :3], [0, 1 - share, share], atol=1e-3)


@pytest.mark.parametrize("count", [0, 1, 3, 1000])
def test_masks_of_few_pixels_keep_their_overlap(count: int) -> None:
    """The power of two leaves one pixel a normal number."""
    masks = np.zeros((1, 2, 512, 512), np.float32)
    masks[0, 0].reshape(-1)[:count] = 1
    masks[0, 1].reshape(-1)[count // 2 : count // 2 + count] = 1
    x = hx.input("x", masks.shape)
    want = of_masks(masks.astype(np.float64), True)
    got = np.asarray(hx.compile(overlap(x), target="h13")(masks))
    np.testing.assert_allclose(got, want, rtol=4e-3)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: hx.sigmoid(x) / total(hx.sigmoid(x)),
        lambda x: hx.exp(x - hx.reduce_max(x, axes=(1,))) / (total(hx.exp(x - hx.reduce_max(x, axes=(1,)))) + x[:, :1]),
        lambda x: total(hx.tanh(x)) / (total(hx.sigmoid(x)) + 1.0),
        lambda x: x / total(x[:, ::-1]),
    ],
)
def test_sums_that_fp16_holds_stay_as_they_are(build: Build) -> None:
    model = graph(build(hx.input("x", (4, 256))))
    assert repair(model, load_target("h13")).nodes == model.nodes

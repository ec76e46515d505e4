"""Quotients whose two sides grow alike, on chips: norms over their mean, products over sums."""

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

PLANES = normal(12000, shape=(1, 16, 14, 14)) * np.linspace(0.0, 1.0, 16, dtype=np.float32).reshape(1, 16, 1, 1)


def normed(x: hx.Tensor, norms: hx.Tensor) -> hx.Tensor:
    """Global response normalisation of ConvNeXt V2."""
    return x * 1e-4 * (norms / (hx.reduce_mean(norms, axes=(1,), keep_dims=True) + 1e-6))


def normed_array(x: Array) -> Array:
    norms = np.sqrt((x**2).sum((2, 3), keepdims=True))
    return x * 1e-4 * norms / (norms.mean(1, keepdims=True) + 1e-6)


def harmonic(x: Array) -> Array:
    a, b = abs(x), abs(x[::-1])
    return a * b / (a + b + 1e-6)


def own_mean(x: Array, epsilon: float = 1e-6) -> Array:
    return (abs(x) * x).sum(1, keepdims=True) / (abs(x).sum(1, keepdims=True) + epsilon)


WEIGHTS = np.exp(normal(1.0))
WEIGHTS /= WEIGHTS.sum(1, keepdims=True)
LOGITS = np.log(WEIGHTS)


def spread(x: hx.Tensor, is_long: bool = False) -> hx.Tensor:
    """sum(a x^2) - sum(a x)^2, of attention weights a along each row. x * 0 makes the logits no constants."""
    a = hx.softmax(x * 0.0 + LOGITS, axis=-1)
    mu = total(x * a)
    return total(a * x * x) - mu * mu if is_long else total(a * hx.square(x)) - hx.square(mu)


def deviation(x: Array, epsilon: float) -> Array:
    mu = (WEIGHTS * x).sum(1, keepdims=True)
    return np.sqrt((WEIGHTS * (x - mu) ** 2).sum(1, keepdims=True) + epsilon)


def boxes() -> Array:
    """Left, top, right and bottom in an image of 2000 pixels, from 2 to 1500 wide."""
    rng = np.random.default_rng(3)
    corner, size = rng.uniform(0, 500, (2, 64)), 2 * 750 ** rng.uniform(0, 1, (2, 64))
    return np.concatenate([corner, corner + size]).astype(np.float16).astype(np.float32)


BOXES = boxes()


def overlap(x: hx.Tensor, is_generalised: bool) -> hx.Tensor:
    """Of each box and one from the other end, as torchvision's formulas have it."""
    first, other = [x[i : i + 1] for i in range(4)], [x[i : i + 1, ::-1] for i in range(4)]
    w, h = (hx.relu(hx.minimum(first[i + 2], other[i + 2]) - hx.maximum(first[i], other[i])) for i in (0, 1))
    areas = [(t[2] - t[0]) * (t[3] - t[1]) for t in (first, other)]
    both = w * h
    union = areas[0] + areas[1] - both
    if not is_generalised:
        return both / (union + 1e-7)
    wide, high = (hx.maximum(first[i + 2], other[i + 2]) - hx.minimum(first[i], other[i]) for i in (0, 1))
    hull = wide * high
    return both / union - (hull - union) / hull


def overlap_by_products(x: hx.Tensor) -> hx.Tensor:
    """The areas are (right, bottom) - (left, top), multiplied by reduce_prod."""

    def area(sides: hx.Tensor) -> hx.Tensor:
        return hx.reduce_prod(sides, axes=(0,), keep_dims=True)

    first, other = x, x[:, ::-1]
    both = area(hx.relu(hx.minimum(first[2:], other[2:]) - hx.maximum(first[:2], other[:2])))
    return both / hx.maximum(area(first[2:] - first[:2]) + area(other[2:] - other[:2]) - both, 1e-6)


def over_union(x: Array) -> tuple[Array, Array]:
    a, b = x, x[:, ::-1]
    w, h = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
    wide, high = np.maximum(a[2:], b[2:]) - np.minimum(a[:2], b[:2])
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - w * h
    return (w * h / union)[None], (w * h / union - (wide * high - union) / (wide * high))[None]


def softplus(x: Array) -> Array:
    return np.logaddexp(x, 0)


CASES = {
    "global response normalisation": Case(
        lambda x: normed(x, hx.reduce_l2_norm(x, axes=(2, 3), keep_dims=True)), PLANES, normed_array
    ),
    "global response normalisation by a root": Case(
        lambda x: normed(x, hx.sqrt(hx.reduce_sum(x * x, axes=(2, 3), keep_dims=True))), PLANES, normed_array
    ),
    "a product over a sum": Case(
        lambda x: hx.abs(x) * hx.abs(x[::-1]) / (hx.abs(x) + hx.abs(x[::-1]) + 1e-6), normal(6000), harmonic
    ),
    "a harmonic mean": Case(
        lambda x: 2.0 * hx.relu(x) * (hx.abs(x[::-1]) + 1.0) / (hx.relu(x) + (hx.abs(x[::-1]) + 1.0)),
        normal(6000),
        lambda x: 2 * np.maximum(x, 0) * (abs(x[::-1]) + 1) / (np.maximum(x, 0) + (abs(x[::-1]) + 1)),
    ),
    "a harmonic mean of softplus": Case(
        lambda x: hx.softplus(x) * hx.softplus(x[::-1]) / (hx.softplus(x) + hx.softplus(x[::-1])),
        normal(500, 3000),
        lambda x: softplus(x) * softplus(x[::-1]) / (softplus(x) + softplus(x[::-1])),
    ),
    "a mean with weights of its own size": Case(
        lambda x: total(hx.abs(x) * x) / total(hx.abs(x)), normal(3000, 500), lambda x: own_mean(x, 0.0)
    ),
    "a mean with weights, and an epsilon": Case(
        lambda x: total(x * hx.abs(x)) / (total(hx.abs(x)) + 1e-6), normal(12000, 2000), own_mean
    ),
    "a mean with weights, and a limit": Case(
        lambda x: total(hx.relu(x) * x[::-1]) / hx.maximum(total(hx.relu(x)), 1.0),
        normal(3000, 500),
        lambda x: (np.maximum(x, 0) * x[::-1]).sum(1, keepdims=True) / np.maximum(x, 0).sum(1, keepdims=True),
    ),
    "a mean of weights by themselves": Case(
        lambda x: total(hx.abs(x) * hx.abs(x)) / (total(hx.abs(x)) + 1e-6),
        normal(9000),
        lambda x: own_mean(abs(x)),
    ),
    "attentive statistics, by a limit": Case(
        lambda x: hx.sqrt(hx.clip(spread(x), alpha=1e-4, beta=3.4e38)), normal(3000, 3000), lambda x: deviation(x, 0.0)
    ),
    "attentive statistics, by an epsilon": Case(
        lambda x: hx.sqrt(spread(x, True) + 1e-6), normal(300, 500), lambda x: deviation(x, 1e-6)
    ),
    "attentive statistics, by relu and an epsilon": Case(
        lambda x: hx.pow(hx.relu(spread(x)) + 1e-5, 0.5), normal(12000), lambda x: deviation(x, 1e-5)
    ),
    "a variance under attention": Case(lambda x: spread(x, True), normal(30, 1000), lambda x: deviation(x, 0.0) ** 2),
    "intersection over union of boxes in pixels": Case(lambda x: overlap(x, False), BOXES, lambda x: over_union(x)[0]),
    "generalised intersection over union": Case(lambda x: overlap(x, True), BOXES, lambda x: over_union(x)[1]),
    "intersection over union by products": Case(overlap_by_products, BOXES, lambda x: over_union(x)[0]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_form_holds_on_every_chip_and_the_risky_one_does_not(name: str) -> None:
    assert_holds(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_a_form_is_the_same_function(name: str) -> None:
    assert_same_function(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_each_change_is_a_decision_and_a_second_run_changes_nothing(name: str) -> None:
    assert_decided(CASES[name])


@pytest.mark.parametrize(
    "build",
    [
        lambda x: hx.sigmoid(x) * hx.sigmoid(x[::-1]) / (hx.sigmoid(x) + hx.sigmoid(x[::-1]) + 1e-6),
        lambda x: x * x[::-1] / (x - x[::-1]),
    ],
)
def test_what_holds_or_is_another_quotient_stays_as_it_is(build: Build) -> None:
    model = graph(build(hx.input("x", (4, 256))))
    assert repair(model, load_target("h13")).nodes == model.nodes

"""Logarithms of probabilities with a limit or an epsilon, inverse sigmoids and Mish as a fraction, on chips."""

import numpy as np
import pytest

import hexane as hx
from hexane.build import graph
from hexane.passes.repair import repair
from hexane.targets import load_target
from repair_cases import Array, Build, Case, assert_decided, assert_holds, assert_same_function, normal, total

LOWEST, HIGHEST = np.float32(1e-6), np.float32(1 - 1e-6)


def log_softmax(x: Array) -> Array:
    x = x - x.max(1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(1, keepdims=True)))


def log_sigmoid(x: Array) -> Array:
    return np.asarray(-np.logaddexp(0, -x))


def inverse_sigmoid(x: hx.Tensor) -> hx.Tensor:
    """The function of DETR's decoders, of a reference point that is a sigmoid."""
    p = hx.sigmoid(x)
    return hx.log(hx.clip(p, alpha=1e-6, beta=3.4e38) / hx.clip(1.0 - p, alpha=1e-6, beta=3.4e38))


def chosen(x: hx.Tensor) -> hx.Tensor:
    """torch.logit(sigmoid(x), eps) in ONNX."""
    p = hx.sigmoid(x)
    p = hx.select(hx.greater(HIGHEST, p), p, HIGHEST)
    p = hx.select(hx.less(p, LOWEST), LOWEST, p)
    return hx.log(p / (1.0 - p))


def chosen_or_equal(x: hx.Tensor) -> hx.Tensor:
    """torch.logit(sigmoid(x), eps) by PyTorch's newer exporter."""
    p = hx.sigmoid(x)
    p = hx.select(hx.less(p, LOWEST), LOWEST, p)
    p = hx.select(hx.less_equal(p, HIGHEST), p, HIGHEST)
    return hx.log(p / (1.0 - p))


def points() -> Array:
    """Reference points of a detector, some of them at the border."""
    p = np.random.default_rng(5).uniform(0.001, 0.99, (4, 256)).astype(np.float16).astype(np.float32)
    p[:, ::7], p[:, 3::7] = 0, 1
    return p


def logit_of_point(p: Array) -> Array:
    p = np.clip(p, float(LOWEST), float(HIGHEST))
    return np.asarray(np.log(p / (1 - p)))


def logit(x: Array) -> Array:
    return np.clip(x, np.log(1e-6), -np.log(1e-6))


def fraction(x: hx.Tensor, is_product: bool) -> hx.Tensor:
    e = hx.exp(x)
    n = e * (e + 2.0) if is_product else e * e + 2.0 * e
    return x * (n / (n + 2.0)) if is_product else x * n / (n + 2.0)


CASES = {
    "log of a limited softmax": Case(
        lambda x: hx.log(hx.clip(hx.softmax(x, axis=1), alpha=1e-10, beta=1.0)),
        normal(6),
        lambda x: np.maximum(log_softmax(x), np.log(1e-10)),
    ),
    "log of a softmax and an epsilon": Case(
        lambda x: hx.log(hx.softmax(x, axis=1) + 1e-8),
        normal(6),
        lambda x: np.logaddexp(log_softmax(x), np.log(1e-8)),
    ),
    "log of a limited sigmoid": Case(
        lambda x: hx.log(hx.maximum(hx.sigmoid(x), np.float32(1e-9))),
        normal(10),
        lambda x: np.maximum(log_sigmoid(x), np.log(1e-9)),
    ),
    "log of a sigmoid and an epsilon": Case(
        lambda x: hx.log(1e-8 + hx.sigmoid(x)), normal(10), lambda x: np.logaddexp(log_sigmoid(x), np.log(1e-8))
    ),
    "log of 1 - sigmoid and an epsilon": Case(
        lambda x: hx.log(1.0 - hx.sigmoid(x) + 1e-8), normal(10), lambda x: np.logaddexp(log_sigmoid(-x), np.log(1e-8))
    ),
    "log of a product of probabilities": Case(
        lambda x: hx.log(hx.sigmoid(x) * hx.softmax(x[::-1], axis=1) + 1e-10),
        normal(7),
        lambda x: np.logaddexp(log_sigmoid(x) + log_softmax(x[::-1]), np.log(1e-10)),
    ),
    "a ratio of energies": Case(
        lambda x: hx.log(total(x * x) / total(hx.square(x - x[::-1]))),
        normal(900),
        lambda x: np.log((x**2).sum(1, keepdims=True) / ((x - x[::-1]) ** 2).sum(1, keepdims=True)),
    ),
    "log of cosh": Case(
        lambda x: hx.log(hx.cosh(x)), normal(20), lambda x: np.abs(x) + np.log1p(np.exp(-2 * np.abs(x))) - np.log(2)
    ),
    "log of odds of a limited sigmoid": Case(
        lambda x: hx.log(1.0 / hx.clip(hx.sigmoid(x), alpha=LOWEST, beta=HIGHEST) - 1.0), normal(8), lambda x: -logit(x)
    ),
    "log of odds of points": Case(
        lambda p: hx.log(1.0 / hx.clip(p, alpha=LOWEST, beta=HIGHEST) - 1.0),
        points(),
        lambda p: -logit_of_point(p),
        "",
    ),
    "logit with equal limits": Case(chosen_or_equal, normal(8), logit),
    "logit of points": Case(
        lambda p: hx.log(hx.clip(p, alpha=LOWEST, beta=HIGHEST) / (1.0 - hx.clip(p, alpha=LOWEST, beta=HIGHEST))),
        points(),
        logit_of_point,
    ),
    "logit of points as a difference": Case(
        lambda p: (
            hx.log(hx.clip(p, alpha=LOWEST, beta=HIGHEST))
            - hx.log(1.0 + hx.neg(hx.clip(p, alpha=LOWEST, beta=HIGHEST)))
        ),
        points(),
        logit_of_point,
        "",
    ),
    "log of odds": Case(lambda x: hx.log(hx.sigmoid(x) / (1.0 - hx.sigmoid(x))), normal(5), lambda x: x),
    "inverse sigmoid of a sigmoid": Case(inverse_sigmoid, normal(6), logit),
    "inverse sigmoid with both limits": Case(chosen, normal(6), logit),
    "mish as a fraction": Case(lambda x: fraction(x, False), normal(5, 3), lambda x: x * np.tanh(np.logaddexp(0, x))),
    "mish as a fraction of products": Case(
        lambda x: fraction(x, True), normal(5, 3), lambda x: x * np.tanh(np.logaddexp(0, x))
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
    assert_decided(CASES[name])


@pytest.mark.parametrize(
    "build",
    [
        lambda x: hx.log(hx.sigmoid(x) + 1e-3),
        lambda x: hx.log(hx.clip(hx.sigmoid(x), alpha=0.01, beta=0.99)),
        lambda x: hx.log(hx.select(hx.less(hx.sigmoid(x), np.float32(0.5)), hx.sigmoid(x), np.float32(1e-6))),
        lambda x: 1.0 - hx.clip(x, alpha=0.0, beta=1.0),
        lambda x: hx.exp(x) / (hx.abs(x) + 2.0),
    ],
)
def test_what_fp16_holds_stays_as_it_is(build: Build) -> None:
    model = graph(build(hx.input("x", (4, 256))))
    assert repair(model, load_target("h13")).nodes == model.nodes

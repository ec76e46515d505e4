"""What leaves fp16 is written in forms that hold: right results at the ranges of trained networks, and the same function."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.build import graph
from hexane.passes.repair import repair
from hexane.targets import load_target
from repair_cases import (
    CHIPS,
    LAST,
    MOST,
    Array,
    Build,
    Case,
    assert_decided,
    assert_holds,
    assert_same_function,
    mean,
    normal,
    off,
    rms,
    spiky,
    total,
)


def unit(x: Array) -> Array:
    return x / np.sqrt((x**2).sum(1, keepdims=True))


def standard(x: Array, epsilon: float = 1e-5, axis: int | tuple[int, ...] = 1) -> Array:
    spread = x - x.mean(axis, keepdims=True)
    return spread / np.sqrt((spread**2).mean(axis, keepdims=True) + epsilon)


def log_sum_exp(x: Array) -> Array:
    top = x.max(1, keepdims=True)
    return top + np.log(np.exp(x - top).sum(1, keepdims=True))


GAIN = np.linspace(0.5, 2, 256, dtype=np.float32)
SHIFT = np.linspace(-1, 1, 256, dtype=np.float32)


def keras_layer_norm(x: hx.Tensor) -> hx.Tensor:
    """x * k + (shift - mean * k), as Keras' graphs have it."""
    middle = mean(x)
    k = hx.rsqrt(mean(hx.square(x - middle)) + 1e-5) * GAIN
    return x * k + (SHIFT - middle * k)


def by_moments(x: hx.Tensor) -> hx.Tensor:
    """Paddle's old exports: the variance as E[x^2] - E[x]^2, means as sums times 1 / n."""
    middle = total(x) * (1 / 256)
    variance = total(x * x) * (1 / 256) - middle * middle
    return (x - middle) / hx.sqrt(hx.relu(variance) + 1e-5)


def tensorflow_l2(x: hx.Tensor) -> hx.Tensor:
    return x * hx.rsqrt(hx.maximum(total(hx.square(x)), np.float32(1e-12)))


NORMS = {
    "rms, pow and sqrt": Case(lambda x: x / hx.sqrt(mean(hx.pow(x, 2.0)) + 1e-6), normal(300), rms),
    "rms, rsqrt": Case(lambda x: x * hx.rsqrt(mean(x * x) + 1e-6), spiky(2), rms),
    "rms, one over the root": Case(lambda x: x * (1.0 / hx.sqrt(mean(x * x) + 1e-6)), normal(3000), rms),
    "rms, sum times 1 / n": Case(lambda x: x * hx.rsqrt(total(x * x) * (1 / 256) + 1e-6), spiky(30), rms),
    "rms, gain with the root": Case(
        lambda x: x * (hx.rsqrt(mean(x * x) + 1e-6) * GAIN), normal(500), lambda x: rms(x) * GAIN
    ),
    "rms, l2 norm times a factor": Case(
        lambda x: x / (hx.reduce_l2_norm(x, **LAST) * 256**-0.5), normal(300), lambda x: rms(x, 0), "engine"
    ),
    "l2, reduce_l2 and clip": Case(
        lambda x: x / hx.clip(hx.reduce_l2_norm(x, **LAST), alpha=1e-12, beta=np.inf), normal(300), unit, "engine"
    ),
    "l2, written out": Case(lambda x: x / hx.sqrt(total(x * x)), normal(300), unit, "engine"),
    "l2, tensorflow": Case(tensorflow_l2, normal(300), unit, "engine"),
    "l2, epsilon behind the root": Case(
        lambda x: x / (hx.sqrt(total(x * x)) + 1e-3),
        normal(900),
        lambda x: x / (np.sqrt((x**2).sum(1, keepdims=True)) + 1e-3),
    ),
    "lp_norm, p = 2": Case(lambda x: hx.lp_norm(x, p=2, axis=1), normal(300), unit, "engine"),
    "lp_norm, p = 1": Case(
        lambda x: hx.lp_norm(x, p=1, axis=1), normal(3000), lambda x: x / np.abs(x).sum(1, keepdims=True)
    ),
    "lp_norm, p = 3": Case(
        lambda x: hx.lp_norm(x, p=3, axis=1),
        normal(300),
        lambda x: x / (np.abs(x) ** 3).sum(1, keepdims=True) ** (1 / 3),
    ),
    "l2 norm of rows": Case(
        lambda x: hx.reduce_l2_norm(x, **LAST), normal(300), lambda x: np.sqrt((x**2).sum(1, keepdims=True)), "engine"
    ),
    "root of a mean": Case(
        lambda x: hx.sqrt(mean(hx.square(x)) + 1e-6), normal(700), lambda x: np.sqrt((x**2).mean(1, keepdims=True))
    ),
    "layer norm, keras": Case(keras_layer_norm, normal(400, 100), lambda x: standard(x) * GAIN + SHIFT),
    "layer norm, moments": Case(by_moments, normal(1, 40), standard, most=1.2e-2),
    "layer norm of channels": Case(
        lambda x: (
            (x - hx.reduce_mean(x, axes=(1,), keep_dims=True))
            / hx.sqrt(
                hx.reduce_mean(hx.square(x - hx.reduce_mean(x, axes=(1,), keep_dims=True)), axes=(1,), keep_dims=True)
                + 1e-6
            )
        ),
        normal(500, shape=(1, 64, 6, 5)),
        lambda x: standard(x, 1e-6),
    ),
    "std of torch, unbiased": Case(
        lambda x: hx.sqrt(mean(hx.square(x - mean(x))) * 256.0 / 255.0),
        normal(60),
        lambda x: x.std(1, ddof=1, keepdims=True),
        "engine ieee",
    ),
    "standardised, unbiased": Case(
        lambda x: (x - mean(x)) / (hx.sqrt(mean(hx.square(x - mean(x))) * 256.0 / 255.0) + 1e-5),
        normal(100),
        lambda x: (x - x.mean(1, keepdims=True)) / (x.std(1, ddof=1, keepdims=True) + 1e-5),
    ),
    "rms, an epsilon for each row": Case(
        lambda x: x / hx.sqrt(mean(x * x) + np.full((4, 1), 1e-6, np.float32)), normal(3000), rms
    ),
    "cosine": Case(
        lambda x: total(x * x[:, ::-1]) / (hx.sqrt(total(x * x)) * hx.sqrt(total(x[:, ::-1] * x[:, ::-1]))),
        normal(300, 200),
        lambda x: (x * x[:, ::-1]).sum(1, keepdims=True) / (x**2).sum(1, keepdims=True),
        "engine",
    ),
    "magnitude of a spectrum": Case(
        lambda x: hx.sqrt(x * x + hx.square(x[::-1]) + 1e-9), normal(300), lambda x: np.sqrt(x**2 + x[::-1] ** 2 + 1e-9)
    ),
    "variance": Case(
        lambda x: mean(x * x) - hx.square(mean(x)), normal(1, 50), lambda x: x.var(1, keepdims=True), "engine ieee"
    ),
}
WIDE = normal(20, 200, (4, 1024))
TOKENS = normal(200, 900, (4, 1280))  # 256 tokens of 4 channels, and what their mask is made of


def rows(x: hx.Tensor) -> hx.Tensor:
    return hx.reshape(x, shape=(4, 5, 256))


def weights(x: hx.Tensor) -> hx.Tensor:
    return hx.clip(rows(x)[:, 4:] * 1e-3, alpha=0.125, beta=1.0)


def weighted(x: Array) -> Array:
    """The mean of four channels, with the fifth as weights."""
    x = x.reshape(4, 5, 256)
    w = np.clip(x[:, 4:] * 1e-3, 0.125, 1)
    return (x[:, :4] * w).sum(2) / w.sum(2)


def pooled(x: hx.Tensor) -> hx.Tensor:
    mask = hx.broadcast_to(weights(x), shape=(4, 4, 256))
    count = hx.reduce_sum(mask, axes=(2,), keep_dims=False)
    return hx.reduce_sum(rows(x)[:, :4] * mask, axes=(2,), keep_dims=False) / hx.clip(count, alpha=1e-9)


def summed(x: hx.Tensor) -> hx.Tensor:
    return hx.reduce_sum(x, axes=(2,), keep_dims=False)


SUMS = {
    "sum, reshape, over n": Case(
        lambda x: hx.reshape(total(x), shape=(2, 2)) / 1024.0, WIDE, lambda x: x.mean(1).reshape(2, 2)
    ),
    "sum, unsqueeze, times 1 / n": Case(
        lambda x: hx.expand_dims(hx.reduce_sum(x, axes=(1,), keep_dims=False), axes=(1,)) * (1 / 1024),
        WIDE,
        lambda x: x.mean(1, keepdims=True),
    ),
    "sum, transpose, two factors": Case(
        lambda x: hx.transpose(total(x), perm=(1, 0)) * 0.125 / 128.0, WIDE, lambda x: x.mean(1, keepdims=True).T
    ),
    "sum, magnitude, times 1 / n": Case(
        lambda x: hx.abs(total(x)) * (1 / 1024), -WIDE, lambda x: np.abs(x.mean(1, keepdims=True)), "engine"
    ),
    "sums joined, times -1 / n": Case(
        lambda x: hx.concat(total(x), total(x * 0.5) * 3.0, axis=1) * (-1 / 1024),
        WIDE,
        lambda x: -np.stack([x.mean(1), 1.5 * x.mean(1)], 1),
    ),
    "sums added, over n": Case(
        lambda x: (total(x) + hx.reduce_sum(x[:, ::2], **LAST)) / 1536.0,
        WIDE,
        lambda x: (x.sum(1, keepdims=True) + x[:, ::2].sum(1, keepdims=True)) / 1536,
    ),
    "mean of squares": Case(
        lambda x: mean(x * x) + 1e-5, np.clip(spiky(20), -2000, 2000), lambda x: (x**2).mean(1, keepdims=True)
    ),
    "mean of squares, pow, over n - 1": Case(
        lambda x: hx.reduce_sum(hx.pow(x - 100.0, 2.0), axes=(1,), keep_dims=False) / 1023.0,
        WIDE * np.float32(1.5),
        lambda x: ((x - 100) ** 2).sum(1) / 1023,
    ),
    "mean under a mask, as sentence encoders have it": Case(pooled, TOKENS, weighted),
    "mean under weights, with an epsilon": Case(
        lambda x: summed(rows(x)[:, :4] * weights(x)) / (summed(weights(x)) + 1e-3), TOKENS, weighted
    ),
    "variance, not centred by itself": Case(
        lambda x: mean(hx.square(x - mean(x))), normal(200), lambda x: x.var(1, keepdims=True)
    ),
}
LOGARITHMS = {
    "softmax": Case(lambda x: hx.exp(x) / total(hx.exp(x)), normal(6, 8), lambda x: np.exp(x - log_sum_exp(x))),
    "log of softmax": Case(lambda x: hx.log(hx.softmax(x, axis=1)), normal(8), lambda x: x - log_sum_exp(x)),
    "logsumexp": Case(lambda x: hx.log(total(hx.exp(x))), normal(3, 9), log_sum_exp),
    "softplus": Case(lambda x: hx.log(1.0 + hx.exp(x)), normal(8), lambda x: np.logaddexp(0, x), "engine"),
    "softplus, the op": Case(hx.softplus, normal(8), lambda x: np.logaddexp(0, x), "engine"),
    "mish, the op": Case(hx.mish, normal(8), lambda x: x * np.tanh(np.logaddexp(0, x)), "engine"),
    "mish, written out": Case(
        lambda x: x * hx.tanh(hx.log(1.0 + hx.exp(x))), normal(8), lambda x: x * np.tanh(np.logaddexp(0, x)), "engine"
    ),
    "logsumexp, the op": Case(lambda x: hx.reduce_log_sum_exp(x, **LAST), normal(3, 9), log_sum_exp, "engine"),
    "log of sigmoid": Case(lambda x: hx.log(hx.sigmoid(x)), normal(10), lambda x: -np.logaddexp(0, -x), "engine"),
    "running logsumexp": Case(
        lambda x: hx.log(hx.cumsum(hx.exp(x), axis=1)), normal(5, 3), lambda x: np.logaddexp.accumulate(x, 1)
    ),
    "log of 1 - sigmoid": Case(
        lambda x: hx.log(1.0 - hx.sigmoid(x)), normal(4), lambda x: -np.logaddexp(0, x), "engine"
    ),
    "softmax with an epsilon": Case(
        lambda x: hx.exp(x) / (total(hx.exp(x)) + 1e-6), normal(6, 8), lambda x: np.exp(x - log_sum_exp(x))
    ),
    "inverse sigmoid": Case(
        lambda x: hx.sigmoid(hx.log(hx.clip(x, alpha=1e-5, beta=1.0) / hx.clip(1.0 - x, alpha=1e-5, beta=1.0)) - 2.0),
        np.float32([[0, 0.01, 0.25, 0.5, 0.75, 1]]),
        lambda x: 1 / (1 + np.exp(2 - np.log(np.maximum(x, 1e-5) / np.maximum(1 - x, 1e-5)))),
        "engine",
    ),
}
VALUES = normal(1, shape=(4, 16, 8))


def heads(x: hx.Tensor) -> hx.Tensor:
    return hx.reshape(x, shape=(4, 16, 16))


def attended(scores: Callable[[hx.Tensor, hx.Tensor], hx.Tensor]) -> Build:
    """Attention of x to x in another order, whose scores are given."""

    def build(x: hx.Tensor) -> hx.Tensor:
        q, k = heads(x), hx.transpose(heads(x)[:, ::-1], perm=(0, 2, 1))
        return hx.matmul(hx.softmax(scores(q, k), axis=2), VALUES)

    return build


def attention(factor: float, hidden: Array | float = 0.0) -> Callable[[Array], Array]:
    def want(x: Array) -> Array:
        q = x.reshape(4, 16, 16)
        scores = q @ q[:, ::-1].swapaxes(1, 2) * factor + hidden
        weights = np.exp(scores - scores.max(2, keepdims=True))
        return weights / weights.sum(2, keepdims=True) @ VALUES

    return want


# Scores of 60,000 before their scale.
PRODUCTS = {
    "scores over a root": Case(attended(lambda q, k: hx.matmul(q, k) / 64.0), normal(120), attention(1 / 64), "engine"),
    "scores times a factor, masked": Case(
        attended(lambda q, k: hx.matmul(q, k) * 0.1 + np.float32(-1e4) * np.eye(16, k=3, dtype=np.float32)[None]),
        normal(120),
        attention(0.1, -1e4 * np.eye(16, k=3)),
        "engine",
    ),
    "scores times a tiny factor": Case(
        attended(lambda q, k: hx.matmul(q, k) * 1e-4), normal(800), attention(1e-4), "engine"
    ),
    "a Gram matrix": Case(
        lambda x: hx.matmul(heads(x), heads(x), transpose_y=True) / 16.0,
        normal(120),
        lambda x: x.reshape(4, 16, 16) @ x.reshape(4, 16, 16).swapaxes(1, 2) / 16,
        "engine",
    ),
}
BIAS = np.random.default_rng(8).normal(0, 30, (1, 16, 16)).astype(np.float32)
AHEAD = np.triu(np.ones((1, 16, 16), bool), 1)
POSITIONS = np.random.default_rng(9).normal(0, 2, (1, 16, 31)).astype(np.float32)


def shifted(x: hx.Tensor) -> hx.Tensor:
    """As Conformer and XLNet shift the scores of relative positions: a pad, a reshape and two slices."""
    x = hx.reshape(hx.pad(x, begin=(0, 0, 1), end=(0, 0, 0)), shape=(4, 32, 16))
    return hx.reshape(x[:, 1:], shape=(4, 16, 31))[:, :, :16]


def shifted_array(x: Array) -> Array:
    x = np.pad(x, ((0, 0), (0, 0), (1, 0))).reshape(4, 32, 16)
    return x[:, 1:].reshape(4, 16, 31)[:, :, :16]


def positions(x: Array) -> Array:
    return shifted_array(x.reshape(4, 16, 16) @ POSITIONS.astype(np.float64)) / 64


# Ops between scores and their scale.
BETWEEN = {
    "scores by einsum": Case(
        attended(lambda q, k: hx.einsum(q, k, equation="bqd,bdk->bqk") / 64.0),
        normal(120),
        attention(1 / 64),
        "engine",
    ),
    "scores reshaped before their scale": Case(
        attended(
            lambda q, k: hx.reshape(hx.reshape(hx.matmul(q, k), shape=(2, 2, 16, 16)) * 0.015625, shape=(4, 16, 16))
        ),
        normal(120),
        attention(1 / 64),
        "engine",
    ),
    "scores of two kinds, scaled as one": Case(
        attended(lambda q, k: (hx.matmul(q, k) + shifted(hx.matmul(q, POSITIONS))) / 64.0),
        normal(120),
        lambda x: attention(1 / 64, positions(x))(x),
    ),
    "a bias before the scale": Case(
        attended(lambda q, k: (hx.matmul(q, k) + BIAS) * 0.015625), normal(120), attention(1 / 64, BIAS / 64.0)
    ),
    "a mask of -1e9 before the scale": Case(
        attended(lambda q, k: (hx.matmul(q, k) + np.where(AHEAD, np.float32(-1e9), np.float32(0))) * 0.015625),
        normal(120),
        attention(1 / 64, np.where(AHEAD, -1e7, 0)),
    ),
    "keys hidden before the scale": Case(
        attended(lambda q, k: hx.select(AHEAD, np.float32(-np.inf), hx.matmul(q, k)) * 0.015625),
        normal(120),
        attention(1 / 64, np.where(AHEAD, -np.inf, 0)),
    ),
    "a computed bias before the scale": Case(
        attended(lambda q, k: (hx.matmul(q, k) + hx.abs(q)) * 0.015625),
        normal(120),
        lambda x: attention(1 / 64, np.abs(x.reshape(4, 16, 16)) / 64)(x),
    ),
}
OTHER = normal(300, shape=(4, 256))[::-1].copy()


def by_row(x: hx.Tensor) -> hx.Tensor:
    return x / hx.sqrt(hx.matmul(x, hx.transpose(x, perm=(0, 2, 1))) / 256.0 + 1e-6)


def of_softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def similarity(x: Array) -> Array:
    return unit(x) @ unit(OTHER.astype(np.float64)).T


# Sums of squares as products, similarities, logarithms of powers, and softmaxes in other parts.
PARTS = {
    "rms_norm by einsum": Case(
        lambda x: x * hx.rsqrt(hx.expand_dims(hx.einsum(x, x, equation="ij,ij->i"), axes=(1,)) * (1 / 256) + 1e-6),
        spiky(300),
        rms,
        "engine",
    ),
    "rms_norm by einsum with an ellipsis": Case(
        lambda x: x / hx.sqrt(hx.reshape(hx.einsum(x, x, equation="...d,...d->..."), shape=(4, 1)) / 256.0 + 1e-6),
        spiky(300),
        rms,
        "engine",
    ),
    "rms_norm by a product of a row with itself": Case(
        lambda x: hx.reshape(by_row(hx.reshape(x, shape=(4, 1, 256))), shape=(4, 256)), spiky(300), rms, "engine"
    ),
    "rms_norm of a sum without its axis": Case(
        lambda x: x / hx.sqrt(hx.expand_dims(hx.reduce_mean(x * x, axes=(1,), keep_dims=False), axes=(1,)) + 1e-6),
        spiky(300),
        rms,
    ),
    "similarities over an outer product of norms": Case(
        lambda x: hx.matmul(x, OTHER.T) / hx.matmul(hx.reduce_l2_norm(x, **LAST), np.linalg.norm(OTHER, axis=1)[None]),
        spiky(300),
        similarity,
    ),
    "similarities over one norm, then the other": Case(
        lambda x: hx.matmul(x, OTHER.T) / hx.reduce_l2_norm(x, **LAST) / np.linalg.norm(OTHER, axis=1)[None],
        spiky(300),
        similarity,
    ),
    "a cosine over the root of a product": Case(
        lambda x: total(x * (x + OTHER)) / hx.maximum(hx.sqrt(total(x * x) * total((x + OTHER) * (x + OTHER))), 1e-8),
        normal(300),
        lambda x: (unit(x) * unit(x + OTHER)).sum(1, keepdims=True),
    ),
    "a cosine over the root of a product with a limit": Case(  # as coremltools writes PyTorch's cosine_similarity
        lambda x: total(x * (x + OTHER)) / hx.sqrt(hx.maximum(total(x * x) * total((x + OTHER) * (x + OTHER)), 1e-16)),
        normal(300),
        lambda x: (unit(x) * unit(x + OTHER)).sum(1, keepdims=True),
    ),
    "a cosine times the inverse root of a product": Case(
        lambda x: total(x * (x + OTHER)) * hx.rsqrt(total(x * x) * total((x + OTHER) * (x + OTHER)) + 1e-12),
        normal(300),
        lambda x: (unit(x) * unit(x + OTHER)).sum(1, keepdims=True),
    ),
    "a cosine over the root of a product with constant squares": Case(
        lambda x: total(x * OTHER) / hx.sqrt(total(x * x) * np.square(OTHER).sum(1, keepdims=True)),
        OTHER + normal(100),
        lambda x: (unit(x) * unit(OTHER.astype(np.float64))).sum(1, keepdims=True),
    ),
    "a deviation of a sample, in a later axis": Case(  # x.std() of PyTorch's newer exporter
        lambda x: (
            (x - mean(x))
            / (
                hx.sqrt(
                    hx.reshape(
                        hx.reduce_mean(hx.square(x - mean(x)), axes=(1,), keep_dims=False) * 256.0 / 255.0, shape=(4, 1)
                    )
                )
                + 1e-6
            )
        ),
        normal(300, 500),
        lambda x: (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True, ddof=1),
    ),
    "a distance by a power near a half": Case(  # F.pairwise_distance of PyTorch's exporter
        lambda x: hx.pow(hx.reduce_sum(hx.pow(x - OTHER, 2.0), axes=(1,), keep_dims=False), 0.4999997615814209),
        normal(300),
        lambda x: np.linalg.norm(x - OTHER, axis=1),
    ),
    "decibels with two epsilons": Case(  # MIL's log adds one
        lambda x: hx.log(hx.maximum(x * x, 1e-10) + 1e-45) * 4.342944819,
        spiky(30),
        lambda x: 10 * np.log10(np.maximum(x * x, 1e-10)),
    ),
    "rms_norm with two epsilons": Case(  # MIL's rsqrt adds one
        lambda x: x * hx.rsqrt(mean(x * x) + 1e-6 + 1e-12), spiky(300), rms
    ),
    "a cosine with a constant": Case(
        lambda x: total(x * OTHER) / (hx.reduce_l2_norm(x, **LAST) * np.linalg.norm(OTHER, axis=1, keepdims=True)),
        OTHER + normal(100),
        lambda x: (unit(x) * unit(OTHER.astype(np.float64))).sum(1, keepdims=True),
    ),
    "the logarithm of a power": Case(
        lambda x: hx.log(hx.maximum(x * x, 1e-10)), spiky(30), lambda x: np.log(np.maximum(x * x, 1e-10))
    ),
    "the logarithm of a spectrum's power": Case(
        lambda x: hx.log(x * x + hx.square(x - OTHER) + 1e-6),
        spiky(300),
        lambda x: np.log(x * x + (x - OTHER) ** 2 + 1e-6),
    ),
    "the logarithm of an energy": Case(
        lambda x: hx.log(total(hx.square(x)) + 1e-6), spiky(300), lambda x: np.log((x * x).sum(1, keepdims=True) + 1e-6)
    ),
    "a ratio of energies": Case(
        lambda x: hx.log(total(x * x) / (total(hx.square(x + OTHER)) + 1e-8)),
        normal(30),
        lambda x: np.log((x**2).sum(1, keepdims=True) / ((x + OTHER) ** 2).sum(1, keepdims=True)),
    ),
    "the logarithm of a mean of exponentials": Case(
        lambda x: hx.log(mean(hx.exp(x))), normal(20), lambda x: log_sum_exp(x) - np.log(256)
    ),
    "softmax times a reciprocal": Case(lambda x: hx.exp(x) * hx.inverse(total(hx.exp(x))), normal(20), of_softmax),
    "softmax over an L1 norm": Case(lambda x: hx.exp(x) / hx.reduce_l1_norm(hx.exp(x), **LAST), normal(20), of_softmax),
    "softmax by lp_norm": Case(lambda x: hx.lp_norm(hx.exp(x), p=1, axis=1), normal(20), of_softmax),
    "sigmoid in parts": Case(lambda x: hx.exp(x) / (hx.exp(x) + 1.0), normal(20), lambda x: 1 / (1 + np.exp(-x))),
    "tanh of one exponential": Case(lambda x: (hx.exp(x * 2.0) - 1.0) / (hx.exp(x * 2.0) + 1.0), normal(10), np.tanh),
    "tanh of two exponentials": Case(
        lambda x: (hx.exp(x) - hx.exp(-x)) / (hx.exp(x) + hx.exp(-x)), normal(20), np.tanh
    ),
}
CASES = NORMS | SUMS | LOGARITHMS | PRODUCTS | BETWEEN | PARTS


@pytest.mark.parametrize("name", CASES)
def test_a_form_holds_on_every_chip_and_the_risky_one_does_not(name: str) -> None:
    case = CASES[name]
    assert_holds(replace(case, wrong="") if name == "running logsumexp" else case)


@pytest.mark.parametrize("name", CASES)
def test_a_form_is_the_same_function(name: str) -> None:
    assert_same_function(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_each_change_is_a_decision_and_a_second_run_changes_nothing(name: str) -> None:
    assert_decided(CASES[name], name != "running logsumexp")


@pytest.mark.parametrize(
    "build",
    [
        lambda x: hx.softmax(x, axis=1),
        lambda x: hx.layer_norm(x, axes=(1,)),
        lambda x: x / hx.reduce_max(hx.abs(x), **LAST),
        lambda x: hx.sqrt(mean(hx.square(hx.sigmoid(x)))),
        lambda x: hx.exp(x - hx.reduce_max(x, **LAST)) / total(hx.exp(x - hx.reduce_max(x, **LAST))),
        lambda x: hx.relu(x) * mean(x),
        lambda x: hx.log(hx.abs(x) / 3.0 + 1.0),
        lambda x: mean(x) - hx.square(mean(x)),
        lambda x: hx.linear(x, np.ones((8, 256), np.float32)) * 0.125,
        lambda x: hx.matmul(x * 0.125, hx.transpose(x, perm=(1, 0))),
    ],
)
def test_what_holds_stays_as_it_is(build: Build) -> None:
    model = graph(build(hx.input("x", (4, 256))))
    assert repair(model, load_target("h13")).nodes == model.nodes


@pytest.mark.parametrize("side", [0, 1])
def test_a_scale_that_the_model_has_ahead_of_its_scores_stays_there(side: int) -> None:
    def scores(q: hx.Tensor, k: hx.Tensor) -> hx.Tensor:
        return hx.matmul(q * 0.015, k) if side == 0 else hx.matmul(q, k * 0.015)

    case = Case(attended(scores), normal(120), attention(0.015))
    for target, numerics in CHIPS:
        assert off(case, target, numerics, True) < MOST


@pytest.mark.parametrize("numerics", ["engine", "ieee"])
def test_attention_with_a_mask_is_written_with_its_scale_ahead(numerics: str) -> None:
    """The op is written out, since no chip's own has a mask."""
    x, mask = hx.input("x", (4, 256)), np.float32(-1e4) * np.eye(16, k=3, dtype=np.float32)
    y = hx.scaled_dot_product_attention(heads(x), heads(x)[:, ::-1], VALUES, mask, scale=0.015)
    given = normal(120)
    got, want = hx.compile(y, target="h13", numerics=numerics)(given), attention(0.015, mask)(given.astype(np.float64))
    assert np.linalg.norm(got - want) < MOST * np.linalg.norm(want)


def test_a_host_s_graph_is_left_alone() -> None:
    model = graph(NORMS["rms, rsqrt"].build(hx.input("x", (4, 256))))
    assert repair(model, load_target("host")) is model


@pytest.mark.parametrize("hidden", [-1e9, float(np.finfo(np.float32).min), -10000.0 * 4])
@pytest.mark.parametrize("numerics", ["engine", "ieee"])
def test_a_mask_that_comes_in_hides_keys_and_leaves_rows_finite(hidden: float, numerics: str) -> None:
    scores, mask = hx.input("scores", (2, 8, 8)), hx.input("mask", (2, 1, 8))
    y = hx.softmax(scores * 0.125 + hx.reshape(mask, shape=(2, 1, 8)), axis=2)
    given = normal(3, shape=(2, 8, 8))
    hides = np.zeros((2, 1, 8), np.float32)
    hides[0, :, 5:] = hidden
    hides[1] = hidden  # a row of padding
    got = np.asarray(hx.compile(y, target="h13", numerics=numerics)(scores=given, mask=hides))
    want = np.asarray(hx.compile(y)(scores=given, mask=hides))
    assert np.abs(got[0] - want[0]).max() < 2e-3
    assert (got[0, :, 5:] == 0).all()
    assert np.isfinite(got).all()


def test_angles_of_positions_are_the_host_s_numbers() -> None:
    positions = hx.input("positions", (1, 6), "int64")
    frequencies = (10000.0 ** (-np.arange(0, 64, 2) / 64)).astype(np.float32)
    angles = hx.reshape(hx.cast(positions, dtype="fp32"), shape=(1, 6, 1)) * frequencies
    y = {"cos": hx.cos(angles), "sin": hx.sin(angles)}
    given = np.array([[0, 1, 2049, 4097, 40001, 131071]])
    with pytest.warns(hx.FallbackWarning, match="few digits for angles"):
        net = hx.compile(y, target="M4")
    got = net(given)
    want = given[..., None] * frequencies.astype(np.float64)
    for name, of in (("cos", np.cos), ("sin", np.sin)):
        assert np.abs(np.asarray(got[name]) - of(want)).max() < 0.01


def test_an_input_before_an_exponential_is_no_mask() -> None:
    x, y = hx.input("x", (4, 8)), hx.input("y", (4, 8))
    model = graph(hx.exp(hx.relu(x) + y))
    assert repair(model, load_target("h13")).nodes == model.nodes


def test_a_nan_that_no_chip_finds_is_warned_of() -> None:
    """PyTorch's attention: a row of hidden keys is NaN, and becomes 0."""
    scores = hx.softmax(hx.input("x", (2, 8)) + hx.input("mask", (2, 8)), axis=1)
    with pytest.warns(hx.HazardWarning, match="no number is found to be NaN"):
        hx.compile(hx.select(hx.is_nan(scores), 0.0, scores), target="M1")


INVERSES: dict[str, Build] = {
    "a mean": lambda x: 1.0 / hx.sqrt(mean(x * x) + 1e-12),
    "a mean, rsqrt": lambda x: hx.rsqrt(mean(hx.square(x)) + 1e-10),
    "a mean, pow": lambda x: hx.pow(mean(hx.square(x)) + 1e-12, -0.5),
    "a norm, limited": lambda x: 1.0 / hx.maximum(hx.reduce_l2_norm(x, **LAST), 1e-12),
    "a norm and a number": lambda x: 1.0 / (hx.sqrt(total(x * x)) + 1e-12),
    "two squares": lambda x: 1.0 / hx.sqrt(x * x + x[:, ::-1] * x[:, ::-1] + 1e-12),
    "two squares, rsqrt": lambda x: hx.rsqrt(x * x + x[:, ::-1] * x[:, ::-1] + 1e-12),
    "two squares, pow": lambda x: hx.pow(x * x + x[:, ::-1] * x[:, ::-1] + 1e-8, -0.5),
    "windows, rsqrt": lambda x: hx.reshape(
        hx.rsqrt(hx.avg_pool(hx.square(hx.reshape(x, shape=(4, 1, 16, 16))), **WINDOW) + 1e-12), shape=(4, 256)
    ),
}
WINDOW: dict[str, Any] = {"kernel_sizes": (3, 3), "strides": (1, 1), "pad": (1, 1, 1, 1)}


@pytest.mark.filterwarnings("ignore::hexane.FallbackWarning")
@pytest.mark.parametrize(("target", "numerics"), CHIPS)
@pytest.mark.parametrize("name", INVERSES)
def test_zeros_times_one_over_their_root_are_zeros(name: str, target: str, numerics: str) -> None:
    """The host has 1e6 there, which is beyond fp16. Other rows are as right as elsewhere, from 0.001 to 20,000."""
    x = hx.input("x", (4, 256))
    numbers = normal(1.0) * np.float32([[1], [0], [1e-3], [5000]])
    turned = hx.transpose(x, perm=(1, 0)) * hx.transpose(INVERSES[name](x), perm=(1, 0))
    y = hx.transpose(turned, perm=(1, 0))
    got = np.asarray(hx.compile(y, target=target, numerics=numerics)(numbers), np.float64)
    want = np.asarray(hx.compile(y)(numbers), np.float64)
    assert (got[1] == 0).all()
    assert (np.linalg.norm(got - want, axis=1) <= MOST * np.linalg.norm(want, axis=1)).all()

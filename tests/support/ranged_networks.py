"""Random networks whose numbers have a given size between their layers, in the spellings that files have them in."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import hexane as hx

Array = np.ndarray[Any, Any]
Form = Callable[[hx.Tensor, float, "Weights"], hx.Tensor]
ROWS, COLUMNS = 8, 64
LAST: dict[str, Any] = {"axes": (1,), "keep_dims": True}


class Weights:
    """Seeded constants: the same for each size."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def normal(self, *shape: int) -> Array:
        return self.rng.normal(0, 1, shape).astype(np.float32)


def _mean(x: hx.Tensor) -> hx.Tensor:
    return hx.reduce_mean(x, **LAST)


def _sum(x: hx.Tensor) -> hx.Tensor:
    return hx.reduce_sum(x, **LAST)


def _gate(h: hx.Tensor) -> hx.Tensor:
    return hx.clip(h + 3.0, alpha=0.0, beta=6.0)


def _plane(h: hx.Tensor) -> hx.Tensor:
    return hx.reshape(h, shape=(1, 8, 8, 8))


def _rows(h: hx.Tensor) -> hx.Tensor:
    return hx.reshape(h, shape=(ROWS, COLUMNS))


def _response(h: hx.Tensor, s: float) -> hx.Tensor:
    """Local response normalisation in parts, with a factor for numbers of this size."""
    squares = hx.pad(hx.reshape(hx.square(h), shape=(1, 1, 8, 64)), begin=(0, 0, 2, 0), end=(0, 0, 2, 0))
    window = hx.avg_pool(squares, kernel_sizes=(5, 1), strides=(1, 1), pad=(0, 0, 0, 0))
    return h / hx.pow(_rows(window) * 1e-4 + 1.0, 0.75) * (1 / s if s < 100 else 1e-3 * s**0.5)


def _triangle() -> Array:
    return np.triu(np.ones((COLUMNS, COLUMNS)) / np.arange(1, COLUMNS + 1)).astype(np.float32)


def _conv(h: hx.Tensor, s: float, w: Weights) -> hx.Tensor:
    return _rows(hx.relu(hx.conv(_plane(h), w.normal(8, 8, 3, 3), pad=(1, 1, 1, 1))) * (0.1 / s))


# Each takes numbers of the size s to numbers near 1.
FORMS: dict[str, Form] = {
    "norm, a root": lambda h, s, w: h / hx.sqrt(_mean(h * h) + 1e-9),
    "norm, rsqrt of a pow": lambda h, s, w: h * hx.rsqrt(_mean(hx.pow(h, 2.0)) + 1e-9),
    "norm, l2": lambda h, s, w: h * 8.0 / (hx.reduce_l2_norm(h, **LAST) + 1e-12),
    "norm, by a matrix": lambda h, s, w: (
        h * hx.rsqrt(hx.matmul(h * h, np.full((COLUMNS, 1), 1 / COLUMNS, np.float32)) + 1e-9)
    ),
    "norm, of deviations": lambda h, s, w: (h - _mean(h)) / hx.sqrt(_mean(hx.square(h - _mean(h))) + 1e-9),
    "norm, E[x^2] - E[x]^2": lambda h, s, w: (h - _mean(h)) * hx.rsqrt(_mean(h * h) - _mean(h) * _mean(h) + 1e-9),
    "layer_norm": lambda h, s, w: hx.layer_norm(h, axes=(1,), epsilon=1e-9),
    "over the largest": lambda h, s, w: h / hx.reduce_max(hx.abs(h), **LAST) * 2.0,
    "hard swish": lambda h, s, w: h * _gate(h) / 6.0 * (1 / s),
    "silu": lambda h, s, w: h * hx.sigmoid(h) * (1 / s),
    "gelu": lambda h, s, w: hx.gelu(h) * (1 / s),
    "gelu by erf": lambda h, s, w: h * 0.5 * (1.0 + hx.erf(h * 0.70710678)) / s,
    "mish": lambda h, s, w: h * hx.tanh(hx.softplus(h)) / s,
    "softplus by log": lambda h, s, w: hx.log(hx.exp(-hx.abs(h)) + 1.0) + hx.relu(h) * (1 / s),
    "product": lambda h, s, w: h * h[::-1] * (1 / s**2),
    "product, divided": lambda h, s, w: hx.relu(h * h[::-1]) / s**2,
    "square": lambda h, s, w: hx.square(h) * (0.5 / s**2),
    "square, divided twice": lambda h, s, w: h * h / s / s,
    "cube": lambda h, s, w: h * h * h * (0.2 / s**3),
    "layer": lambda h, s, w: hx.linear(h, w.normal(COLUMNS, COLUMNS)) * (0.1 / s),
    "layer with a bias": lambda h, s, w: (
        hx.relu(hx.linear(h, w.normal(COLUMNS, COLUMNS), s * w.normal(COLUMNS))) / (8 * s)
    ),
    "convolution": _conv,
    "sum of a row": lambda h, s, w: _sum(hx.abs(h)) * (1 / (COLUMNS * s)) + h / s,
    "root of squares": lambda h, s, w: hx.sqrt(_sum(hx.square(h)) + 1e-9) / (8 * s) + h / s,
    "root of two squares": lambda h, s, w: hx.sqrt(h * h + h[::-1] * h[::-1]) / s,
    "variance": lambda h, s, w: _mean(hx.square(h - _mean(h))) / s**2 + h / s,
    "covariance": lambda h, s, w: _mean(h * h[::-1]) * (1 / s**2) + h / s,
    "logarithm of squares": lambda h, s, w: hx.log(hx.maximum(h * h, (0.01 * s) ** 2)) * 0.1,
    "logsumexp": lambda h, s, w: hx.log(_sum(hx.exp(h))) / max(s, 1.0) + h / s,
    "softmax": lambda h, s, w: hx.exp(h) / _sum(hx.exp(h)) + h / s,
    "log of softmax": lambda h, s, w: hx.log(hx.softmax(h, axis=1)) / (8 * max(s, 1.0)),
    "attention": lambda h, s, w: hx.matmul(
        hx.softmax(hx.matmul(h, h, transpose_y=True) * (0.125 / s**2), axis=1), h / s
    ),
    "distance": lambda h, s, w: hx.exp(_sum(hx.square(h - s * w.normal(ROWS, COLUMNS))) * (-0.01 / s**2)) + h / s,
    "running mean": lambda h, s, w: hx.cumsum(h, axis=1) / np.arange(1, COLUMNS + 1, dtype=np.float32)[None] / s,
    "running mean by a matrix": lambda h, s, w: hx.matmul(h, _triangle()) / s + h / s,
    "local response": lambda h, s, w: _response(h, s),
    "gem": lambda h, s, w: hx.pow(_mean(hx.pow(hx.clip(h, alpha=1e-6, beta=np.inf), 3.0)), 1 / 3) / s + h / s,
    "quotient of products": lambda h, s, w: (h * h[::-1]) / ((hx.abs(h) + s) * (hx.abs(h[::-1]) + s)),
    "between its ends": lambda h, s, w: (
        (h - hx.reduce_min(h, **LAST)) / (hx.reduce_max(h, **LAST) - hx.reduce_min(h, **LAST) + 1e-9) * 2.0
    ),
    "scaled up and back": lambda h, s, w: hx.relu((h / s * 30.0 - 3.0) * s) * (0.03 / s),
}


def network(seed: int, names: Sequence[str], sizes: Sequence[float], first: bool) -> hx.Tensor:
    """A form for each name, on numbers of its size, between layers. first: the input has the first size already."""
    h = hx.input("x", (ROWS, COLUMNS))
    for i, (name, size) in enumerate(zip(names, sizes, strict=True)):
        w = Weights(1000 * seed + i)
        size = float(np.float32(size))
        h = FORMS[name](h if first and i == 0 else h * size, size, w)
        h = hx.matmul(h, w.normal(COLUMNS, COLUMNS) / 8)
        if i + 1 < len(names):
            h = hx.tanh(h) if w.rng.random() < 0.5 else h / hx.sqrt(_mean(hx.square(h)) + 1e-6)
    return h


def normed_network(seed: int) -> hx.Tensor:
    """Batch norms of variances from 1e-4 to 1e10 and offsets down to 1e-7, between layers and activations."""
    rng, w = np.random.default_rng(seed), Weights(seed)
    activations: tuple[Callable[[hx.Tensor], hx.Tensor], ...] = (
        hx.relu,
        hx.hard_swish,
        lambda h: hx.log(hx.relu(h) + 1e-6),
        lambda h: hx.log(hx.relu(h)),
        lambda h: hx.elu(h, alpha=1e-6),
        lambda h: h * float(10 ** rng.uniform(-6, 6)),
        lambda h: h + w.normal(1, 8, 1, 1) * 1e-3,
        lambda h: hx.layer_norm(h, axes=(3,)),
    )
    h = hx.input("x", (1, 8, 8, 8))
    for _ in range(3):
        h = hx.conv(h, w.normal(8, 8, 3, 3) * 0.2, pad=(1, 1, 1, 1)) if rng.random() < 0.5 else hx.relu(h)
        variance, gain, offset = ((10 ** rng.uniform(*ends, 8)).astype(np.float32) for ends in NORMS)
        h = hx.batch_norm(h, w.normal(8) * 100, variance, gain, w.normal(8) * offset)
        for _ in range(2):
            h = activations[rng.integers(len(activations))](h)
    return h


NORMS = ((-4, 10), (-2, 3), (-7, 0))  # powers of ten of variances, gains and offsets

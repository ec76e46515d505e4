"""The kernel of recurrent networks alone, against the steps in NumPy in fp64."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from instruction_sets import assert_passes_on, on_others
from kernels import Array, poisoned, run, same_bits

SIGMOID, TANH = 1, 5  # numbers of kActivations
STEPS, BATCH = 9, 3


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def rnn(x: Array, w: Array, r: Array, bias: Array, h: Array, c: Array) -> tuple[Array, Array]:
    return np.tanh(x @ w.T + h @ r.T + bias.reshape(2, -1).sum(0)), c


def gru(x: Array, w: Array, r: Array, bias: Array, h: Array, c: Array) -> tuple[Array, Array]:
    wx, rh = x @ w.T + bias[: len(w)], h @ r.T + bias[len(w) :]
    update, reset, new = (slice(i * h.shape[1], (i + 1) * h.shape[1]) for i in range(3))
    z, t = sigmoid(wx[:, update] + rh[:, update]), sigmoid(wx[:, reset] + rh[:, reset])
    return (1 - z) * np.tanh(wx[:, new] + t * rh[:, new]) + z * h, c


def lstm(x: Array, w: Array, r: Array, bias: Array, h: Array, c: Array) -> tuple[Array, Array]:
    i, o, f, g = np.split(x @ w.T + h @ r.T + bias.reshape(2, -1).sum(0), 4, axis=1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


CELLS: dict[str, tuple[Callable[..., tuple[Array, Array]], int, list[int]]] = {
    "rnn": (rnn, 1, [TANH]),
    "gru": (gru, 3, [SIGMOID, TANH]),
    "lstm": (lstm, 4, [SIGMOID, TANH, TANH]),
}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("inputs", "hidden"), [(1, 1), (5, 7), (16, 33), (40, 64)])
@pytest.mark.parametrize("scale", [1.0, 255.0, 20000.0], ids=["normal", "pixels", "large"])
@pytest.mark.parametrize("reverse", [0, 1])
def test_every_step_is_within_rounding(cell: str, inputs: int, hidden: int, scale: float, reverse: int) -> None:
    """Errors are of the last step, in which those of all others are: 1e-5 of the largest state."""
    step, gates, activations = CELLS[cell]
    rng = np.random.default_rng(3)
    x = (np.abs(rng.standard_normal((STEPS, BATCH, inputs))) * scale).astype(np.float32)
    w = (rng.standard_normal((1, gates * hidden, inputs)) / (scale * inputs)).astype(np.float32)
    r = (rng.standard_normal((1, gates * hidden, hidden)) / np.sqrt(hidden)).astype(np.float32)
    bias = rng.standard_normal((1, 2 * gates * hidden)).astype(np.float32)
    start = rng.standard_normal((2, 1, BATCH, hidden)).astype(np.float32)
    outputs = [poisoned((STEPS, 1, BATCH, hidden), np.float32), poisoned((1, BATCH, hidden), np.float32)]
    operands: list[Array | None] = [x, w, r, bias, None, start[0]]
    if cell == "lstm":
        operands += [start[1], None]
        outputs.append(poisoned((1, BATCH, hidden), np.float32))
    attrs: dict[str, Any] = {
        "cell": cell, "batch_first": 0, "reverse": reverse, "linear_before_reset": 1, "clip": 0.0,
        "activations": activations,
    }  # fmt: skip
    run("recurrent", operands, outputs, attrs)
    again = [np.empty_like(out) for out in outputs]
    run("recurrent", operands, again, attrs, constants=[1, 2, 3])
    assert all(same_bits(out, other) for out, other in zip(outputs, again, strict=True)), "packed weights differ"
    h, c = start.astype(np.float64)[:, 0]
    want = np.zeros(outputs[0].shape)
    for t in range(STEPS)[::-1] if reverse else range(STEPS):
        h, c = step(x[t].astype(np.float64), *(v[0].astype(np.float64) for v in (w, r, bias)), h, c)
        want[t, 0] = h
    for got, exact in zip(outputs, (want, h[None], c[None]), strict=False):
        assert np.abs(got - exact).max() <= 1e-5 * np.abs(exact).max()


@on_others
def test_every_step_is_within_rounding_on_other_instruction_sets(name: str) -> None:
    assert_passes_on(name, "test_every_step_is_within_rounding and not other", [Path(__file__)])

"""Seeded recurrent networks of one op, in all their forms."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

import hexane as hx
from hexane.graph import Graph

Array = NDArray[Any]
GATES = {"rnn": 1, "gru": 3, "lstm": 4}
FUNCTIONS = ("relu", "sigmoid", "sigmoid_hard", "softplus", "softsign", "tanh")
# Attributes, and which optional operands there are.
FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"bias": False, "direction": "reverse"},
    {"direction": "bidirectional", "batch_first": True, "initial": True},
    {"direction": "bidirectional", "lengths": True, "clip": 0.7},
    {"direction": "reverse", "lengths": True, "initial": True, "batch_first": True, "peephole": True},
    {"direction": "bidirectional", "linear_before_reset": True, "lengths": True},
    {"linear_before_reset": True, "initial": True, "clip": 2.0},
    {"direction": "bidirectional", "functions": 1, "peephole": True},
    {"functions": 4, "clip": 1.5},
)


def network(
    op: str, extents: tuple[int, int, int, int], form: dict[str, Any], dtype: str = "fp32"
) -> tuple[Graph, dict[str, Array]]:
    """A network whose operands but the weights are inputs, and numbers for them."""
    form = dict(form)
    rng = np.random.default_rng(7)
    time, batch, inputs, hidden = extents
    directions = 2 if form.get("direction") == "bidirectional" else 1
    if op != "gru":
        form.pop("linear_before_reset", None)
    optional = {name: form.pop(name, name == "bias") for name in ("bias", "lengths", "initial", "peephole")}
    if (first := form.pop("functions", None)) is not None:
        count = {"rnn": 1, "gru": 2, "lstm": 3}[op] * directions
        form["activations"] = tuple(FUNCTIONS[(first + 5 * i) % len(FUNCTIONS)] for i in range(count))
    kind = np.float16 if dtype == "fp16" else np.float32

    def numbers(*shape: int) -> Array:
        return (rng.uniform(-1, 1, shape) * 2 / np.sqrt(shape[-1])).astype(kind)

    batch_first = form.get("batch_first", False)
    given = {
        "x": (rng.standard_normal((batch, time, inputs) if batch_first else (time, batch, inputs)) * 3).astype(kind)
    }
    operands: dict[str, Any] = {}
    width = GATES[op] * hidden
    if optional["bias"]:
        operands["bias"] = numbers(directions, 2 * width)
    if optional["lengths"]:
        given["lengths"] = rng.integers(0, time + 1, batch).astype(np.int32)
        operands["lengths"] = hx.input("lengths", (batch,), "int32")
    if optional["initial"]:
        state = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
        for name in ("initial_h", "initial_c")[: 2 if op == "lstm" else 1]:
            given[name] = numbers(*state)
            operands[name] = hx.input(name, state, dtype)
    if optional["peephole"] and op == "lstm":
        operands["peephole"] = numbers(directions, 3 * hidden)
    x = hx.input("x", given["x"].shape, dtype)
    weight, recurrent = numbers(directions, width, inputs), numbers(directions, width, hidden)
    return hx.graph(list(getattr(hx, op)(x, weight, recurrent, **operands, **form))), given

"""Elementwise ops as layers of the engine."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hexane.graph import Node
from hexane.ops.neurons import MODE_OF, NEURONS
from hexane.ops.slots import activation


def neuron(b: Any, node: Node, x: Any) -> Any:
    return b.layer("neuron", x, **neuron_attrs(MODE_OF[node.op], node))


def neuron_attrs(mode: str, node: Node) -> dict[str, Any]:
    row = NEURONS[mode]
    return {
        "mode": mode,
        "alpha": node.attrs[row.alpha] if row.alpha else 0.0,
        "beta": node.attrs[row.beta] if row.beta else 0.0,
    }


def clamped(b: Any, x: Any, low: float, high: float) -> Any:
    return b.layer("neuron", x, mode="clamped_relu", alpha=low, beta=high)


def affine(b: Any, x: Any, gain: float | None, offset: float | None) -> Any:
    return b.layer("gain_offset_control", x, gain, offset)


def hard_sigmoid(b: Any, node: Node, x: Any) -> Any:
    return clamped(b, affine(b, x, node.attrs["alpha"], node.attrs["beta"]), 0.0, 1.0)


def hard_swish(b: Any, node: Node, x: Any) -> Any:
    return b.layer("mul", x, affine(b, clamped(b, affine(b, x, None, 3.0), 0.0, 6.0), 1 / 6, None))


def prelu(b: Any, node: Node, x: Any, slope: Any) -> Any:
    return b.layer("add", b.layer("neuron", x, mode="relu"), b.layer("mul", clamped(b, x, -np.inf, 0.0), slope))


def floor_div(b: Any, node: Node, x: Any, y: Any) -> Any:
    b.hazard(
        node, "the chip multiplies with a reciprocal that is rounded, which may give the next integer", "guide ch35"
    )
    return b.layer("div", x, y, epilogue=(activation("post_activation", "floor"),))


def div(b: Any, node: Node, x: Any, y: Any) -> Any:
    b.hazard(node, "the chip multiplies with a reciprocal from a table", "ANEForge 0.4.0, netplists")
    return b.layer("div", x, y)


def or_equal(strict: str) -> Callable[..., Any]:
    return lambda b, node, x, y: b.layer("logical_or", b.layer(strict, x, y), b.layer("equal", x, y))

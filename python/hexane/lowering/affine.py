"""A scale and a shift per channel, such as a constant batch norm."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hexane.graph import Array, Node, Value
from hexane.ops import OPS
from hexane.ops.predicates import only_along

_DEAD = 2.0**-19  # With a smaller gamma, results within 32 standard deviations are subnormal in fp16.


class Affine(NamedTuple):
    """The function y * scale + shift, per channel, in fp64. live: the channels whose digits matter, None for all."""

    scale: Array
    shift: Array
    live: Array | None = None

    def then(self, later: "Affine") -> "Affine":
        """Returns the function that applies this function first, and then `later`."""
        lives = [a.live for a in (self, later) if a.live is not None]
        live = np.logical_and.reduce(lives) if lives else None
        return Affine(self.scale * later.scale, self.shift * later.scale + later.shift, live)


def float_product(value: Value | None) -> Node | None:
    """Returns the product that computes the value, if the product's weights are floats, else None."""
    op = None if value is None else OPS.get(value.node.op)
    if value is None or op is None or op.product is None:
        return None
    weight = value.node.inputs[1]
    return value.node if weight is not None and weight.dtype.kind == "float" else None


def affine_of(node: Node, inputs: tuple[Value | None, ...], i: int, axis: int) -> Affine | None:
    """Returns the scale and shift that the node applies to each channel of its input i, or None if scale or shift
    varies within a channel."""
    shape = node.types[0].shape
    ones, zeros = np.ones(shape[axis]), np.zeros(shape[axis])
    if node.op == "batch_norm":
        return normalisation(node, inputs[1:]) if i == 0 and node.attrs["axis"] == axis else None
    other = inputs[1 - i]
    numbers = numbers_of(other) if other is not None and only_along(other, axis, shape) else None
    if numbers is None or (numbers.size == 1 and node.op in ("mul", "real_div")):
        return None  # a single number may be the scale of a quantised tensor, which has to stay in place
    with np.errstate(all="ignore"):
        match node.op, i:
            case "add", _:
                return Affine(ones, numbers)
            case "sub", _:
                return Affine(ones, -numbers) if i == 0 else Affine(-ones, numbers)
            case "mul", _:
                return Affine(numbers, zeros)
            case "real_div", 0:
                return Affine(1 / numbers, zeros)
    return None


def normalisation(node: Node, params: Sequence[Value | None]) -> Affine | None:
    """Returns a batch_norm's scale and shift per channel, or None if a parameter (mean, variance, gamma, beta) is not
    constant."""
    mean, variance, gamma, beta = (None if v is None else numbers_of(v) for v in params)
    if any(v is not None and numbers_of(v) is None for v in params):
        return None
    assert mean is not None
    assert variance is not None
    with np.errstate(all="ignore"):
        scale = (1 if gamma is None else gamma) / np.sqrt(variance + node.attrs["epsilon"])
        live = None if gamma is None else np.abs(gamma) > _DEAD
        live = None if live is None or not live.any() else live  # if all gammas are small, all channels are live
        return Affine(scale, (0 if beta is None else beta) - mean * scale, live)


def numbers_of(value: Value) -> Array | None:
    if value.node.op != "const":
        return None
    assert value.node.data is not None
    return value.node.data.astype(np.float64).reshape(-1)

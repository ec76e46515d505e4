"""Tells whether fp16 holds a sum of squares, and whether a form has already scaled the squared values."""

from hexane.bounds.any_input import bound, ends
from hexane.graph import Value
from hexane.ops.match import made_by
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.squares import (
    MOVES,
    Squares,
)
from hexane.validate import is_constant

LARGEST_SAFE = 16.0  # fp16 holds the sum of 255 squares of numbers up to 16


def is_safe(sums: Squares) -> bool:
    """True if fp16 holds the squares and their sum for any input of the network."""
    return bound(sums.x) ** 2 * sums.count < LARGEST_SAFE**2 * 255 or is_scaled(sums.x)


def is_scaled(value: Value) -> bool:
    """True if the value is x divided by its largest magnitude, or x times a factor computed from that magnitude."""
    node = value.node
    if node.op not in ("mul", "real_div"):
        return False
    pairs = (node.inputs, node.inputs[::-1]) if node.op == "mul" else (node.inputs,)
    return any(_largest_of(factor) == x for x, factor in pairs if x is not None)


def _largest_of(value: Value | None) -> Value | None:
    """Returns x if the value is computed from max(|x|) and constants, or from max(x) with x >= -1. Else None."""
    while value is not None and value.node.op in (*MOVES, "inverse", "mul", "maximum", "add", "real_div", "clip"):
        value = next((v for v in value.node.inputs if v is not None and not is_constant(v.node)), None)
    top = made_by(value, "reduce_max")
    x = None if top is None else top.inputs[0]
    if (size := made_by(x, "abs")) is not None:
        return size.inputs[0]
    return x if ends(x)[0] >= -1 else None


# ---- means and variances ----


def finite(b: Rewriter, y: Value, smallest: float) -> Value:
    """Returns the inverse of a root, limited to fp16's largest number if the smallest root is above 0, because 0 *
    infinity is NaN."""
    return b.minimum(y, LARGEST) if 0 < smallest < 1 / LARGEST else y


LARGEST = 65504.0  # largest number of fp16


LARGEST_ROOT = 32768.0

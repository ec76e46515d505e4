"""The smallest and the largest result of an op without rounding, which its record computes from the ends of its
operands' ranges.

Three analyses use these ranges: the rules for single elements (bounds/rules.py), the bounds of one value for any input
(bounds/any_input.py), and `validate/wide_values.py` for whole tensors.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np

from hexane.graph import Array, Node
from hexane.ops import OPS

Pair = tuple[Array, Array]
# The results of these functions lie in one range for all operands.
RANGES = {
    **dict.fromkeys(("sigmoid", "softmax", "sigmoid_hard", "hardmax"), (0.0, 1.0)),
    **dict.fromkeys(("tanh", "softsign", "erf", "sin", "cos"), (-1.0, 1.0)),
}
# A number below the minimum of each of these functions, which fall and then rise.
DIPS = {"gelu": -0.2, "gelu_tanh": -0.2, "silu": -0.3, "mish": -0.35, "hard_swish": -0.4}


def apply(node: Node, arrays: Sequence[Array | None]) -> Array:
    """Returns the result of an op with one output in fp64, without rounding."""
    with np.errstate(all="ignore"):
        return np.asarray(OPS[node.op].ref(*arrays, **node.attrs), np.float64)


def corners(node: Node, operands: Sequence[Pair]) -> Pair:
    """Returns the range of an op that is monotone in each operand, from all combinations of the operands' ends."""
    values = [apply(node, ends) for ends in product(*operands)]
    return np.minimum.reduce(values), np.maximum.reduce(values)


def of_size(node: Node, low: Array, high: Array) -> Pair:
    """Returns the range of abs or square."""
    size = np.maximum(np.abs(low), np.abs(high))
    least = np.where((low <= 0) & (high >= 0), 0.0, np.minimum(np.abs(low), np.abs(high)))
    return (least, size) if node.op == "abs" else (least * least, size * size)


def by_constants(node: Node, low: Array, high: Array) -> Pair:
    """Returns the range of an op that is monotone in x with constant other operands: batch_norm, dequantize."""
    rest = [None if v is None else v.node.data for v in node.inputs[1:]]
    values = [apply(node, [end, *rest]) for end in (low, high)]
    return np.minimum(*values), np.maximum(*values)

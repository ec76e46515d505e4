"""The smallest and the largest result of an op without rounding, which its record computes from the ends of its
operands' ranges.

The rules for single elements (bounds/rules.py) use these ranges, and so does `validate/wide_values.py` for whole
tensors.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np

from hexane.graph import Array, Node
from hexane.ops import OPS

Pair = tuple[Array, Array]


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

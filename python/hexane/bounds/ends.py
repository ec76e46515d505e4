"""The smallest and the largest number of a result, without rounding, by the op's record at the ends of its operands.

Two read it: the rules for each element (bounds/rules.py), and `validate/wide_values.py`, which asks about whole
tensors.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np

from hexane.graph import Array, Node
from hexane.ops import OPS

Pair = tuple[Array, Array]


def apply(node: Node, arrays: Sequence[Array | None]) -> Array:
    """The op's meaning in fp64, of one output, without rounding."""
    with np.errstate(all="ignore"):
        return np.asarray(OPS[node.op].ref(*arrays, **node.attrs), np.float64)


def corners(node: Node, operands: Sequence[Pair]) -> Pair:
    """The range of an op that is monotone in each operand, from the ends of them all."""
    values = [apply(node, ends) for ends in product(*operands)]
    return np.minimum.reduce(values), np.maximum.reduce(values)


def of_size(node: Node, low: Array, high: Array) -> Pair:
    """The range of abs and square."""
    size = np.maximum(np.abs(low), np.abs(high))
    least = np.where((low <= 0) & (high >= 0), 0.0, np.minimum(np.abs(low), np.abs(high)))
    return (least, size) if node.op == "abs" else (least * least, size * size)


def by_constants(node: Node, low: Array, high: Array) -> Pair:
    """The range of an op that is monotone in x, with constant other operands: batch_norm, dequantize."""
    rest = [None if v is None else v.node.data for v in node.inputs[1:]]
    values = [apply(node, [end, *rest]) for end in (low, high)]
    return np.minimum(*values), np.maximum(*values)

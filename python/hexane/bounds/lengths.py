"""Bounds the results of norms, and of products with constant weights, for any input of the network.

A norm over n numbers gives rows whose L2 norm is at most sqrt(n) * max |gamma|, plus the L2 norm of beta. A row times
weights is at most the row's L2 norm times the weights' L2 norm (Cauchy-Schwarz). The bound without L2 norms, the
largest number times the sum of the weights' magnitudes, can be sqrt(n) times as large.
"""

from collections.abc import Callable
from math import inf, prod, sqrt

import numpy as np

from hexane.bounds.weight_sizes import weight_sizes
from hexane.graph import Array, Node, Value
from hexane.ops.predicates import channel_axis

Ends = Callable[[Value | None, int], tuple[float, float]]

MOST_WEIGHTS = 1 << 22  # larger weights are not read.
ROUNDING = 1.01  # Rounding in fp16 and in the engines' tables makes a norm up to this much larger.
NORMS = ("layer_norm", "rms_norm", "instance_norm", "group_norm", "l2_norm")
STAY = ("identity", "stop_gradient")
RESHAPES = ("reshape", "expand_dims", "squeeze")


def of_norm(node: Node) -> float:
    """Returns a bound of the magnitude of a norm's results, infinite if gamma or beta is computed."""
    if node.op == "l2_norm":
        return ROUNDING
    sizes = _gamma_and_beta(node)
    return inf if sizes is None else sqrt(_count(node)) * ROUNDING * sizes[0] + sizes[1]


def _gamma_and_beta(node: Node) -> tuple[float, float, float] | None:
    """Returns max |gamma|, max |beta| and the L2 norm of beta, or None if one of them is computed."""
    bounds = [1.0, 0.0, 0.0]
    for place, value in enumerate(node.inputs[1:3]):
        if value is None:
            continue
        data = _data(value)
        if data is None:
            return None
        bounds[place] = float(np.abs(data).max(initial=0))
        if place:
            bounds[2] = float(np.linalg.norm(data.astype(np.float64)))
    return bounds[0], bounds[1], bounds[2]


def _count(node: Node) -> int:
    """Returns how many numbers one norm is computed over."""
    x = node.inputs[0]
    assert x is not None
    if node.op == "instance_norm":
        channels = channel_axis(node)
        return prod(x.shape) // (x.shape[0] * x.shape[channels])
    if node.op == "group_norm":
        return prod(x.shape[1:]) // int(node.attrs["num_groups"])
    return prod(x.shape[a] for a in node.attrs["axes"])


def length(value: Value | None, axis: int, ends: Ends, depth: int) -> float:
    """Returns a bound of the L2 norm along an axis."""
    if value is None:
        return inf
    node, axis, first = value.node, axis % max(value.type.rank, 1), value.node.inputs[0] if value.node.inputs else None
    if node.op in ("layer_norm", "rms_norm", "l2_norm") and [a % value.type.rank for a in node.attrs["axes"]] == [axis]:
        sizes = (1.0, 0.0, 0.0) if node.op == "l2_norm" else _gamma_and_beta(node)
        if sizes is None:
            return inf
        return ROUNDING * sizes[0] * (1.0 if node.op == "l2_norm" else sqrt(_count(node))) + sizes[2]
    if node.op in STAY or between_floats(node):
        return length(first, axis, ends, depth + 1)
    if node.op == "transpose":
        return length(first, node.attrs["perm"][axis], ends, depth + 1)
    before = _same_axis(first.shape, value.shape, axis) if first is not None and node.op in RESHAPES else None
    if before is not None:
        return length(first, before, ends, depth + 1)
    low, high = ends(value, depth)
    return max(abs(low), abs(high)) * sqrt(value.shape[axis])


def between_floats(node: Node) -> bool:
    """True if the node is a cast from float to float, which only rounds. A cast to bool turns small numbers into 1."""
    first = node.inputs[0] if node.inputs else None
    return node.op == "cast" and first is not None and first.dtype.kind == node.types[0].dtype.kind == "float"


def _same_axis(before: tuple[int, ...], after: tuple[int, ...], axis: int) -> int | None:
    """Returns the axis before a reshape that has the same elements as `axis` after it, or None."""
    inner = prod(after[axis + 1 :])
    for a, extent in enumerate(before):
        if extent == after[axis] and prod(before[a + 1 :]) == inner:
            return a
    return None


def of_product(node: Node, ends: Ends, depth: int) -> float:
    """Returns a bound of |x * weights + bias|, infinite if weights or bias are computed."""
    x, weight, bias = (*node.inputs, None)[:3]
    data = None if weight is None else _data(weight)
    if x is None or weight is None or data is None or (node.op == "matmul" and data.ndim != 2):
        return inf
    added = 0.0
    if bias is not None:
        if (shift := _data(bias)) is None:
            return inf
        added = float(np.abs(shift).max(initial=0))
    if node.op == "conv":
        axis = channel_axis(node)
    else:
        axis = x.type.rank - (2 if node.op == "matmul" and node.attrs["transpose_x"] else 1)
    long = length(x, axis, ends, depth + 1)
    if long == inf:
        return inf
    low, high = ends(x, depth + 1)
    sums, lengths = weight_sizes(node, data, weight)
    return min(sums * max(abs(low), abs(high)), lengths * long) + added


def _data(value: Value) -> Array | None:
    """Returns the numbers of a float constant, or None if it is encoded, computed or too large."""
    node = value.node
    if node.op != "const" or value.dtype.kind != "float" or node.data is None or node.data.size > MOST_WEIGHTS:
        return None
    return node.data

"""Bounds one value for any input of the network, from the ops that compute it, on request and in exact arithmetic.

Repairs ask for these bounds while they rewrite a graph. `analyse` answers another question: what a chip computes from
inputs in given ranges, with its rounding and overflow. Both take the ranges of ops from `bounds/ends.py`.
"""

from math import exp, inf, isinf, prod, sqrt

from hexane.bounds.ends import DIPS, RANGES
from hexane.bounds.lengths import NORMS, between_floats, of_norm, of_product
from hexane.graph import Node, Value
from hexane.ops.predicates import axes_of, uniform

LARGEST_GATE = 2.0  # |x * gate| is at most 2 |x|: no factor is needed.
MOST_BOUNDED = 16  # The longest chain of ops that is followed.
LIMITS = {"relu": (0.0, inf), "relu6": (0.0, 6.0), "abs": (0.0, inf)}
NEVER_NEGATIVE = ("softplus", "exp", "square", "sqrt", "reduce_l2_norm", "reduce_sum_square", "reduce_l1_norm")
SAME = (
    *("reshape", "transpose", "slice_by_size", "slice_by_index", "expand_dims", "squeeze", "identity", "broadcast_to"),
    *("split", "gather", "flatten", "flatten2d", "crop", "reverse", "reduce_mean", "reduce_max", "reduce_min"),
)


def bound(value: Value) -> float:
    """Returns an upper bound of the value's magnitude."""
    low, high = ends(value)
    return max(abs(low), abs(high))


def ends(value: Value | None, depth: int = 0) -> tuple[float, float]:
    """Returns a lower and an upper bound of the value, infinite if unknown."""
    if value is None or depth >= MOST_BOUNDED or not value.node.inputs:
        return -inf, inf
    node, first = value.node, value.node.inputs[0]
    if node.op in RANGES:
        return RANGES[node.op]
    if node.op == "one_hot":
        on, off = float(node.attrs["on"]), float(node.attrs["off"])
        return min(on, off), max(on, off)
    if node.op == "cast" and first is not None and first.dtype.kind == "bool":
        return 0.0, 1.0
    if node.op in NEVER_NEGATIVE:
        return 0.0, _most(node, first, depth)
    if node.op in DIPS:
        return DIPS[node.op], max(ends(first, depth + 1)[1], 0.0)
    if node.op in NORMS:
        return -(size := of_norm(node)), size
    if node.op in ("linear", "matmul", "conv"):
        return -(size := of_product(node, ends, depth)), size
    if node.op in SAME or between_floats(node):
        return ends(first, depth + 1)
    if node.op == "neg":
        low, high = ends(first, depth + 1)
        return -high, -low
    if node.op == "sub" and (top := node.inputs[1]) is not None and top.node.op == "reduce_max":
        return (-inf, 0.0) if top.node.inputs[0] == first else (-inf, inf)
    if node.op in LIMITS or node.op == "clip":
        least, most = LIMITS.get(node.op) or (float(node.attrs["alpha"]), float(node.attrs["beta"]))
        low, high = ends(first, depth + 1)
        if node.op == "abs":
            return 0.0, max(abs(low), abs(high))
        return min(max(low, least), most), min(max(high, least), most)
    if node.op not in ("maximum", "minimum", "add", "mul", "real_div"):
        return -inf, inf
    for x, by in (node.inputs, node.inputs[::-1]):
        if (known := uniform(by)) is None or (node.op == "real_div" and by is first):
            continue
        low, high = ends(x, depth + 1)
        if node.op == "maximum":
            return max(low, known), max(high, known)
        if node.op == "minimum":
            return min(low, known), min(high, known)
        if node.op == "add":
            return low + known, high + known
        factor = known if node.op == "mul" else 1 / known if known else 0.0
        if not factor or isinf(factor):
            return -inf, inf
        return min(low * factor, high * factor), max(low * factor, high * factor)
    if node.op != "real_div" and depth + BRANCH < MOST_BOUNDED:
        (a, b), (c, d) = (ends(v, depth + BRANCH) for v in node.inputs)
        if node.op in ("maximum", "minimum"):
            return (max(a, c), max(b, d)) if node.op == "maximum" else (min(a, c), min(b, d))
        if node.op == "add":
            return a + c, b + d
        if not any(map(isinf, (a, b, c, d))):
            products = (a * c, a * d, b * c, b * d)
            return min(products), max(products)
    return -inf, inf


def _most(node: Node, x: Value | None, depth: int) -> float:
    """Returns an upper bound of the result of an op that is never negative."""
    low, high = ends(x, depth + 1)
    size = max(abs(low), abs(high))
    if node.op == "exp":
        return exp(high) if high < MOST_EXPONENT else inf
    if node.op == "softplus":
        return max(high, 0.0) + 1
    if node.op in ("square", "sqrt") or x is None:
        return size**2 if node.op == "square" else sqrt(max(high, 0.0))
    count = prod(x.shape[a] for a in axes_of(node.attrs["axes"], x.type.rank))
    return {"reduce_l2_norm": sqrt(count) * size, "reduce_sum_square": count * size**2}.get(node.op, count * size)


MOST_EXPONENT = 80.0  # e^80 is a number of fp32.
BRANCH = 4  # An op with two computed operands costs this much depth, because both operands are followed.

"""Sums whose factor stands behind other ops: the sum is infinite in fp16 before the factor makes a mean of it.

A reduction is rounded behind its own factor (docs/numerics.md), so a factor that is moved to it loses nothing.
"""

from math import isclose, prod

from hexane.graph import Value
from hexane.ops import simpler
from hexane.ops.match import Found, op
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.form import Form
from hexane.passes.repair.norms import is_safe
from hexane.passes.repair.squares import axes_of, factored, squares

SUMS = ("reduce_sum", "reduce_sum_square", "reduce_l1_norm")
MOVES = ("reshape", "expand_dims", "squeeze", "transpose", "broadcast_to", "tile", "identity", "slice_by_size", "neg")
EVEN = ("relu", "abs", "leaky_relu")  # f(x * c) is f(x) * c for c above 0
ADDED = ("reduce_sum", "reduce_sum_square")
JOINS = ("add", "sub", "concat")
MOST_OPS = 16  # between the factor and its sums


def factor_behind(m: Found) -> Value | None:
    """reshape(reduce_sum(%x)) * c  ->  reshape(reduce_sum(%x) * c), for c below 1 and other ops that a factor passes"""
    inner, factor = factored(m.node.values[0])
    if inner is None or inner.node.op in SUMS or inner.dtype.kind != "float" or not 0 < abs(factor) < 1:
        return None
    between = _between(inner, factor > 0)
    return None if between is None or between > MOST_OPS else _times(m, inner, factor)


def _between(value: Value | None, is_positive: bool) -> int | None:
    """How many ops stand between a value and the sums that all of it comes from; None where something else is."""
    value, _ = factored(value)
    if value is None or value.node.op in SUMS:
        return None if value is None else 0
    of_data = value.node.inputs if value.node.op in JOINS else value.node.inputs[:1]
    passes = (*MOVES, *JOINS, *EVEN) if is_positive else (*MOVES, *JOINS)
    if value.node.op not in passes or any(v is None or v.dtype != value.dtype for v in of_data):
        return None
    total = 1
    for v in of_data:
        found = _between(v, is_positive)
        if found is None or total > MOST_OPS:
            return None
        total += found
    return total


def _times(m: Found, value: Value, factor: float) -> Value:
    inner, own = factored(value)
    assert inner is not None
    node, factor = inner.node, factor * own
    if node.op in SUMS:
        (total,) = m.make(node.op, [m.now(node.inputs[0])], **node.attrs)
        return Rewriter(*m.node.sources).mul(total, factor)
    count = len(node.inputs) if node.op in JOINS else 1
    inputs = [_times(m, v, factor) if i < count and v is not None else m.now(v) for i, v in enumerate(node.inputs)]
    return m.make(node.op, inputs, **node.attrs)[0]


def mean_of_squares(m: Found) -> Value | None:
    """mean(%x^2)  ->  mean((%x * f)^2) / f / f, of numbers that f brings within fp16's squares"""
    node = m.node
    inner, _ = factored(node.values[0])
    found = squares(node.values[0])
    is_mean = node.op == "reduce_mean"
    if inner is None or found is None or inner.node.op not in (("reduce_mean",) if is_mean else ADDED):
        return None
    times = found.factor * found.count
    if is_safe(found) or not times <= MOST_TIMES:
        return None
    b, x = Rewriter(*node.sources), m.now(found.x)
    assert x is not None
    u, factor = simpler.held(b, x, found.axes)
    y = b.reduce_mean(b.square(u), axes=found.axes)
    y = y if found.is_mean else b.mul(y, times)
    y = b.real_div(b.real_div(y, factor), factor)
    return y if y.shape == node.types[0].shape else b.reshape(y, shape=node.types[0].shape)


def mean_of_sum(m: Found) -> Value | None:
    """reduce_sum(%x) * c  ->  reduce_mean(%x) * (c * n), for n numbers in each sum, where c * n is not large

    A chip's layer holds both. Writers whose reductions end in fp16 hold the mean alone.
    """
    inner, factor = factored(m.node.values[0])
    x = inner.node.inputs[0] if inner is not None and inner.node.op in ("reduce_sum", "reduce_l1_norm") else None
    if inner is None or x is None or x.dtype.kind != "float" or not 0 < abs(factor) < 1:
        return None
    axes = axes_of(inner.node.attrs["axes"], x.type.rank)
    times = factor * prod(x.shape[a] for a in axes)
    if abs(times) > MOST_TIMES:
        return None
    b, now = Rewriter(*m.node.sources), m.now(x)
    assert now is not None
    now = b.abs(now) if inner.node.op == "reduce_l1_norm" else now
    y = b.reduce_mean(now, axes=axes, keep_dims=inner.node.attrs["keep_dims"])
    return y if isclose(times, 1, rel_tol=1e-5) else b.mul(y, times)


# What multiplies a mean: a larger factor makes a sum of it, which fp16 seldom holds.
MOST_TIMES = 4.0

MOVED = Form(
    "factor",
    op("mul") | op("real_div"),
    factor_behind,
    "the factor is moved to the sum in front: a sum above 65504 is infinite in fp16 before its factor",
)
SQUARES = Form(
    "mean of squares",
    op("reduce_mean") | op("mul") | op("real_div"),
    mean_of_squares,
    "scaled by its largest number before it is squared: squares of numbers beyond 256 are infinite in fp16",
    "coremltools#2585, #2821, reported from devices",
)
MEAN = Form("mean of a sum", op("mul") | op("real_div"), mean_of_sum, quiet=True)

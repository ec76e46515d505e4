"""Sums whose factor comes after other ops: in fp16 the sum overflows before the factor makes it a mean.

A reduction is rounded only after its own factor (docs/numerics.md), so moving the factor into it loses nothing.
"""

from math import isclose, ldexp, prod

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
LIMITS = ("clip", "maximum", "add", "threshold")
LEAST_COUNT = 4  # numbers of a sum that are worth a factor
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


def weighted_mean(m: Found) -> Value | None:
    """reduce_sum(%x * %w) / reduce_sum(%w)  ->  (reduce_sum(%x * %w) * c) / (reduce_sum(%w) * c), for n numbers

    c is the power of two next to 1 / n. Moves may stand between, and a limit or an epsilon may follow the lower sum.
    """
    above, below = m.node.inputs
    total = _behind(above, MOVES)
    weights = _behind(below, (*MOVES, *LIMITS))
    if (
        above is None
        or total is None
        or weights is None
        or total.node.op != "reduce_sum"
        or weights.node.op != "reduce_sum"
    ):
        return None
    product, lower = total.node.inputs[0], weights.node.inputs[0]
    if product is None or lower is None or product.node.op != "mul":
        return None
    count = prod(product.shape) // prod(total.shape)
    if _root(lower) not in [_root(v) for v in product.node.inputs] or count < LEAST_COUNT:
        return None
    factor = ldexp(1, -(count.bit_length() - 1))
    b, (upper, divisor) = Rewriter(*m.node.sources), m.inputs
    if upper is None or divisor is None or factored(above)[1] != 1 or factored(below)[1] != 1:
        return None
    return b.real_div(_times(m, above, factor), b.mul(divisor, factor))


def _behind(value: Value | None, ops: tuple[str, ...]) -> Value | None:
    """The source of a chain of these ops, whose other operands are constants."""
    while value is not None and value.node.op in ops:
        others = [v for v in value.node.inputs if v is not None and v.node.op != "const"]
        value = others[0] if len(others) == 1 else None
    return value


def _root(value: Value | None) -> Value | None:
    """The source of a chain of moves and casts."""
    return _behind(value, (*MOVES, "cast"))


# The largest factor of a mean: a larger one makes a sum of it, which fp16 seldom holds.
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
WEIGHTED = Form(
    "weighted mean",
    op("real_div"),
    weighted_mean,
    "both sums are scaled to means: a sum above 65504 is infinite in fp16 before it is divided",
)
MEAN = Form("mean of a sum", op("mul") | op("real_div"), mean_of_sum, quiet=True)

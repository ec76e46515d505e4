"""Sums whose factor is applied after other ops: in fp16 the sum overflows before the factor makes it small.

A reduction is rounded only after its own factor (docs/numerics/sums.md), so moving the factor next to it loses nothing.
"""

from math import isclose, ldexp, prod, sqrt

import numpy as np

from hexane.bounds.any_input import LARGEST_GATE, bound
from hexane.graph import Value, constant
from hexane.ops import simpler
from hexane.ops.match import Found, made_by, op
from hexane.ops.predicates import axes_of, only_along
from hexane.ops.rewriter import Rewriter
from hexane.passes.needs import has_squares
from hexane.passes.repair.form import Form
from hexane.passes.repair.scales import is_safe
from hexane.passes.repair.squares import factored, fitted, squares
from hexane.validate import is_constant

SUMS = ("reduce_sum", "reduce_sum_square", "reduce_l1_norm")
MOVES = ("reshape", "expand_dims", "squeeze", "transpose", "broadcast_to", "tile", "identity", "slice_by_size", "neg")
EVEN = ("relu", "abs", "leaky_relu")  # f(x * c) is f(x) * c for c above 0
ADDED = ("reduce_sum", "reduce_sum_square", "linear", "matmul", "conv", "einsum", "avg_pool")
WEIGHTED_SUMS = ADDED[2:]  # sums by equal weights
SMALL_TIMES = 2.0**-10
JOINS = ("add", "sub", "concat")
LIMITS = ("clip", "maximum", "add", "threshold")
LEAST_COUNT = 4  # shorter sums are not scaled.
MOST_OPS = 16  # Most ops between the factor and its sums.


def factor_behind(m: Found) -> Value | None:
    """reshape(reduce_sum(%x)) * c  ->  reshape(reduce_sum(%x) * c), for c below 1 and any ops that commute with a
    factor"""
    inner, factor = factored(m.node.values[0])
    if inner is None or inner.node.op in SUMS or inner.dtype.kind != "float" or not 0 < abs(factor) < 1:
        return None
    between = _between(inner, factor > 0)
    return None if between is None or between > MOST_OPS else _times(m, inner, factor)


def _between(value: Value | None, is_positive: bool) -> int | None:
    """Returns how many ops come between the value and the sums that it is made from, or None if it is not made from
    sums only."""
    value, _ = factored(value)
    if value is None or value.node.op in SUMS:
        return None if value is None else 0
    of_data = value.node.inputs if value.node.op in JOINS else value.node.inputs[:1]
    passes = (*MOVES, *JOINS, *EVEN) if is_positive else (*MOVES, *JOINS)
    if value.node.op not in passes or any(v is None or v.dtype != value.dtype for v in of_data):
        return None
    total = 1
    for v in of_data:
        count = _between(v, is_positive)
        if count is None or total > MOST_OPS:
            return None
        total += count
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
    """mean(%x^2)  ->  mean((%x * f)^2) / f / f, with f such that the squares fit fp16"""
    node = m.node
    inner, by = factored(node.values[0])
    sums = squares(inner)
    is_mean = node.op == "reduce_mean"
    whole = inner is not None and inner.node.op in WEIGHTED_SUMS and inner.node == node
    known = ("reduce_mean",) if is_mean or _is_factored(m, inner) else ADDED
    if inner is None or sums is None or not (whole or inner.node.op in (*known, *ADDED[: 0 if is_mean else None])):
        return None
    if is_mean and _is_factored(m, inner):
        return None  # the multiplication by a factor is rewritten together with the mean
    times = by * sums.factor * sums.count
    if is_safe(sums) or not 0 < abs(times) <= MOST_TIMES:
        return None
    b, x = Rewriter(*node.sources), m.now(sums.x)
    assert x is not None
    u, factor = simpler.held(b, x, sums.axes)
    y = b.reduce_mean(b.square(u), axes=sums.axes)
    if abs(times) > SMALL_TIMES:
        y = y if isclose(times, 1, rel_tol=1e-5) else b.mul(y, times)
        y = b.real_div(b.real_div(y, factor), factor)
    else:  # fp16 has few digits for so small a factor: multiply by its root twice
        step = b.real_div(sqrt(abs(times)), factor)
        y = b.mul(b.mul(y, step), step)
        y = b.neg(y) if times < 0 else y
    return fitted(b, y, node.types[0].shape)


def mean_of_products(m: Found) -> Value | None:
    """mean(%x * %y)  ->  mean((%x * f) * (%y * g)) / f / g, with f and g such that the numbers are at most 128

    The result is equal because f and g are constant within each mean.
    """
    node = m.node
    inner, factor = factored(node.values[0])
    maker = made_by(inner, "reduce_mean", "reduce_sum")
    product = m.alone(maker.inputs[0], "mul") if maker is not None else None
    if maker is None or product is None or (node.op == "reduce_mean" and _is_factored(m, inner)):
        return None
    if node.op != "reduce_mean" and maker.op == "reduce_mean" and not _is_factored(m, inner):
        return None
    x, y = product.inputs
    if x is None or y is None or x == y or x.shape != y.shape or x.dtype.kind != "float":
        return None
    if any(is_constant(v.node) or bound(v) <= LARGEST_GATE or _has_factor(v) for v in (x, y)):
        return None
    axes = axes_of(maker.attrs["axes"], x.type.rank)
    times = factor * (1 if maker.op == "reduce_mean" else prod(x.shape[a] for a in axes))
    if not 0 < abs(times) <= MOST_TIMES:
        return None
    b, sides = Rewriter(*node.sources), [m.now(x), m.now(y)]
    (u, f), (v, g) = (simpler.held(b, side, axes) for side in sides if side is not None)
    total = b.reduce_mean(b.mul(u, v), axes=axes)
    if abs(times) <= SMALL_TIMES:  # multiply twice by the root of a small factor
        step = sqrt(abs(times))
        y = b.mul(b.mul(total, b.real_div(step, f)), b.real_div(step if times > 0 else -step, g))
        return fitted(b, y, node.types[0].shape)
    total = total if isclose(times, 1, rel_tol=1e-5) else b.mul(total, times)
    return fitted(b, b.real_div(b.real_div(total, f), g), node.types[0].shape)


def _is_factored(m: Found, value: Value | None) -> bool:
    """True if the only reader of the value multiplies it by a constant below 1 or divides it by one above 1."""
    if value is None or m.graph.use_counts()[value] != 1:
        return False
    (reader,) = m.graph.readers(value) or (None,)
    return reader is not None and factored(reader.values[0])[0] == value and 0 < abs(factored(reader.values[0])[1]) < 1


def _has_factor(value: Value) -> bool:
    """True if the value is %x * f with a factor f computed from a largest number."""
    return value.node.op == "mul" and any(v is not None and v.node.op == "inverse" for v in value.node.inputs)


SHORT, SHORT_TIMES = 0.125, 64.0  # factors up to 1/8 keep longer sums in fp16.
MOST_RUNNING = 1024  # The most rows of the matrix: 2 MB of weights.


def running_mean(m: Found) -> Value | None:
    """cumsum(%x) * c  ->  matmul(%x, T), with T[i, j] = c[j] for i <= j

    Every |c[j]| * (j + 1) must be at most 4, or 64 for factors up to 1 / 8.

    The result is equal because a running sum is a product with a triangular matrix of ones. The sum is never rounded to
    fp16.
    """
    above, by = m.node.inputs
    if m.node.op == "mul" and (above is None or above.node.op != "cumsum"):
        above, by = by, above
    running = m.alone(above, "cumsum")
    if running is None or above is None or by is None or by.node.op != "const" or above.shape != m.node.types[0].shape:
        return None
    rank, numbers = above.type.rank, by.node.data
    axis = running.attrs["axis"] % rank
    count = above.shape[axis]
    if above.dtype.kind != "float" or numbers is None or rank < 2 or axis < rank - 2 or not 1 < count <= MOST_RUNNING:
        return None
    if numbers.size not in (1, count) or (numbers.size == count and not only_along(by, axis, above.shape)):
        return None
    factors = np.broadcast_to(numbers.reshape(-1).astype(np.float64), (count,))
    factors = 1 / factors if m.node.op == "real_div" and (factors != 0).all() else factors
    order = np.arange(count)
    number = count - order if running.attrs["reverse"] else order + 1
    most = SHORT_TIMES if abs(factors).max() <= SHORT else MOST_TIMES
    if not (abs(factors) * number <= most).all() or (m.node.op == "real_div" and not (numbers != 0).all()):
        return None
    is_read = order[:, None] >= order if running.attrs["reverse"] else order[:, None] <= order
    is_read &= (order[:, None] != order) | (not running.attrs["exclusive"])
    # Halves of the factors, because the accumulator is infinite from 32768 on.
    matrix = constant((is_read * factors / 2).astype(above.dtype.numpy), m.node.sources)
    b, x = Rewriter(*m.node.sources), m.now(running.inputs[0])
    y = b.matmul(x, matrix) if axis == rank - 1 else b.matmul(b.transpose(matrix, perm=(1, 0)), x)
    return b.add(y, y)  # a factor of 2 would be folded into the weights again


def quotient_of_products(m: Found) -> Value | None:
    """(%a * %b) / (%c * %d)  ->  (%a / %c) * (%b / %d)

    The four values a to d must be computed, may exceed 2 and have the same shape. SSIM divides products of squares of
    pixels.
    """
    products = [m.alone(v, "mul") for v in m.node.inputs]
    factors = [v for product in products if product is not None for v in product.inputs]
    if len(factors) != 4 or any(v is None or is_constant(v.node) or bound(v) <= LARGEST_GATE for v in factors):
        return None
    if any(v is None or v.shape != m.node.types[0].shape for v in factors):
        return None
    a, b, c, d = map(m.now, factors)
    w = Rewriter(*m.node.sources)
    return w.mul(w.real_div(a, c), w.real_div(b, d))


def mean_of_sum(m: Found) -> Value | None:
    """reduce_sum(%x) * c  ->  reduce_mean(%x) * (c * n), for n numbers per sum

    c * n must be at most 4, or the known ends of x must keep the result in fp16.

    A chip's layer holds the sum as well as the mean. A backend that rounds reductions to fp16 holds only the mean.
    """
    inner, factor = factored(m.node.values[0])
    x = inner.node.inputs[0] if inner is not None and inner.node.op in ("reduce_sum", "reduce_l1_norm") else None
    if inner is None or x is None or x.dtype.kind != "float" or not 0 < abs(factor) < 1:
        return None
    axes = axes_of(inner.node.attrs["axes"], x.type.rank)
    times = factor * prod(x.shape[a] for a in axes)
    if abs(times) > MOST_TIMES and abs(times) * bound(x) > LARGEST_KNOWN:
        return None
    b, now = Rewriter(*m.node.sources), m.now(x)
    assert now is not None
    now = b.abs(now) if inner.node.op == "reduce_l1_norm" else now
    y = b.reduce_mean(now, axes=axes, keep_dims=inner.node.attrs["keep_dims"])
    return y if isclose(times, 1, rel_tol=1e-5) else b.mul(y, times)


def weighted_mean(m: Found) -> Value | None:
    """reduce_sum(%x * %w) / reduce_sum(%w)  ->  (reduce_sum(%x * %w) * c) / (reduce_sum(%w) * c), for n numbers

    c is a power of two near 1 / n. Moves may come between, and a limit or an epsilon may follow the lower sum.
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
    """Returns the source of a chain of these ops, whose other operands must be constants, or None."""
    while value is not None and value.node.op in ops:
        others = [v for v in value.node.inputs if v is not None and v.node.op != "const"]
        value = others[0] if len(others) == 1 else None
    return value


def _root(value: Value | None) -> Value | None:
    """Returns the source of a chain of moves and casts."""
    return _behind(value, (*MOVES, "cast"))


LARGEST_KNOWN = 32768.0
# The largest factor of a mean. A mean with a larger factor is nearly a sum, which often overflows fp16.
MOST_TIMES = 4.0

MOVED = Form(
    "factor",
    op("mul") | op("real_div"),
    factor_behind,
    "the factor is moved next to the sum: a sum above 65504 is infinite in fp16 before its factor",
)
SQUARES = Form(
    "mean of squares",
    op("reduce_mean") | op("mul") | op("real_div") | op("linear") | op("matmul") | op("conv") | op("avg_pool"),
    mean_of_squares,
    "scaled by its largest number before it is squared: squares of numbers beyond 256 are infinite in fp16",
    "coremltools#2585, #2821, reported from devices",
    needs=has_squares,
)
WEIGHTED = Form(
    "weighted mean",
    op("real_div"),
    weighted_mean,
    "both sums are scaled to means: a sum above 65504 is infinite in fp16 before it is divided",
)
PRODUCTS = Form(
    "mean of products",
    op("reduce_mean") | op("mul") | op("real_div"),
    mean_of_products,
    "both operands are scaled by their largest numbers first: a product beyond 65504 is infinite in fp16",
)
RUNNING = Form(
    "running mean",
    op("mul") | op("real_div"),
    running_mean,
    "written as a product with a triangle of factors: a running sum above 65504 is infinite in fp16",
)
QUOTIENT = Form(
    "quotient of products",
    op("real_div"),
    quotient_of_products,
    "divided factor by factor: the products leave fp16",
)
MEAN = Form("mean of a sum", op("mul") | op("real_div"), mean_of_sum, quiet=True)

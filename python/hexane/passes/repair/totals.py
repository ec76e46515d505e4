"""Quotients of sums: x over its own sum, and sums over sums. The sums overflow fp16, their quotient does not."""

from math import ceil, floor, inf, ldexp, log2, prod

import numpy as np

from hexane.bounds.any_input import bound, ends
from hexane.graph import Node, Value, constant
from hexane.ops import simpler
from hexane.ops.match import Found, made_by, op
from hexane.ops.predicates import axes_of, uniform
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.exponentials import quotient
from hexane.passes.repair.form import Form
from hexane.passes.repair.held_weights import held_weights, is_held_weight, squared_terms
from hexane.passes.repair.quotients import without_epsilon
from hexane.passes.repair.squares import MOVES, at_least, factored
from hexane.validate import is_constant

ACCUMULATED = 32768.0  # fp16 and the engine's accumulator hold sums up to this number
MOST = 128.0
SMALLEST = 2.0**-24  # smallest number of fp16
MOST_OPS = 16
SUMS = ("reduce_sum", "reduce_mean", "reduce_sum_square", "reduce_l1_norm")
JOINS = ("add", "sub")


def over_total(m: Found) -> Value | None:
    """%x / (sum(%x) + e)  ->  %u / (sum(%u) + e * f), with %u = %x * f, and with max(sum(%x), e) too

    The sum may have a factor, and so may the divisor. f is one number per sum and cancels. With f, the largest number
    of a sum is at most 128, and less in long sums.
    """
    x, below = quotient(m.node)
    if x is None or below is None or x.shape != m.node.types[0].shape or x.dtype.kind != "float":
        return None
    moved = _moved_from(below)
    inner, outside = factored(moved)
    limit = 0.0
    if inner is not None and (limited := at_least(inner)) is not None and inner.node.op != "relu":
        inner, limit = limited
    inner, epsilon = without_epsilon(inner)
    inner, inside = factored(inner)
    total = made_by(_moved_from(inner), *TOTALS)
    if total is None or inner is None or is_constant(x.node) or (epsilon and limit):
        return None
    is_absolute = total.op == "reduce_l1_norm"
    summed = total.inputs[0]
    if summed is not None and summed != x and summed.node.op == "abs":
        is_absolute, summed = True, summed.node.inputs[0]
    axes = axes_of(total.attrs["axes"], x.type.rank)
    each = tuple(1 if a in axes else d for a, d in enumerate(x.shape))  # the shape of one number per sum
    if summed != x or prod(below.shape) not in (prod(each), prod(x.shape)) or not _is_aligned(below, x, each):
        return None
    count = prod(x.shape[a] for a in axes)
    is_mean = total.op == "reduce_mean"
    if (is_mean and not squared_terms(x)) or not 0 < inside <= 1 or not LEAST_OUTSIDE <= outside <= 2 / inside:
        return None
    if bound(x) * count <= ACCUMULATED or is_held_weight(x):
        return None
    b = Rewriter(*m.node.sources)
    most = min(MOST, 2.0 ** floor(log2(ACCUMULATED / 2 / count)))
    least = max(epsilon, limit)
    u, _, rest = held_weights(m, x, axes, most, least, least <= simpler.MOST_EPSILON, ends(x)[0])
    size = b.abs(u) if is_absolute else u
    divisor = b.reduce_mean(size, axes=axes) if is_mean else b.reduce_sum(size, axes=axes)
    divisor = divisor if inside == 1 else b.mul(divisor, inside)
    if rest is not None:
        divisor = b.add(divisor, rest) if epsilon else b.maximum(divisor, rest)
    return b.real_div(u, divisor if outside == 1 else b.mul(divisor, outside))


LEAST_OUTSIDE = 1 / 16
TOTALS = ("reduce_sum", "reduce_l1_norm", "reduce_mean")


def _moved_from(value: Value | None) -> Value | None:
    """Returns the sum that a reshape or broadcast reads."""
    while value is not None and value.node.op in MOVES:
        value = value.node.inputs[0]
    return value


def _is_aligned(divisor: Value, x: Value, each: tuple[int, ...]) -> bool:
    """True if broadcasting joins each number of x with its own sum."""
    own = (1,) * (x.type.rank - divisor.type.rank) + divisor.shape
    return own == each or (divisor.shape == x.shape and divisor.node.op == "broadcast_to")


def quotient_inside(m: Found) -> Value | None:
    """matmul(%w, %x) / (sum(%w) + e)  ->  matmul(%w / (sum(%w) + e), %x), also for cumsum(%w)

    The divisor has one number for each row of %w, and is therefore a factor of the row.
    """
    above, below = m.node.inputs
    maker, total = made_by(above, "matmul", "cumsum"), _total_of(below)
    if maker is None or total is None or above is None or below is None or above.shape != m.node.types[0].shape:
        return None
    w = maker.inputs[0]
    if w is None or w != total.inputs[0] or is_constant(w.node) or w.dtype.kind != "float":
        return None
    axes, rank = axes_of(total.attrs["axes"], w.type.rank), w.type.rank
    along = rank - 1
    if maker.op == "cumsum":
        along = maker.attrs["axis"] % rank
    elif maker.attrs["transpose_x"] or maker.inputs[2] is not None or above.type.rank != rank:
        return None
    each = tuple(1 if a in axes else d for a, d in enumerate(w.shape))
    if axes != (along,) or below.shape != each or bound(w) * w.shape[along] <= SUMMED:
        return None
    b = Rewriter(*m.node.sources)
    return m.make(maker.op, [b.real_div(m.now(w), m.now(below)), *map(m.now, maker.inputs[1:])], **maker.attrs)[0]


SUMMED = 2048.0  # weights with this sum, times numbers up to 16, add up to at most ACCUMULATED


def _total_of(value: Value | None) -> Node | None:
    """Returns the sum that the value is, without limits, epsilons and reshapes."""
    value = _moved_from(value)
    if value is not None and (limited := at_least(value)) is not None:
        value = limited[0]
    return made_by(_moved_from(without_epsilon(value)[0]), "reduce_sum")


def sum_over_sum(m: Found) -> Value | None:
    """(sum(%a) * 2 + e) / (sum(%b) + sum(%c) + e)  ->  the same formula with each sum and e multiplied by k

    The result is equal because the power of two k is a factor of every term. A sum is rounded only after its own
    factor. Dice and the overlap of masks have this form.
    """
    sides, power = [_Sums(), _Sums()], 0
    for side, value in zip(sides, m.node.inputs, strict=True):
        if not (side.reach(value, 1.0) and side.has_sum):
            return None
        power = max(power, side.power())
    if not 0 < power <= LARGEST_POWER:
        return None
    scaled: dict[Value, Value] = {}
    upper, lower = (_times(m, v, ldexp(1, -power), scaled) for v in m.node.inputs)
    return Rewriter(*m.node.sources).real_div(upper, lower)


LARGEST_POWER = 20
LONGEST = 512.0  # shorter sums of numbers without known ends are not scaled


class _Sums:
    """The largest total of an expression's sums. known: the total of numbers with known ends. count: the number of
    other terms, times their factor."""

    def __init__(self) -> None:
        self.known = self.count = 0.0
        self.nodes = 0
        self.has_sum = False

    def reach(self, value: Value | None, factor: float) -> bool:
        """True if the value is a sum of reductions and nonnegative constants, so that a factor passes to them."""
        value, own = factored(value)
        factor *= abs(own)
        self.nodes += 1
        if value is None or value.dtype.kind != "float" or self.nodes > MOST_OPS:
            return False
        if (known := uniform(value)) is not None:
            return known >= 0
        node = value.node
        if node.op in SUMS:
            x = node.inputs[0]
            assert x is not None
            axes = axes_of(node.attrs["axes"], x.type.rank)
            count = factor * (1 if node.op == "reduce_mean" else prod(x.shape[a] for a in axes))
            if (size := bound(x)) < inf:
                self.known += count * size
            else:
                self.count += count
            self.has_sum = True
            return True
        if (limited := at_least(value)) is not None:
            return self.reach(limited[0], factor)
        if node.op in JOINS:
            return all(self.reach(v, factor) for v in node.inputs)
        return node.op in (*MOVES, "neg") and self.reach(node.inputs[0], factor)

    def power(self) -> int:
        """The power of two by which the sums are divided. Numbers without known ends may have an average of 128; a
        larger power would cost sums of small numbers digits."""
        known = ceil(log2(self.known / ACCUMULATED)) if self.known > ACCUMULATED else 0
        return max(known, ceil(log2(self.count / LONGEST)) if self.count > LONGEST else 0)


def _times(m: Found, value: Value | None, factor: float, scaled: dict[Value, Value]) -> Value:
    """Returns the value with the factor at its reductions. A constant above 0 stays above 0 in fp16."""
    assert value is not None
    if (known := scaled.get(value)) is None:
        known = scaled[value] = _made(m, value, factor, scaled)
    return known


def _made(m: Found, value: Value, factor: float, scaled: dict[Value, Value]) -> Value:
    b, (inner, own) = Rewriter(*m.node.sources), factored(value)
    assert inner is not None
    node = inner.node
    if (known := uniform(value)) is not None:
        least = max(known * factor, SMALLEST) if known else 0.0
        return constant(np.full(value.shape, least, value.dtype.numpy), node.sources)
    if node.op in SUMS:
        x = node.inputs[0]
        assert x is not None
        count = prod(x.shape[a] for a in axes_of(node.attrs["axes"], x.type.rank))
        is_sum = node.op == "reduce_sum"
        (total,) = m.make("reduce_mean" if is_sum else node.op, [m.now(x)], **node.attrs)
        times = factor * own * (count if is_sum else 1)
        return total if times == 1 else b.mul(total, times)
    if own != 1:
        return b.mul(_times(m, inner, factor, scaled), own)
    if (limited := at_least(inner)) is not None:
        return b.maximum(
            _times(m, limited[0], factor, scaled), max(limited[1] * factor, SMALLEST) if limited[1] else 0.0
        )
    count = 2 if node.op in JOINS else 1
    inputs = [_times(m, v, factor, scaled) if i < count else m.now(v) for i, v in enumerate(node.inputs)]
    return m.make(node.op, inputs, **node.attrs)[0]


OVER_TOTAL = Form(
    "numbers over their sum",
    op("real_div") | op("mul"),
    over_total,
    "scaled by the largest number first: the sum is infinite in fp16 before it divides",
)
INSIDE = Form(
    "quotient inside a product",
    op("real_div"),
    quotient_inside,
    "the weights are divided before the product: otherwise the product's sums are infinite in fp16",
)
SUM_OVER_SUM = Form(
    "sum over a sum",
    op("real_div"),
    sum_over_sum,
    "all sums are scaled by one power of two: a sum above 65504 is infinite in fp16 before it is divided",
)

"""Quotients of sums: x over its own sum, and sums over sums. The sums overflow fp16, their quotient does not."""

from math import ceil, floor, inf, ldexp, log2, prod

import numpy as np

from hexane.graph import Value, constant
from hexane.ops import simpler
from hexane.ops.match import Found, made_by, op
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.ends import bound, ends
from hexane.passes.repair.form import Form
from hexane.passes.repair.logarithms import quotient
from hexane.passes.repair.quotients import held_weights, is_held_weight, without_epsilon
from hexane.passes.repair.squares import MOVES, at_least, axes_of, factored, number
from hexane.validate import is_constant

ACCUMULATED = 32768.0  # fp16 and the engine's accumulator hold sums up to this number
MOST = 128.0
SMALLEST = 2.0**-24  # smallest number of fp16
MOST_OPS = 16
SUMS = ("reduce_sum", "reduce_mean", "reduce_sum_square", "reduce_l1_norm")
JOINS = ("add", "sub")


def over_total(m: Found) -> Value | None:
    """%x / (sum(%x) + e)  ->  %u / (sum(%u) + e * f), with %u = %x * f, and with max(sum(%x), e) too

    f is one number per sum and cancels. It makes the largest number of a sum at most 128, and less in long sums.
    """
    x, below = quotient(m.node)
    if x is None or below is None or x.shape != m.node.types[0].shape or x.dtype.kind != "float":
        return None
    epsilon = limit = 0.0
    inner: Value | None = below
    if (limited := at_least(below)) is not None and below.node.op != "relu":
        inner, limit = limited
    inner, epsilon = without_epsilon(inner)
    total = made_by(_moved_from(inner), "reduce_sum", "reduce_l1_norm")
    if total is None or inner is None or is_constant(x.node):
        return None
    is_absolute = total.op == "reduce_l1_norm"
    summed = total.inputs[0]
    if summed is not None and summed != x and summed.node.op == "abs":
        is_absolute, summed = True, summed.node.inputs[0]
    axes = axes_of(total.attrs["axes"], x.type.rank)
    each = tuple(1 if a in axes else d for a, d in enumerate(x.shape))  # the shape of one number per sum
    if summed != x or prod(inner.shape) not in (prod(each), prod(x.shape)) or not _is_aligned(inner, x, each):
        return None
    count = prod(x.shape[a] for a in axes)
    if bound(x) * count <= ACCUMULATED or is_held_weight(x):
        return None
    b = Rewriter(*m.node.sources)
    most = min(MOST, 2.0 ** floor(log2(ACCUMULATED / 2 / count)))
    least = max(epsilon, limit)
    u, f = held_weights(m, x, axes, most, brings_up=least <= simpler.MOST_EPSILON, low=ends(x)[0])
    divisor = b.reduce_sum(b.abs(u) if is_absolute else u, axes=axes)
    if epsilon:
        divisor = b.add(divisor, b.maximum(b.mul(f, epsilon), SMALLEST))
    if limit:
        divisor = b.maximum(divisor, b.maximum(b.mul(f, limit), SMALLEST))
    return b.real_div(u, divisor)


def _moved_from(value: Value | None) -> Value | None:
    """Returns the sum that a reshape or broadcast reads."""
    while value is not None and value.node.op in MOVES:
        value = value.node.inputs[0]
    return value


def _is_aligned(divisor: Value, x: Value, each: tuple[int, ...]) -> bool:
    """True if broadcasting joins each number of x with its own sum."""
    own = (1,) * (x.type.rank - divisor.type.rank) + divisor.shape
    return own == each or (divisor.shape == x.shape and divisor.node.op == "broadcast_to")


def sum_over_sum(m: Found) -> Value | None:
    """(sum(%a) * 2 + e) / (sum(%b) + sum(%c) + e)  ->  the same of sum(%a) * k, sum(%b) * k, sum(%c) * k and e * k

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
LONGEST = 32.0  # sums of so few numbers without known ends are not scaled
SMALLEST_POWER = 14  # 2^-14 is the smallest normal number of fp16


class _Sums:
    """What the sums of an expression may add up to. known: of numbers with known ends. count: the number of terms
    without known ends, times their factor."""

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
        if (known := number(value)) is not None:
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
        """The power of two by which the sums are divided. It makes sums of numbers without known ends a mean if one
        number stays normal in fp16, and otherwise at most 32 times a mean."""
        known = ceil(log2(self.known / ACCUMULATED)) if self.known > ACCUMULATED else 0
        if self.count <= LONGEST:
            return known
        count = ceil(log2(self.count))
        return max(known, min(count, SMALLEST_POWER), count - int(log2(LONGEST)))


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
    if (known := number(value)) is not None:
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
SUM_OVER_SUM = Form(
    "sum over a sum",
    op("real_div"),
    sum_over_sum,
    "all sums are scaled by one power of two: a sum above 65504 is infinite in fp16 before it is divided",
)

"""Softmaxes, sigmoids and tanh written with exponentials, in forms without the exponential that overflows fp16: exp(x)
is infinite from 11.1 on, and 0 below -17."""

from math import inf

from hexane.graph import Node, Value
from hexane.ops.match import Found, made_by, op
from hexane.ops.predicates import axes_of, scalar, uniform
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.form import Form
from hexane.passes.repair.squares import factored, squared

EXP = "exp is infinite in fp16 from 11.1 on"
HIGHEST = 10.0  # For x = 10, softplus(x) - x is 4.5e-5, far below fp16's step of 0.0078.


def held_softplus(b: Rewriter, x: Value) -> Value:
    """Returns max(softplus(min(x, 10)), x), which equals softplus(x) in fp16."""
    return b.maximum(b.softplus(b.clip(x, alpha=-inf, beta=HIGHEST)), x)


def limited(value: Value | None) -> tuple[Value | None, float, float]:
    """Returns x, a and b if the value is min(max(x, a), b) in any spelling, with 0 or infinity for a missing limit."""
    low, high = 0.0, inf
    while value is not None:
        node = value.node
        if node.op == "clip":
            low, high = max(low, float(node.attrs["alpha"])), min(high, float(node.attrs["beta"]))
            value = node.inputs[0]
        elif (found := _limit_by_ops(node)) is None:
            break
        else:
            value, limit, is_lower = found
            low, high = (max(low, limit), high) if is_lower else (low, min(high, limit))
    return value, low, high


def _limit_by_ops(node: Node) -> tuple[Value | None, float, bool] | None:
    """Returns x, the limit, and true for a lower limit, if the node is a maximum or a minimum, also if written as a
    select such as select(x < c, c, x)."""
    if node.op in ("maximum", "minimum"):
        for x, by in (node.inputs, node.inputs[::-1]):
            if (known := uniform(by)) is not None and x is not None and x.shape == node.types[0].shape:
                return x, known, node.op == "maximum"
    names = ("less", "less_equal", "greater", "greater_equal")
    compared = made_by(node.inputs[0], *names) if node.op == "select" else None
    if compared is None:
        return None
    chosen, other = node.inputs[1:]
    smaller, larger = compared.inputs if compared.op.startswith("less") else compared.inputs[::-1]
    for x, limit in ((chosen, other), (other, chosen)):
        known = uniform(limit)
        if known is None or x is None or x.shape != node.types[0].shape:
            continue
        limits = [v for v in (smaller, larger) if uniform(v) == known]
        if x in (smaller, larger) and len(limits) == 1:
            return x, known, (chosen == x) == (larger == x)
    return None


NEAR_1 = 1 - 2.0**-9  # fp16 has few limits between this number and 1.


def rest_of_limit(m: Found) -> Value | None:
    """1 - min(max(%p, a), b)  ->  min(max(1 - %p, 1 - b), 1 - a), for a b below 1 that fp16 does not hold"""
    inner, low, high = limited(complement(m.node))
    if inner is None or inner.shape != m.node.types[0].shape or not (0 <= low < 1 and NEAR_1 < high < 1):
        return None
    b = Rewriter(*m.node.sources)
    return b.clip(b.sub(1.0, m.now(inner)), alpha=1 - high, beta=1 - low)


def rest_of_limited_sigmoid(m: Found) -> Value | None:
    """1 - min(max(sigmoid(%x), a), b)  ->  min(max(sigmoid(-%x), 1 - b), 1 - a), for a and 1 - b of 0 or more"""
    other = complement(m.node)
    inner, low, high = limited(other)
    maker = made_by(inner, "sigmoid")
    if maker is None or inner == other or inner is None or inner.shape != m.node.types[0].shape:
        return None
    if not 0 <= low < 1 or high <= 0:
        return None
    b = Rewriter(*m.node.sources)
    rest = b.sigmoid(b.neg(m.now(maker.inputs[0])))
    return b.clip(rest, alpha=max(1 - high, 0.0), beta=1 - low)


def rest_of_sigmoid(m: Found) -> Value | None:
    """1 - sigmoid(%x)  ->  sigmoid(-%x)"""
    other = complement(m.node)
    maker = made_by(other, "sigmoid")
    if maker is None or other is None or other.shape != m.node.types[0].shape:
        return None
    b = Rewriter(*m.node.sources)
    return b.sigmoid(b.neg(m.now(maker.inputs[0])))


def complement(node: Node) -> Value | None:
    """Returns x if the node computes 1 - x, also as 1 + (-x), else None."""
    if node.op == "sub" and uniform(node.inputs[0]) == 1:
        return node.inputs[1]
    for one, other in (node.inputs, node.inputs[::-1]) if node.op == "add" else ():
        if uniform(one) == 1 and (negative := made_by(other, "neg")) is not None:
            return negative.inputs[0]
    return None


def softmax_with_epsilon(m: Found) -> Value | None:
    """exp(%x) / (reduce_sum(exp(%x)) + e)  ->  p / (reduce_sum(p) + e * exp(-max(%x))), p = exp(%x - max(%x))"""
    exp, by = quotient(m.node)
    added = made_by(by, "add")
    maker = made_by(exp, "exp")
    x = None if maker is None else maker.inputs[0]
    if added is None or x is None or less_its_largest(x):
        return None
    for sums, e in (added.inputs, added.inputs[::-1]):
        total, epsilon = made_by(sums, "reduce_sum", "reduce_l1_norm"), scalar(e)
        if total is None or epsilon is None or epsilon < 0 or total.inputs[0] != exp or not total.attrs["keep_dims"]:
            continue
        b, now = Rewriter(*m.node.sources), m.now(x)
        assert now is not None
        top = b.reduce_max(now, axes=total.attrs["axes"])
        powers = b.exp(b.sub(now, top))
        rest = b.mul(b.exp(b.neg(top)), epsilon)
        return b.real_div(powers, b.add(b.reduce_sum(powers, axes=total.attrs["axes"]), rest))
    return None


def softmax(m: Found) -> Value | None:
    """exp(%x) / reduce_sum(exp(%x))  ->  softmax(%x)"""
    if m.node.op == "lp_norm":
        return _softmax_by_norm(m)
    exp, by = quotient(m.node)
    total = made_by(by, "reduce_sum", "reduce_l1_norm")
    maker = made_by(exp, "exp")
    if total is None or maker is None or total.inputs[0] != exp or not total.attrs["keep_dims"]:
        return None
    x = maker.inputs[0]
    assert x is not None
    axes = axes_of(total.attrs["axes"], x.type.rank)
    if len(axes) != 1 or less_its_largest(x):
        return None
    return m.make("softmax", [m.now(x)], axis=axes[0])[0]


def _softmax_by_norm(m: Found) -> Value | None:
    """lp_norm(exp(%x), p=1)  ->  softmax(%x)"""
    maker = made_by(m.node.inputs[0], "exp")
    x = None if maker is None else maker.inputs[0]
    if x is None or m.node.attrs["p"] != 1 or less_its_largest(x):
        return None
    return m.make("softmax", [m.now(x)], axis=m.node.attrs["axis"])[0]


def quotient(node: Node) -> tuple[Value | None, Value | None]:
    """Returns a and b if the node computes a / b or a * (1 / b), else (None, None)."""
    if node.op == "real_div":
        return node.inputs[0], node.inputs[1]
    for above, inverse in (node.inputs, node.inputs[::-1]):
        maker = made_by(inverse, "inverse", "real_div", "pow")
        if maker is None or above is None or above.shape != node.types[0].shape:
            continue
        if maker.op == "inverse" or (maker.op == "pow" and scalar(maker.inputs[1]) == -1):
            return above, maker.inputs[0]
        if maker.op == "real_div" and scalar(maker.inputs[0]) == 1:
            return above, maker.inputs[1]
    return None, None


def sigmoid(m: Found) -> Value | None:
    """exp(%x) / (exp(%x) + 1)  ->  sigmoid(%x)"""
    above, below = quotient(m.node)
    exp, added = made_by(above, "exp"), made_by(below, "add")
    if (
        exp is None
        or added is None
        or not any(v == above and scalar(one) == 1 for v, one in (added.inputs, added.inputs[::-1]))
    ):
        return None
    return Rewriter(*m.node.sources).sigmoid(m.now(exp.inputs[0]))


def mish_fraction(m: Found) -> Value | None:
    """%x * %n / (%n + 2)  ->  %x * tanh(softplus(%x)), with %n = exp(%x)^2 + 2 * exp(%x)

    Applies also without the factor %x. tanh(log(1 + e)) is ((1 + e)^2 - 1) / ((1 + e)^2 + 1).
    """
    above, below = quotient(m.node)
    added = made_by(below, "add")
    for n, two in () if added is None else (added.inputs, added.inputs[::-1]):
        x = None if n is None or uniform(two) != 2 else _of_mish(n)
        if x is None or n is None or n.shape != m.node.types[0].shape:
            continue
        b, product, now = Rewriter(*m.node.sources), made_by(above, "mul"), m.now(x)
        assert now is not None
        y = b.tanh(held_softplus(b, now))
        if above == n:
            return y
        if product is not None and n in product.inputs:
            return b.mul(m.now(product.inputs[1 - product.inputs.index(n)]), y)
    return None


def _of_mish(value: Value) -> Value | None:
    """Returns x if the value is exp(x)^2 + 2 * exp(x) or exp(x) * (exp(x) + 2), else None."""
    node = value.node
    for first, second in (node.inputs, node.inputs[::-1]) if node.op in ("add", "mul") else ():
        if node.op == "add":
            exp, factor = factored(second)
            is_it = factor == 2 and squared(first) == exp
        else:
            exp, more = first, made_by(second, "add")
            is_it = more is not None and first in more.inputs and any(uniform(v) == 2 for v in more.inputs)
        maker = made_by(exp, "exp")
        if is_it and maker is not None:
            return maker.inputs[0]
    return None


def tanh(m: Found) -> Value | None:
    """(exp(%x) - 1) / (exp(%x) + 1)  ->  tanh(%x / 2), and (exp(%x) - exp(-%x)) / (exp(%x) + exp(-%x))  ->  tanh(%x)"""
    above, below = quotient(m.node)
    less, added = made_by(above, "sub"), made_by(below, "add")
    if less is None or added is None:
        return None
    first, second = less.inputs
    exp = made_by(first, "exp")
    if exp is None:
        return None
    b, x = Rewriter(*m.node.sources), exp.inputs[0]
    if scalar(second) == 1:
        is_same = any(v == first and scalar(one) == 1 for v, one in (added.inputs, added.inputs[::-1]))
        return b.tanh(b.mul(m.now(x), 0.5)) if is_same else None
    other = made_by(second, "exp")
    inner, factor = (None, 1.0) if other is None else factored(other.inputs[0])
    negated = made_by(inner, "neg")
    is_negative = (inner == x and factor == -1) or (negated is not None and negated.inputs[0] == x and factor == 1)
    if not is_negative or set(added.inputs) != {first, second}:
        return None
    return b.tanh(m.now(x))


def less_its_largest(x: Value) -> bool:
    """True if x is %a - max(%a), so that fp16 holds its exponentials."""
    node = made_by(x, "sub")
    return node is not None and made_by(node.inputs[1], "reduce_max") is not None


FORMS = (
    Form("rest of a sigmoid", op("sub") | op("add"), rest_of_sigmoid, quiet=True),
    Form("rest of a limited sigmoid", op("sub") | op("add"), rest_of_limited_sigmoid, quiet=True),
    Form(
        "rest of a limit",
        op("sub") | op("add"),
        rest_of_limit,
        "the difference from 1 is limited instead of the number: a limit such as 0.99999 is 1 in fp16",
    ),
    Form(
        "softmax with an epsilon",
        op("real_div") | op("mul"),
        softmax_with_epsilon,
        f"the largest number is taken off first: {EXP}",
    ),
    Form(
        "softmax",
        op("real_div") | op("mul") | op("lp_norm"),
        softmax,
        f"written as softmax, which takes off the largest number: {EXP}",
    ),
    Form(
        "mish as a fraction",
        op("real_div") | op("mul"),
        mish_fraction,
        f"written with softplus and tanh: {EXP}",
    ),
    Form("sigmoid", op("real_div") | op("mul"), sigmoid, f"written as sigmoid: {EXP}"),
    Form("tanh", op("real_div") | op("mul"), tanh, f"written as tanh: {EXP}"),
)

"""Moves factors so that fp16 holds all intermediate products: after a quotient, into a scale, or out of a power."""

from math import ceil, frexp, ldexp, log2

from hexane.bounds.any_input import bound
from hexane.graph import Value
from hexane.ops.match import Found, made_by, op
from hexane.ops.predicates import scalar, uniform
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.form import Form
from hexane.passes.repair.products import ACCUMULATED, LARGEST
from hexane.passes.repair.squares import factored, squared
from hexane.validate import is_constant

MOST_BEHIND = 16.0  # small quotients would lose digits to a larger factor
SMALLEST_POWER = -14  # 2^-14 divided by a scale of at most 1 is a normal number of fp16.
MOST_OUT = 8  # 2^-8 times an epsilon of 1 is a normal number of fp16.
WINDOWS = ("avg_pool", "reduce_sum", "reduce_mean", "conv")
MOVES = ("reshape", "expand_dims", "squeeze", "pad", "transpose")


def merged(m: Found) -> Value | None:
    """mean(%x) * 300 / 299  ->  mean(%x) * (300 / 299), for a first factor above 1 and a second one below 1, and for
    other reductions"""
    node = m.node
    reduced, factor = factored(node.values[0])
    first = m.alone(node.inputs[0], "mul", "real_div")
    second = uniform(node.inputs[1])
    if first is None or not second or reduced is None or reduced.node.op not in REDUCTIONS:
        return None
    own = second if node.op == "mul" else 1 / second
    if reduced.shape != node.types[0].shape or not abs(own) < 1 < abs(factor / own):
        return None
    return Rewriter(*node.sources).mul(m.now(reduced), factor)


REDUCTIONS = ("reduce_mean", "reduce_sum", "reduce_sum_square", "reduce_l1_norm")


def factor_behind_quotient(m: Found) -> Value | None:
    """%x * 8 / %d  ->  %x / %d * 8, for a computed %d and factors from 2 to 16"""
    above, divisor = m.node.inputs
    product = m.alone(above, "mul")
    if product is None or divisor is None or is_constant(divisor.node) or m.node.types[0].dtype.kind != "float":
        return None
    if made_by(factored(divisor)[0], "inverse") is not None:  # a scale that another form made
        return None
    for x, by in (product.inputs, product.inputs[::-1]):
        factor = uniform(by)
        if factor is None or x is None or is_constant(x.node) or not 2 <= abs(factor) <= MOST_BEHIND:
            continue
        if x.shape == m.node.types[0].shape and bound(x) * abs(factor) > LARGEST:
            b = Rewriter(*m.node.sources)
            return b.mul(b.real_div(m.now(x), m.now(divisor)), factor)
    return None


def factor_of_scaled(m: Found) -> Value | None:
    """%u / f * c  ->  %u * (2^n / f) * rest, where f is a scale from 1 / 512 to 1 that another form made

    |c| is below 1/2, 2^n is the largest power of two up to |c|, but at least 2^-14, and rest is c / 2^n.
    """
    inner, factor = factored(m.node.values[0])
    quotient = m.alone(inner, "real_div")
    scale = None if quotient is None else quotient.inputs[1]
    if quotient is None or scale is None or inner is None or not 0 < abs(factor) < 0.5:
        return None
    if not is_made_scale(scale) or inner.shape != m.node.types[0].shape:
        return None
    b, power = Rewriter(*m.node.sources), max(frexp(factor)[1] - 1, SMALLEST_POWER)
    u, f = (m.now(v) for v in quotient.inputs)
    y, rest = b.mul(u, b.real_div(ldexp(1, power), f)), factor / ldexp(1, power)
    return y if rest == 1 else b.mul(y, rest)


def is_made_scale(value: Value) -> bool:
    """True if the value is a scale that another form has computed from a largest number."""
    scale, _ = factored(value)
    scale = scale.node.inputs[0] if scale is not None and scale.node.op == "reshape" else scale
    inverse = made_by(scale, "inverse")
    top = None if inverse is None else made_by(inverse.inputs[0], "mul")
    return top is not None and made_by(top.inputs[0], "maximum") is not None


def factor_out_of_power(m: Found) -> Value | None:
    """pow(avg_pool(%x^2) * c + e, p)  ->  pow(avg_pool(%x^2) * (c / 16) + e / 16, p) * 16^p, for p from -1 to 1

    Local response normalisation is such a power. If x is beyond 25,000, the sum overflows fp16 but its power does not.
    """
    power = scalar(m.node.inputs[1])
    added = m.alone(m.node.inputs[0], "add")
    if power is None or added is None or not 0 < abs(power) <= 1:
        return None
    for value, by in (added.inputs, added.inputs[::-1]):
        epsilon, (window, factor) = uniform(by), factored(value)
        if epsilon is None or value is None or not 1 <= epsilon <= MOST_BEHIND or not 0 < factor < 1:
            continue
        x = _squares_of(window)
        most = 0.0 if x is None else min(bound(x), LARGEST) ** 2 * factor
        if window is None or not ACCUMULATED < most <= ldexp(ACCUMULATED, MOST_OUT):
            continue
        out = ceil(log2(most / ACCUMULATED))
        b = Rewriter(*m.node.sources)
        total = b.add(b.mul(m.now(window), factor * ldexp(1, -out)), epsilon * ldexp(1, -out))
        return b.mul(b.pow(total, power), 2.0 ** (out * power))
    return None


def _squares_of(value: Value | None) -> Value | None:
    """Returns x if the value is a window sum or mean of x^2, else None."""
    while value is not None and value.node.op in (*WINDOWS, *MOVES):
        value, _ = factored(value.node.inputs[0])
    return squared(value)


MERGED = Form("merged factors", op("mul") | op("real_div"), merged, quiet=True)
BEHIND = Form(
    "factor behind a quotient",
    op("real_div"),
    factor_behind_quotient,
    "the factor is applied after the quotient: the product may be infinite in fp16 where the quotient is not",
)
SCALED = Form("factor of a scale", op("mul") | op("real_div"), factor_of_scaled, quiet=True)
OUT = Form(
    "factor out of a power",
    op("pow"),
    factor_out_of_power,
    "a power of two is moved out of the power: the sum of squares may be infinite in fp16 where its power is not",
)

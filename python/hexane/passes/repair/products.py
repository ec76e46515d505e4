"""Products of two computed tensors whose factor comes behind them: attention scores before their scale."""

from math import frexp, ldexp

from hexane.graph import Value
from hexane.ops.match import Found, op
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.form import Form
from hexane.passes.repair.squares import factored
from hexane.validate.constants import is_constant

LEAST_POWER = -16
SHARED_FROM = -6  # smaller powers of two scale both operands, so that neither leaves fp16's normal numbers


def factor_ahead(m: Found) -> Value | None:
    """matmul(%q, %k) * 0.125  ->  matmul(%q * 0.125, %k), for two computed operands

    The power of two moves, which changes no digit; the rest of the factor, from 1 to 2, stays behind.
    """
    inner, factor = factored(m.node.values[0])
    product = m.alone(inner, "matmul")
    if product is None or product.inputs[2] is not None:
        return None
    power = _power(factor)
    if power is None or any(_is_fixed(v) for v in product.inputs[:2]):
        return None
    b = Rewriter(*m.node.sources)
    x, y = _scaled(b, power, m.now(product.inputs[0]), m.now(product.inputs[1]))
    made = b.matmul(x, y, **product.attrs)
    rest = factor / ldexp(1, power)
    return made if rest == 1 else b.mul(made, rest)


def _power(factor: float) -> int | None:
    """The exponent of the power of two that moves; None where the factor is not below 1."""
    if not ldexp(1, -LARGEST_SHIFT) <= abs(factor) < 1:
        return None
    return max(frexp(factor)[1] - 1, LEAST_POWER)


LARGEST_SHIFT = 40  # a factor below is no scale of scores


def _scaled(b: Rewriter, power: int, x: Value | None, y: Value | None) -> tuple[Value, Value]:
    assert x is not None
    assert y is not None
    if power >= SHARED_FROM:
        return b.mul(x, ldexp(1, power)), y
    half = power // 2
    return b.mul(x, ldexp(1, half)), b.mul(y, ldexp(1, power - half))


def _is_fixed(value: Value | None) -> bool:
    """Whether it is a weight: its factor is folded into it or is the layer's gain."""
    return value is None or value.node.op == "param" or is_constant(value.node)


WHY = (
    "the power of two in the scale is moved ahead of the product: scores that reach 32768 before their scale are "
    "infinite in the engine's accumulator"
)
PRODUCT = Form("product", op("mul") | op("real_div"), factor_ahead, WHY)

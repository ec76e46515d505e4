"""Quotients whose two sides grow alike: of norms and their mean, of products and sums of products."""

from hexane.graph import Value
from hexane.ops.match import Found, made_by, op
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.ends import LARGEST_GATE, bound, ends
from hexane.passes.repair.factors import is_made_scale
from hexane.passes.repair.form import Form
from hexane.passes.repair.squares import axes_of, factored, number
from hexane.validate import is_constant

SMALLEST = 2.0**-24  # above 0 in fp16


def without_epsilon(value: Value | None) -> tuple[Value | None, float]:
    """x and e, of x + e for e of 0 or more."""
    if value is not None and value.node.op == "add":
        for x, by in (value.node.inputs, value.node.inputs[::-1]):
            if (known := number(by)) is not None and known >= 0 and x is not None and x.shape == value.shape:
                return x, known
    return value, 0.0


def over_mean(m: Found) -> Value | None:
    """(%u / %f) / (mean(%u / %f) + e)  ->  %v / (mean(%v) + e * t), with %v = %u * (t / %f) and t = min(%f)

    %f are the scales by which another form holds norms. Global response normalisation of ConvNeXt V2 divides so.
    """
    above, below = m.node.inputs
    inner, epsilon = without_epsilon(below)
    mean = made_by(inner, "reduce_mean")
    quotient = made_by(above, "real_div")
    if above is None or mean is None or quotient is None or mean.inputs[0] != above or not mean.attrs["keep_dims"]:
        return None
    u, f = quotient.inputs
    if u is None or f is None or not is_made_scale(f) or above.shape != m.node.types[0].shape or f.shape != above.shape:
        return None
    b, scale = Rewriter(*m.node.sources), m.now(f)
    assert scale is not None
    axes = axes_of(mean.attrs["axes"], above.type.rank)
    least = b.neg(b.reduce_max(b.neg(scale), axes=axes))
    v = b.mul(m.now(u), b.real_div(least, scale))
    total = b.reduce_mean(v, axes=axes)
    if epsilon:
        total = b.maximum(b.add(total, b.mul(least, epsilon)), SMALLEST)
    return b.real_div(v, total)


def product_over_sum(m: Found) -> Value | None:
    """%a * %b / (%a + %b + e)  ->  min(%a, %b) * (max(%a, %b) / (%a + %b + e)), for %a and %b of 0 or more

    The quotient is from 1/2 to 1. A factor of the product stays behind.
    """
    above, divisor = m.node.inputs
    inner, factor = factored(above)
    product, total = made_by(inner, "mul"), made_by(without_epsilon(divisor)[0], "add")
    if product is None or total is None or inner is None or inner.shape != m.node.types[0].shape:
        return None
    (a, first), (b, second) = (factored(v) for v in product.inputs)
    factor *= first * second
    if a is None or b is None or a == b or {a, b} != set(total.inputs):
        return None
    if a.dtype.kind != "float" or any(v.shape != inner.shape or is_constant(v.node) for v in (a, b)):
        return None
    if any(ends(v)[0] < 0 for v in (a, b)) or min(bound(a), bound(b)) <= LARGEST_GATE:
        return None
    w = Rewriter(*m.node.sources)
    x, y = m.now(a), m.now(b)
    result = w.mul(w.minimum(x, y), w.real_div(w.maximum(x, y), m.now(divisor)))
    return result if factor == 1 else w.mul(result, factor)


OVER_MEAN = Form(
    "quotient of norms",
    op("real_div"),
    over_mean,
    "norms are held by one scale: one above 65504 is infinite in fp16 before it is divided",
)
PRODUCT_OVER_SUM = Form(
    "product over a sum",
    op("real_div"),
    product_over_sum,
    "the larger operand is divided first: a product beyond 65504 is infinite in fp16 before it is divided",
)

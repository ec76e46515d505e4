"""Quotients in which a factor cancels: norms over their mean, and products or weighted sums over sums."""

from math import prod

from hexane.graph import Value
from hexane.ops import simpler
from hexane.ops.match import Found, made_by, op
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.ends import LARGEST_GATE, bound, ends
from hexane.passes.repair.factors import is_made_scale
from hexane.passes.repair.form import Form
from hexane.passes.repair.norms import is_scaled
from hexane.passes.repair.squares import at_least, axes_of, factored, fitted, number
from hexane.validate import is_constant

MOST_UP = 64.0  # the largest epsilon with which small weights are scaled up
SMALLEST = 2.0**-24  # smallest number of fp16


def without_epsilon(value: Value | None) -> tuple[Value | None, float]:
    """Returns x and e if the value is x + e with constant e >= 0. Returns the value and 0 otherwise."""
    if value is not None and value.node.op == "add":
        for x, by in (value.node.inputs, value.node.inputs[::-1]):
            if (known := number(by)) is not None and known >= 0 and x is not None and x.shape == value.shape:
                return x, known
    return value, 0.0


def over_mean(m: Found) -> Value | None:
    """(%u / %f) / (mean(%u / %f) + e)  ->  %v / (mean(%v) + e * t), with %v = %u * (t / %f) and t = min(%f)

    %f are scales with which another form has divided norms. Global response normalisation of ConvNeXt V2 has this form.
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
    """%a * %b / (%a + %b + e)  ->  min(%a, %b) * (max(%a, %b) / (%a + %b + e)), for %a and %b >= 0

    The quotient is between 1/2 and 1 if e is small. A constant factor of the product is applied last.
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


def weighted_mean(m: Found) -> Value | None:
    """sum(%x * %w) / (sum(%w) + e)  ->  mean(%x * %v) / (mean(%v) + e * f / n), with %v = %w * f, at most 1

    f is one number per sum. Weights that are a graph input are skipped: they are usually a mask.
    """
    above, below = m.node.inputs
    inner, epsilon = without_epsilon(below)
    limited = None
    if inner is not None and inner.node.op != "relu" and (limit := at_least(inner)) is not None and not epsilon:
        inner, limited = limit
    upper, lower = made_by(above, "reduce_sum"), made_by(inner, "reduce_sum")
    product = None if upper is None else made_by(upper.inputs[0], "mul")
    if (
        upper is None
        or lower is None
        or product is None
        or inner is None
        or above is None
        or inner.shape != above.shape
    ):
        return None
    weights = lower.inputs[0]
    if weights is None or weights not in product.inputs or weights.shape != product.types[0].shape:
        return None
    axes = axes_of(lower.attrs["axes"], weights.type.rank)
    same = axes_of(upper.attrs["axes"], weights.type.rank) == axes
    if not same or weights.dtype.kind != "float" or upper.attrs["keep_dims"] != lower.attrs["keep_dims"]:
        return None
    if weights.node.op == "input" or is_constant(weights.node) or bound(weights) <= LARGEST_GATE or is_scaled(weights):
        return None
    x = product.inputs[1 - product.inputs.index(weights)]
    b, now = Rewriter(*m.node.sources), m.now(weights)
    assert now is not None
    v, f = simpler.held(b, now, axes, 1.0, brings_up=max(epsilon, limited or 0.0) <= MOST_UP)
    keep = lower.attrs["keep_dims"]
    total = b.reduce_mean(b.mul(v if x == weights else m.now(x), v), axes=axes, keep_dims=keep)
    if x == weights:
        total = b.real_div(total, fitted(b, f, above.shape))
    divisor = b.reduce_mean(v, axes=axes, keep_dims=keep)
    least = max(epsilon, limited or 0.0) / prod(weights.shape[a] for a in axes)
    if least:
        scaled = b.maximum(b.mul(fitted(b, f, above.shape), least), SMALLEST)
        divisor = b.add(divisor, scaled) if epsilon else b.maximum(divisor, scaled)
    return b.real_div(total, divisor)


WEIGHTED = Form(
    "weights of a mean",
    op("real_div"),
    weighted_mean,
    "the weights are divided by the largest of them: their products and their sum are infinite in fp16 otherwise",
)
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

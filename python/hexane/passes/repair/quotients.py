"""Quotients in which a factor cancels: norms over their mean, and products or weighted sums over sums."""

from math import prod

from hexane.bounds.any_input import LARGEST_GATE, bound, ends
from hexane.graph import Value
from hexane.ops.match import Found, made_by, op
from hexane.ops.predicates import axes_of, uniform
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.factors import is_made_scale
from hexane.passes.repair.form import Form
from hexane.passes.repair.held_weights import SMALLEST, held_weights, is_held_weight
from hexane.passes.repair.squares import at_least, factored, fitted
from hexane.validate import is_constant

MOST_UP = 64.0  # the largest epsilon with which small weights are scaled up.


def without_epsilon(value: Value | None) -> tuple[Value | None, float]:
    """Returns x and e if the value is x + e with constant e >= 0, else the value and 0."""
    if value is not None and value.node.op == "add":
        for x, by in (value.node.inputs, value.node.inputs[::-1]):
            if (known := uniform(by)) is not None and known >= 0 and x is not None and x.shape == value.shape:
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
    """%a * %b / (%a + %b + e)  ->  %s * (%t / (%a + %b + e)), with %t the larger operand by magnitude and %s the other

    For %a and %b >= 0 the quotient is between 1/2 and 1 if e is small. A constant factor of the product is applied
    last.
    """
    above, divisor = m.node.inputs
    inner, factor = factored(above)
    product, total = made_by(inner, "mul"), made_by(without_epsilon(divisor)[0], "add")
    if product is None or total is None or inner is None or inner.shape != m.node.types[0].shape:
        return None
    (a, first), (b, second) = (factored(v) for v in product.inputs)
    if set(product.inputs) == set(total.inputs):
        (a, b), first, second = product.inputs, 1.0, 1.0
    factor *= first * second
    if a is None or b is None or a == b or {a, b} != set(total.inputs):
        return None
    if a.dtype.kind != "float" or any(v.shape != inner.shape or is_constant(v.node) for v in (a, b)):
        return None
    if min(bound(a), bound(b)) <= LARGEST_GATE:
        return None
    w = Rewriter(*m.node.sources)
    x, y = m.now(a), m.now(b)
    assert x is not None
    assert y is not None
    if all(ends(v)[0] >= 0 for v in (a, b)):
        small, large = w.minimum(x, y), w.maximum(x, y)
    else:
        is_less = w.less(w.abs(x), w.abs(y))
        small, large = w.select(is_less, x, y), w.select(is_less, y, x)
    result = w.mul(small, w.real_div(large, m.now(divisor)))
    return result if factor == 1 else w.mul(result, factor)


def weighted_mean(m: Found) -> Value | None:
    """sum(%x * %w) / (sum(%w) + e)  ->  mean(%x * %v) / (mean(%v) + e * f / n), with %v = %w * f, at most 1

    For %w = exp(%s), %v is exp(%s - max(%s)). f is one number per sum, or one for all sums if %w is reshaped or
    broadcast in the product.
    """
    above, below = m.node.inputs
    inner, epsilon = without_epsilon(below)
    limited = None
    if inner is not None and inner.node.op != "relu" and (limit := at_least(inner)) is not None and not epsilon:
        inner, limited = limit
    upper, lower = made_by(above, "reduce_sum"), made_by(inner, "reduce_sum")
    product = None if upper is None else made_by(upper.inputs[0], "mul")
    if upper is None or lower is None or product is None or inner is None or above is None:
        return None
    weights, keep = lower.inputs[0], lower.attrs["keep_dims"]
    place = next((i for i, v in enumerate(product.inputs) if _root(v) == _root(weights)), None)
    if weights is None or place is None or weights.dtype.kind != "float":
        return None
    shape, axes = product.types[0].shape, axes_of(lower.attrs["axes"], weights.type.rank)
    over = axes_of(upper.attrs["axes"], len(shape))
    count = prod(weights.shape[a] for a in axes)
    if count != prod(shape[a] for a in over):
        return None
    root = _root(weights)
    if root is None or is_constant(root.node) or bound(weights) <= LARGEST_GATE or _is_held(weights):
        return None
    own, x = product.inputs[place], product.inputs[1 - place]
    is_same = own == weights and axes == over and upper.attrs["keep_dims"] == keep
    per_sum = is_same and weights.type.rank == len(shape) and above.type.rank == inner.type.rank
    b, scaled = Rewriter(*m.node.sources), weights if per_sum else root
    each = axes if per_sum else axes_of((), root.type.rank)
    assert own is not None
    least = max(epsilon, limited or 0.0)
    u, f, rest = held_weights(m, scaled, each, 1.0, least / count, brings_up=least <= MOST_UP)
    v, factor = (_rebuilt(m, value, scaled, u) for value in (weights, own))
    other = factor if x == own else m.now(x)
    total = b.reduce_mean(b.mul(other, factor), axes=over, keep_dims=upper.attrs["keep_dims"])
    if x == own:
        if f is None:
            return None
        total = b.real_div(total, fitted(b, f, above.shape) if per_sum else _one(b, f, total))
    divisor = b.reduce_mean(v, axes=axes, keep_dims=keep)
    if rest is not None:
        rest = fitted(b, rest, inner.shape) if per_sum else _one(b, rest, divisor)
        divisor = b.add(divisor, rest) if epsilon else b.maximum(divisor, rest)
    return b.real_div(total, divisor)


MOVES = ("reshape", "expand_dims", "squeeze", "broadcast_to", "identity")


def _root(value: Value | None) -> Value | None:
    """Returns the tensor that reshapes and broadcasts read."""
    while value is not None and value.node.op in MOVES:
        value = value.node.inputs[0]
    return value


def _rebuilt(m: Found, value: Value, source: Value, u: Value) -> Value:
    """Returns the value with u in place of the tensor that its reshapes and broadcasts read."""
    if value == source:
        return u
    first = value.node.inputs[0]
    assert first is not None
    y = _rebuilt(m, first, source, u)
    return m.make(value.node.op, [y, *map(m.now, value.node.inputs[1:])], **value.node.attrs)[0]


def _one(b: Rewriter, f: Value, like: Value) -> Value:
    """Reshapes one number to the rank of a value."""
    return b.reshape(f, shape=(1,) * like.type.rank)


def _is_held(value: Value) -> bool:
    """True if the value, or the tensor that its reshapes read, has a factor computed from its largest number."""
    return any(v is not None and is_held_weight(v) for v in (value, _root(value)))


WEIGHTED = Form(
    "weights of a mean",
    op("real_div"),
    weighted_mean,
    "the weights are divided by the largest weight: otherwise their products and their sum are infinite in fp16",
)
OVER_MEAN = Form(
    "quotient of norms",
    op("real_div"),
    over_mean,
    "all norms share one scale: a norm above 65504 is infinite in fp16 before it is divided",
)
PRODUCT_OVER_SUM = Form(
    "product over a sum",
    op("real_div"),
    product_over_sum,
    "the larger operand is divided first: a product beyond 65504 is infinite in fp16 before it is divided",
)

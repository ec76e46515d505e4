"""Deviations with attention weights, sum(a * x^2) - sum(a * x)^2: the statistics pooling of speaker networks."""

from hexane.graph import Value
from hexane.ops import simpler
from hexane.ops.match import Found, made_by, op
from hexane.ops.predicates import axes_of, scalar
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.form import Form
from hexane.passes.repair.quotients import without_epsilon
from hexane.passes.repair.squares import at_least, fitted, squared


def deviation(m: Found) -> Value | None:
    """sqrt(max(sum(%a * %x^2) - sum(%a * %x)^2, e))  ->  sqrt(max(sum(%a * %u^2), e * f^2)) / f, with
    %u = (%x - sum(%a * %x)) * f, where %a is a softmax along the axis of the sum

    The result is equal because %a adds up to 1. In a form without the root, the sum is divided by f twice.
    """
    node, inside, least = m.node, 0.0, 0.0
    value: Value | None = node.values[0]
    is_root = node.op != "sub"
    if is_root:
        if node.op == "pow" and scalar(node.inputs[1]) != 0.5:
            return None
        value = node.inputs[0]
        if value is not None and (limit := at_least(value)) is not None:
            value, least = limit
        value, inside = without_epsilon(value)
        if value is not None and not least and (limit := at_least(value)) is not None:
            value, least = limit[0], limit[1] + inside  # max(s, l) + e is max(s + e, l + e)
    parts = None if value is None else _parts(value)
    if parts is None or max(inside, least) > simpler.MOST_EPSILON:
        return None
    a, x, axes = parts
    b, weights, now = Rewriter(*node.sources), m.now(a), m.now(x)
    assert now is not None
    u, f = simpler.held(b, b.sub(now, b.reduce_sum(b.mul(weights, now), axes=axes)), axes, brings_up=True)
    total = b.reduce_sum(b.mul(weights, b.square(u)), axes=axes)
    if not is_root:
        return fitted(b, b.real_div(b.real_div(total, f), f), node.types[0].shape)
    total = b.add(total, simpler.scaled_epsilon(b, f, inside)) if inside else total
    total = b.maximum(total, simpler.scaled_epsilon(b, f, least)) if least else total
    return fitted(b, b.real_div(b.sqrt(total), f), node.types[0].shape)


def _parts(value: Value) -> tuple[Value, Value, tuple[int, ...]] | None:
    """Returns the weights, the numbers and the axes if the value is sum(%a * %x^2) - sum(%a * %x)^2, else None."""
    node = made_by(value, "sub")
    if node is None:
        return None
    upper, mean = made_by(node.inputs[0], "reduce_sum"), made_by(squared(node.inputs[1]), "reduce_sum")
    if upper is None or mean is None or upper.attrs["keep_dims"] != mean.attrs["keep_dims"]:
        return None
    product = made_by(mean.inputs[0], "mul")
    if product is None:
        return None
    for a, x in (product.inputs, product.inputs[::-1]):
        if a is None or x is None or a.node.op != "softmax" or x.shape != product.types[0].shape:
            continue
        axes = axes_of(mean.attrs["axes"], x.type.rank)
        along = a.node.attrs["axis"] % a.type.rank + x.type.rank - a.type.rank
        if (
            axes != (along,)
            or axes_of(upper.attrs["axes"], x.type.rank) != axes
            or a.shape[along - x.type.rank] != x.shape[along]
        ):
            continue
        if _is_weighted_square(upper.inputs[0], a, x):
            return a, x, axes
    return None


def _is_weighted_square(value: Value | None, a: Value, x: Value) -> bool:
    """True if the value is %a * %x^2 or (%a * %x) * %x."""
    node = made_by(value, "mul")
    if node is None:
        return False
    pairs = (node.inputs, node.inputs[::-1])
    return any((u == a and squared(v) == x) or (v == x and _is_product(u, a, x)) for u, v in pairs)


def _is_product(value: Value | None, a: Value, x: Value) -> bool:
    node = made_by(value, "mul")
    return node is not None and node.inputs in ((a, x), (x, a))


DEVIATION = Form(
    "deviation by weights",
    op("sub") | op("sqrt") | op("pow"),
    deviation,
    "written as the weighted mean of squared differences: squares of numbers beyond 256 are infinite in fp16, and the "
    "digits of their difference cancel",
)

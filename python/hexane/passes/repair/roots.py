"""Roots of squares and powers that are no norms: hypotenuses, windows and generalised means."""

from math import isclose, prod, sqrt

from hexane.bounds.any_input import bound, ends
from hexane.graph import Node, Value
from hexane.ops import simpler
from hexane.ops.match import Found, made_by, op
from hexane.ops.predicates import axes_of, scalar, uniform
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.form import SQUARES, Form, any_of
from hexane.passes.repair.scales import LARGEST_ROOT, LARGEST_SAFE, finite
from hexane.passes.repair.squares import factored, fitted, squared
from hexane.validate import is_constant


def root_of_windows(m: Found) -> Value | None:
    """sqrt(avg_pool(%x^2) * c + e)  ->  sqrt(avg_pool((%x * f)^2) * c + e * f^2) / f, with one f per plane

    The result is equal because the mean of a window is linear and f is constant in the plane. A convolution also adds
    channels, so there is one f per image.
    """
    value, epsilon = m.node.inputs[0], 0.0
    if m.node.op == "pow" and scalar(m.node.inputs[1]) != 0.5:
        return None
    if (more := _with_epsilon(value)) is not None:
        value, epsilon = more
    pooled, factor = factored(value)
    pool = made_by(pooled, "avg_pool", "conv")
    x = None if pool is None else squared(pool.inputs[0])
    if pool is None or x is None or not factor > 0 or pool.attrs["layout"] != "nchw" or bound(x) <= LARGEST_SAFE:
        return None
    weights, bias = pool.inputs[1:3] if pool.op == "conv" else (None, None)
    if _is_held(x) or bias is not None or (weights is not None and not is_constant(weights.node)):
        return None
    b, now = Rewriter(*m.node.sources), m.now(x)
    assert now is not None
    axes = tuple(range(2 if pool.op == "avg_pool" else 1, x.type.rank))
    most = simpler.LARGEST_SQUARED
    least = most / simpler.MOST_UP if epsilon <= simpler.MOST_EPSILON else most
    f = b.inverse(b.mul(b.maximum(b.reduce_max(b.abs(now), axes=axes), least), 1 / most))
    (total,) = m.make(pool.op, [b.square(b.mul(now, f)), *map(m.now, pool.inputs[1:])], **pool.attrs)
    total = total if factor == 1 else b.mul(total, factor)
    total = b.add(total, simpler.scaled_epsilon(b, f, epsilon)) if epsilon else total
    if m.node.op == "rsqrt":
        return finite(b, b.mul(b.rsqrt(total), f), sqrt(epsilon))
    return b.real_div(b.sqrt(total), f)


def _with_epsilon(value: Value | None) -> tuple[Value, float] | None:
    """Returns x and e if the value is x + e with constant e >= 0, else None."""
    added = made_by(value, "add")
    if added is None:
        return None
    for x, by in (added.inputs, added.inputs[::-1]):
        if x is not None and (known := uniform(by)) is not None and known >= 0 and x.shape == added.types[0].shape:
            return x, known
    return None


def generalised_mean(m: Found) -> Value | None:
    """pow(mean(pow(%x, p)), 1 / p)  ->  pow(mean(pow(%x / t, p)), 1 / p) * t, with t = max(%x), for %x >= 0

    The result is equal because t^p is a factor of every term. GeM pooling of image retrieval has p = 3.
    """
    p_inverse = scalar(m.node.inputs[1])
    total, factor = factored(m.node.inputs[0])
    maker = made_by(total, "reduce_mean", "reduce_sum", "avg_pool")
    power = made_by(maker.inputs[0], "pow") if maker is not None else None
    x, p = power.inputs if power is not None else (None, None)
    size = scalar(p)
    if maker is None or x is None or size is None or p_inverse is None or not factor > 0:
        return None
    if not size > 1 or not isclose(size * p_inverse, 1, rel_tol=1e-3) or ends(x)[0] < 0 or _is_quotient_of_top(x):
        return None
    if ends(x)[1] ** size * prod(x.shape) < LARGEST_SAFE**2 * 255:
        return None
    if maker.op == "avg_pool":
        if (
            maker.attrs["layout"] != "nchw"
            or tuple(maker.attrs["kernel_sizes"]) != x.shape[2:]
            or any(maker.attrs["pad"])
        ):
            return None
        axes, op_name = tuple(range(2, x.type.rank)), "reduce_mean"
    else:
        axes, op_name = axes_of(maker.attrs["axes"], x.type.rank), maker.op
    b, now = Rewriter(*m.node.sources), m.now(x)
    assert now is not None
    top = b.maximum(b.reduce_max(now, axes=axes), simpler.LEAST)
    powers = b.pow(b.real_div(now, top), size)
    (y,) = m.make(op_name, [powers], axes=axes, keep_dims=True)
    y = b.mul(b.pow(y if factor == 1 else b.mul(y, factor), p_inverse), top)
    return fitted(b, y, m.node.types[0].shape)


def _is_quotient_of_top(value: Value) -> bool:
    """True if the value is x divided by its largest number."""
    while value.node.op == "abs" and value.node.inputs[0] is not None:
        value = value.node.inputs[0]
    top = made_by(value.node.inputs[1], "maximum") if value.node.op == "real_div" else None
    return top is not None and made_by(top.inputs[0], "reduce_max") is not None


MOST_TERMS = 4


def hypotenuse(m: Found) -> Value | None:
    """sqrt(%a^2 + %b^2 + e)  ->  sqrt((%a * f)^2 + (%b * f)^2 + e * f^2) / f, with f = min(512, 128 / the largest of
    |%a|, |%b| and sqrt(e))

    For the inverse of the root, the result is f over the new root.
    """
    node, terms, epsilon = m.node, list[Value](), 0.0
    if (under := _under_root(node)) is None:
        return None
    is_inverse, waiting = under[1], [under[0]]
    while waiting:
        value = waiting.pop()
        if (known := uniform(value)) is not None and known >= 0:
            epsilon += known
        elif value is None or value.shape != node.types[0].shape or len(terms) == MOST_TERMS:
            return None
        elif (x := squared(value)) is not None:
            terms.append(x)
        elif value.node.op == "add":
            waiting += value.node.inputs
        else:
            return None
    if not terms or any(bound(x) <= LARGEST_SAFE or is_constant(x.node) or _is_held(x) for x in terms):
        return None
    if epsilon > LARGEST_ROOT**2:
        return None
    b = Rewriter(*node.sources)
    now = [v for v in map(m.now, terms) if v is not None]
    top = b.abs(now[0])
    for x in now[1:]:
        top = b.maximum(top, b.abs(x))
    most = simpler.LARGEST_SQUARED if len(terms) < MOST_TERMS - 1 else simpler.LARGEST_SQUARED / 2
    least = most / simpler.MOST_UP if epsilon <= simpler.MOST_EPSILON else sqrt(epsilon)
    factor = b.inverse(b.mul(b.maximum(top, least), 1 / most))
    total = b.square(b.mul(now[0], factor))
    for x in now[1:]:
        total = b.add(total, b.square(b.mul(x, factor)))
    if epsilon > simpler.MOST_EPSILON:
        total = b.add(total, b.square(b.mul(factor, sqrt(epsilon))))
    elif epsilon:
        total = b.add(total, simpler.scaled_epsilon(b, factor, epsilon))
    if is_inverse:
        return finite(b, b.real_div(factor, b.sqrt(total)), sqrt(epsilon))
    return b.real_div(b.sqrt(total), factor)


def _under_root(node: Node) -> tuple[Value | None, bool] | None:
    """Returns x and whether the root is inverted, if the node computes sqrt(x) or 1 / sqrt(x), else None."""
    x, by = node.inputs[0], scalar(node.inputs[1]) if node.op in ("pow", "real_div") else None
    if node.op in ("sqrt", "rsqrt") or (node.op == "pow" and by in (0.5, -0.5)):
        return x, node.op == "rsqrt" or by == -0.5
    if node.op == "real_div" and scalar(x) == 1:
        x = node.inputs[1]
    elif node.op != "inverse" and not (node.op == "pow" and by == -1):
        return None
    inner = None if x is None or x.node.op not in ("sqrt", "pow") else _under_root(x.node)
    return None if inner is None or inner[1] else (inner[0], True)


def _is_held(value: Value) -> bool:
    """True if the value is a product with a factor made by `hypotenuse`."""
    factors = value.node.inputs if value.node.op == "mul" else ()
    return any(v is not None and v.node.op == "inverse" for v in factors)


FORMS = (
    Form(
        "hypotenuse",
        any_of("sqrt", "rsqrt", "pow", "inverse", "real_div"),
        hypotenuse,
        f"scaled before it is squared: {SQUARES}",
    ),
    Form(
        "root of windows",
        any_of("sqrt", "rsqrt", "pow"),
        root_of_windows,
        f"scaled before it is squared: {SQUARES}",
    ),
    Form(
        "generalised mean",
        op("pow"),
        generalised_mean,
        "the operand is divided by its largest number first: cubes of numbers beyond 40 are infinite in fp16",
    ),
)

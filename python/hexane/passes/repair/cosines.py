"""Products of two vectors, divided by the vectors' L2 norms afterwards."""

from math import isclose

from hexane.graph import Node, Value
from hexane.ops import simpler
from hexane.ops.match import Found, made_by, op
from hexane.ops.predicates import axes_of, uniform
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.form import SQUARES, Form
from hexane.passes.repair.squares import Squares, epsilon_of_l2, root
from hexane.validate import is_constant


def cosine(m: Found) -> Value | None:
    """reduce_sum(%a * %b) / (sqrt(sum(%a^2)) * sqrt(sum(%b^2)))  ->  reduce_sum(l2_norm(%a) * l2_norm(%b))"""
    dot, by = made_by(m.node.inputs[0], "reduce_sum"), m.node.inputs[1]
    while by is not None and by.node.op in ("maximum", "clip", "add") and (inner := _small(by)) is not None:
        by = inner
    product, norms = made_by(dot.inputs[0], "mul") if dot is not None else None, made_by(by, "mul")
    if dot is None or product is None or norms is None:
        return None
    first, second = (root(v) for v in norms.inputs)
    a, b = product.inputs
    if first is None or second is None or a is None or b is None or a.shape != b.shape:
        return None
    if (first.squares.x, second.squares.x) == (b, a):
        first, second = second, first
    axes, w, sides = axes_of(dot.attrs["axes"], a.type.rank), Rewriter(*m.node.sources), []
    for one, x in ((first, a), (second, b)):
        is_norm = not one.is_inverse and one.squares.x == x and one.squares.axes == axes
        epsilon = epsilon_of_l2(one) if is_norm else None
        plain = is_norm and one.is_plain and not one.inside and isclose(one.squares.factor, 1, rel_tol=1e-6)
        if epsilon is None and not plain:
            return None
        sides.append(w.l2_norm(m.now(x), axes=axes, epsilon=epsilon or 1e-12))
    return w.reduce_sum(w.mul(*sides), axes=axes, keep_dims=dot.attrs["keep_dims"])


def dot_over_root(m: Found) -> Value | None:
    """matmul(%a, %b) / (sqrt(sum(%a^2)) * %z)  ->  matmul(l2_norm(%a), %b) / %z, also for reduce_sum(%a * %b)

    Applies to similarities whose other norm %z is transposed or has been folded to a constant.
    """
    above, by = m.node.inputs
    while by is not None and by.node.op in ("maximum", "clip", "add") and (inner := _small(by)) is not None:
        by = inner
    is_limited = by != m.node.inputs[1]
    dot = made_by(above, "reduce_sum", "matmul")
    if dot is None or above is None or above.shape != m.node.types[0].shape:
        return None
    product = made_by(dot.inputs[0], "mul") if dot.op == "reduce_sum" else dot
    if product is None or (len(product.inputs) > 2 and product.inputs[2] is not None):
        return None
    first, second = product.inputs[:2]
    if first is None or second is None or (is_constant(first.node) and is_constant(second.node)):
        return None
    for one, z in _factors_of(by):
        norm = root(one)
        if norm is None or norm.is_inverse:
            continue
        sums = norm.squares
        plain = norm.is_plain and not norm.inside and isclose(sums.factor, 1, rel_tol=1e-6)
        epsilon = 1e-12 if plain else epsilon_of_l2(norm)
        place = _side_of(dot, product, sums)
        if place is None or epsilon is None or not sums.keep_dims:
            continue
        w, sides = Rewriter(*m.node.sources), [m.now(first), m.now(second)]
        sides[place] = w.l2_norm(sides[place], axes=sums.axes, epsilon=epsilon)
        if dot.op == "matmul":
            (y,) = m.make("matmul", sides, **dot.attrs)
        else:
            y = w.reduce_sum(w.mul(*sides), axes=dot.attrs["axes"], keep_dims=dot.attrs["keep_dims"])
        if z is None:
            return y
        other = m.now(z)
        assert other is not None
        return w.real_div(y, w.maximum(other, simpler.LEAST) if is_limited and not is_constant(z.node) else other)
    return None


def _factors_of(value: Value | None) -> list[tuple[Value | None, Value | None]]:
    """Returns each factor of a product, paired with the other factor. The outer product of a column and a row counts as
    a product."""
    node = made_by(value, "mul", "matmul")
    if node is None:
        return [(value, None)]
    x, y = node.inputs[:2]
    if x is None or y is None:
        return []
    is_outer = x.shape[-1:] == (1,) and y.shape[-2:-1] == (1,) and not any(node.attrs.values())
    has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
    return [(x, y), (y, x)] if node.op == "mul" or (is_outer and not has_bias) else []


def _side_of(dot: Node, product: Node, sums: Squares) -> int | None:
    """Returns the position of the product's operand whose squares `sums` adds along the contracted axis, or None."""
    for place, x in enumerate(product.inputs[:2]):
        if x != sums.x or x is None:
            continue
        if dot.op == "reduce_sum":
            same = axes_of(dot.attrs["axes"], x.type.rank) == sums.axes and x.shape == product.types[0].shape
            return place if same else None
        transposed = dot.attrs["transpose_x" if place == 0 else "transpose_y"]
        added = x.type.rank - 2 if transposed == (place == 0) else x.type.rank - 1
        return place if sums.axes == (added,) else None
    return None


def _small(value: Value) -> Value | None:
    """Returns x if the value is max(x, e) or x + e with e up to 1e-6, else None."""
    node = value.node
    if node.op == "clip":
        return node.inputs[0] if 0 <= node.attrs["alpha"] <= 1e-6 and node.attrs["beta"] > 3e38 else None
    for x, e in (node.inputs, node.inputs[::-1]):
        if (known := uniform(e)) is not None and 0 <= known <= 1e-6 and x is not None:
            return x
    return None


FORMS = (
    Form("cosine", op("real_div"), cosine, f"both sides are normalised first: {SQUARES}", "transformers.js#1728"),
    Form(
        "similarity",
        op("real_div"),
        dot_over_root,
        f"one side is normalised first: {SQUARES}",
        "transformers.js#1728",
    ),
)

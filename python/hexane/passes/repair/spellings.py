"""Rewrites other spellings of sums and roots of squares as later forms expect them."""

from math import isclose, sqrt

from hexane.bounds.any_input import bound, ends
from hexane.graph import Value
from hexane.ops.match import Found, made_by, op
from hexane.ops.predicates import axes_of, uniform
from hexane.ops.rewriter import Rewriter
from hexane.passes.needs import has, has_squares
from hexane.passes.repair.form import Form, any_of
from hexane.passes.repair.scales import LARGEST_SAFE
from hexane.passes.repair.squares import Root, at_least, factored, root, squared, squares
from hexane.validate import is_constant


def mean_of_sum(m: Found) -> Value | None:
    """reduce_sum(%x) / n  ->  reduce_mean(%x), if each sum has n numbers"""
    inner, factor = factored(m.node.values[0])
    maker = made_by(inner, "reduce_sum")
    x = None if maker is None else maker.inputs[0]
    if maker is None or x is None or x.dtype.kind != "float":
        return None
    axes = axes_of(maker.attrs["axes"], x.type.rank)
    count = 1
    for a in axes:
        count *= x.shape[a]
    if not isclose(factor * count, 1, rel_tol=1e-5):
        return None
    now = m.now(x)
    assert now is not None
    return m.make("reduce_mean", [now], axes=axes, keep_dims=maker.attrs["keep_dims"])[0]


def kept(m: Found) -> Value | None:
    """expand_dims(reduce_sum(%x^2) {keep_dims=false})  ->  reduce_sum(%x^2), if the shapes agree; also for a mean

    einsum(%x, %x) {equation="bij,bij->bi"} counts as a sum of squares. The sum may have a factor, such as
    n / (n - 1) for the variance of a sample.
    """
    sums = squares(m.node.inputs[0])
    if sums is None or sums.keep_dims:
        return None
    shape = tuple(1 if a in sums.axes else extent for a, extent in enumerate(sums.x.shape))
    if m.node.types[0].shape != shape:
        return None
    b, x = Rewriter(*m.node.sources), m.now(sums.x)
    assert x is not None
    if sums.factor == 1:
        return b.reduce_sum(b.square(x), axes=sums.axes)
    mean = b.reduce_mean(b.square(x), axes=sums.axes)
    return mean if sums.is_mean else b.mul(mean, sums.factor * sums.count)


def variance(m: Found) -> Value | None:
    """mean(%x^2) - mean(%x)^2  ->  mean((%x - mean(%x))^2), which does not cancel digits"""
    first, second = m.node.inputs
    sums = squares(first)
    mean = made_by(squared(second), "reduce_mean")
    if sums is None or mean is None or mean.inputs[0] != sums.x or not sums.is_mean:
        return None
    if axes_of(mean.attrs["axes"], sums.x.type.rank) != sums.axes or mean.attrs["keep_dims"] != sums.keep_dims:
        return None
    b, x = Rewriter(*m.node.sources), m.now(sums.x)
    assert x is not None
    spread = b.sub(x, b.reduce_mean(x, axes=sums.axes))
    return b.reduce_mean(b.square(spread), axes=sums.axes, keep_dims=sums.keep_dims)


def never_negative(m: Found) -> Value | None:
    """max(mean(%x^2), 0)  ->  mean(%x^2)"""
    node = m.node
    x = node.inputs[0]
    limited = node.op == "relu" or (node.op == "clip" and node.attrs["alpha"] == 0 and node.attrs["beta"] > 3e38)
    return m.now(x) if limited and squares(x) is not None else None


# ---- norms ----


def shifted(m: Found) -> Value | None:
    """%x * %k + (%b - mean(%x) * %k)  ->  (%x - mean(%x)) * %k + %b, if %k is a factor over a root"""
    for product, rest in (m.node.inputs, m.node.inputs[::-1]):
        inner = made_by(rest, "sub")
        if inner is None or product is None:
            continue
        beta, moved = inner.inputs
        if (found := _moved(m, product, moved)) is not None and beta is not None:
            return m.make("add", [found, m.now(beta)])[0]
    return None


def shifted_alone(m: Found) -> Value | None:
    """%x * %k - mean(%x) * %k  ->  (%x - mean(%x)) * %k, if %k is a factor over a root"""
    product, moved = m.node.inputs
    return None if product is None else _moved(m, product, moved)


def _moved(m: Found, product: Value, moved: Value | None) -> Value | None:
    """Returns (%x - mean(%x)) * %k if the product is %x * %k and the second term is mean(%x) * %k, else None."""
    scaled, by = made_by(product, "mul"), made_by(moved, "mul")
    if scaled is None or by is None:
        return None
    for x, k in (scaled.inputs, scaled.inputs[::-1]):
        mean = next((v for v in by.inputs if v != k), None) if k in by.inputs else None
        maker = made_by(mean, "reduce_mean")
        if maker is not None and maker.inputs[0] == x and maker.attrs["keep_dims"] and factor_over_root(k) is not None:
            (spread,) = m.make("sub", [m.now(x), m.now(mean)])
            return m.make("mul", [spread, m.now(k)])[0]
    return None


def factor_over_root(k: Value | None) -> tuple[Root, Value | None, Value] | None:
    """Splits k into 1 / root and another factor. Returns the root, the factor, and the value with the root, or None."""
    if k is None:
        return None
    if (norm := root(k)) is not None and norm.is_inverse:
        return norm, None, k
    if (product := made_by(k, "mul")) is not None:
        for inverse, other in (product.inputs, product.inputs[::-1]):
            if inverse is not None and (norm := root(inverse)) is not None and norm.is_inverse:
                return norm, other, inverse
    if (quotient := made_by(k, "real_div")) is not None:
        norm = root(quotient.inputs[1])
        if norm is not None and not norm.is_inverse:
            return norm, quotient.inputs[0], k
    return None


def square_behind(m: Found) -> Value | None:
    """reduce_mean(reshape(%x^2))  ->  reduce_mean(reshape(%x)^2), also for other moves and other sums"""
    mover = m.alone(m.node.inputs[0], "reshape", "expand_dims", "squeeze", "transpose")
    x = squared(mover.inputs[0]) if mover is not None else None
    if mover is None or x is None or x.dtype.kind != "float" or bound(x) <= LARGEST_SAFE:
        return None
    (now,) = m.make(mover.op, [m.now(x)], **mover.attrs)
    inputs = [Rewriter(*m.node.sources).square(now), *map(m.now, m.node.inputs[1:])]
    return m.make(m.node.op, inputs, **m.node.attrs)[0]


MOST_INSIDE = 1e-12  # an epsilon in a root of squares that is taken for a lower limit


def root_of_product(m: Found) -> Value | None:
    """sqrt(max(%s * %t, e))  ->  max(sqrt(%s) * sqrt(%t), sqrt(e)), and %d * rsqrt(..)  ->  %d / sqrt(..)

    %s is a sum of squares, and %t another one or constant. Cosine similarities multiply the sums of squares of both
    vectors, so numbers beyond 16 overflow fp16.
    """
    b = Rewriter(*m.node.sources)
    if m.node.op == "mul":
        for other, by in (m.node.inputs, m.node.inputs[::-1]):
            inverse = made_by(by, "rsqrt")
            inner = None if inverse is None else inverse.inputs[0]
            if other is not None and other.shape == m.node.types[0].shape and (y := _roots(m, b, inner)) is not None:
                return b.real_div(m.now(other), y)
        return None
    if m.node.op == "pow" and uniform(m.node.inputs[1]) != 0.5:
        return None
    return _roots(m, b, m.node.inputs[0])


def _roots(m: Found, b: Rewriter, value: Value | None) -> Value | None:
    """Returns the root of a product of sums of squares as a product of roots, or None for other values."""
    limit = 0.0
    if value is not None and (limited := at_least(value)) is not None:
        value, limit = limited
    added = made_by(value, "add")
    for x, e in () if added is None else (added.inputs, added.inputs[::-1]):
        if (known := uniform(e)) is not None and 0 <= known <= MOST_INSIDE:
            value, limit = x, max(limit, known)
    product = made_by(value, "mul")
    if product is None or not any(squares(v) is not None for v in product.inputs):
        return None
    if not all(squares(v) is not None or _is_never_negative(v) for v in product.inputs):
        return None
    y = b.mul(*(b.sqrt(m.now(v)) for v in product.inputs))
    return b.maximum(y, sqrt(limit)) if limit else y


def _is_never_negative(value: Value | None) -> bool:
    data = None if value is None else value.node.data
    return value is not None and is_constant(value.node) and data is not None and bool((data >= 0).all())


NEAR_HALF = 1e-6


def power_near_half(m: Found) -> Value | None:
    """pow(%x, 0.4999998)  ->  sqrt(%x), which differs by less than fp16's rounding

    PyTorch's exporter writes the root of a pairwise distance with the exponent 1 / (2 + 1e-6).
    """
    exponent = uniform(m.node.inputs[1])
    if exponent is None or not 0 < abs(exponent - 0.5) < NEAR_HALF:
        return None
    return Rewriter(*m.node.sources).sqrt(m.now(m.node.inputs[0]))


def product_of_two(m: Found) -> Value | None:
    """reduce_prod(%x), over an axis of two  ->  %x[.., 0] * %x[.., 1], as later forms know areas of boxes"""
    x = m.node.inputs[0]
    axes = () if x is None else axes_of(m.node.attrs["axes"], x.type.rank)
    if x is None or x.dtype.kind != "float" or len(axes) != 1 or x.shape[axes[0]] != 2:
        return None
    b = Rewriter(*m.node.sources)
    size = tuple(1 if a == axes[0] else extent for a, extent in enumerate(x.shape))
    halves = (
        b.slice_by_size(m.now(x), begin=tuple(i if a == axes[0] else 0 for a in range(x.type.rank)), size=size)
        for i in range(2)
    )
    y = b.mul(*halves)
    return y if m.node.attrs["keep_dims"] else b.squeeze(y, axes=axes)


LOST = 2.0**-25  # half of fp32's last digit


def hidden_epsilon(m: Found) -> Value | None:
    """max(%x, a) + e  ->  max(%x, a), for an e that fp32 rounds off, such as the 1e-45 of MIL's logarithms"""
    for x, e in (m.node.inputs, m.node.inputs[::-1]):
        epsilon = uniform(e)
        if epsilon and x is not None and x.shape == m.node.types[0].shape and 0 < epsilon <= ends(x)[0] * LOST:
            return m.now(x)
    return None


FORMS = (
    Form(
        "square behind",
        any_of("reduce_mean", "reduce_sum", "avg_pool", "linear", "matmul"),
        square_behind,
        quiet=True,
        needs=has("square|mul|pow"),
    ),
    Form("power near a half", op("pow"), power_near_half, quiet=True, needs=has("pow")),
    Form("kept", any_of("expand_dims", "reshape"), kept, quiet=True, needs=has_squares),
    Form("mean", any_of("mul", "real_div"), mean_of_sum, quiet=True),
    Form(
        "variance",
        op("sub"),
        variance,
        "written as the mean of squared differences: the mean of squares loses its digits where the mean is large",
        "arithmetic",
    ),
    Form("never negative", any_of("relu", "clip"), never_negative, quiet=True, needs=has_squares),
    Form("shifted", op("add"), shifted, quiet=True),
    Form("shifted alone", op("sub"), shifted_alone, quiet=True),
    Form("root of a product", any_of("sqrt", "pow", "mul"), root_of_product, quiet=True, needs=has_squares),
)
HIDDEN_EPSILON = Form("epsilon beside a limit", op("add"), hidden_epsilon, quiet=True)  # before logarithms
PRODUCT_OF_TWO = Form("product of two", op("reduce_prod"), product_of_two, quiet=True)  # before areas

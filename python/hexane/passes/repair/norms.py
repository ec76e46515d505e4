"""Norms, variances and roots of sums of squares, in forms whose squares do not overflow fp16.

fp16 ends at 65504: a square is infinite from |x| = 256 on, a sum of 768 squares from |x| = 9.2 on. Reported for trained
networks: coremltools#2585 and #2821 (RMSNorm of language models), transformers.js#1728 (L2 norm of embeddings).
"""

from collections.abc import Iterator
from dataclasses import replace
from math import isclose, prod, sqrt

from hexane.graph import Node, Value
from hexane.ops import OPS, simpler
from hexane.ops.match import Found, Pattern, made_by, op, scalar
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.ends import bound, ends
from hexane.passes.repair.form import Form
from hexane.passes.repair.squares import (
    MOVES,
    Root,
    Squares,
    axes_of,
    centred,
    epsilon_of_l2,
    factored,
    fitted,
    number,
    root,
    squared,
    squares,
)
from hexane.validate import is_constant

LARGEST_SAFE = 16.0  # fp16 holds the sum of 255 squares of numbers up to 16


def is_safe(sums: Squares) -> bool:
    """True if fp16 holds the squares and their sum for any input of the network."""
    return bound(sums.x) ** 2 * sums.count < LARGEST_SAFE**2 * 255 or is_scaled(sums.x)


def _first_axes(sums: Squares) -> tuple[int, ...]:
    """Returns the trailing axes along which sums of squares fit fp16, by the bound of x. Summing along the returned
    axes first leaves few roots to scale. Returns () for too few numbers per root, or if the root over all axes may
    overflow fp16."""
    size, count = bound(sums.x), 1
    if not size * sqrt(sums.count * max(sums.factor, 1.0)) < LARGEST_ROOT:
        return ()
    taken: list[int] = []
    for a in reversed(sums.axes):
        count *= sums.x.shape[a]
        if size**2 * count >= LARGEST_SAFE**2 * 255:
            break
        taken.append(a)
    return tuple(sorted(taken)) if prod(sums.x.shape[a] for a in taken) >= FEW else ()


FEW = 8  # the least ratio of numbers to roots


def is_scaled(value: Value) -> bool:
    """True if the value is x divided by its largest magnitude, or x times a factor computed from that magnitude."""
    node = value.node
    if node.op not in ("mul", "real_div"):
        return False
    pairs = (node.inputs, node.inputs[::-1]) if node.op == "mul" else (node.inputs,)
    return any(_largest_of(factor) == x for x, factor in pairs if x is not None)


def _largest_of(value: Value | None) -> Value | None:
    """Returns x if the value is computed from max(|x|) and constants, or from max(x) with x >= -1. Else None."""
    while value is not None and value.node.op in (*MOVES, "inverse", "mul", "maximum", "add", "real_div", "clip"):
        value = next((v for v in value.node.inputs if v is not None and not is_constant(v.node)), None)
    top = made_by(value, "reduce_max")
    x = None if top is None else top.inputs[0]
    if (size := made_by(x, "abs")) is not None:
        return size.inputs[0]
    return x if ends(x)[0] >= -1 else None


# ---- means and variances ----


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

    einsum(%x, %x) {equation="bij,bij->bi"} counts as a sum of squares.
    """
    inner, _ = factored(m.node.inputs[0])
    sums = None if inner is None or inner != m.node.inputs[0] else squares(inner)
    if sums is None or sums.keep_dims:
        return None
    shape = tuple(1 if a in sums.axes else extent for a, extent in enumerate(sums.x.shape))
    if m.node.types[0].shape != shape:
        return None
    b, x = Rewriter(*m.node.sources), m.now(sums.x)
    assert x is not None
    return (b.reduce_mean if sums.is_mean else b.reduce_sum)(b.square(x), axes=sums.axes)


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
        if maker is not None and maker.inputs[0] == x and maker.attrs["keep_dims"] and _over_root(k) is not None:
            (spread,) = m.make("sub", [m.now(x), m.now(mean)])
            return m.make("mul", [spread, m.now(k)])[0]
    return None


def _over_root(k: Value | None) -> tuple[Root, Value | None, Value] | None:
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


def _divided(node: Node) -> Iterator[tuple[Value | None, Root, Value | None]]:
    """Yields each way to read the node as a dividend over a root: the dividend, the root, and the other factor."""
    if node.op == "real_div":
        norm = root(_unrepeated(node.inputs[1]))
        if norm is not None and not norm.is_inverse:
            yield node.inputs[0], norm, None
        return
    for x, k in (node.inputs, node.inputs[::-1]):
        if (factor := _over_root(_unrepeated(k))) is not None:
            yield x, factor[0], factor[1]


def over_root(m: Found) -> Value | None:
    """%x / sqrt(mean(%x^2) + epsilon)  ->  rms_norm(%x), layer_norm, l2_norm, or the formula with numbers scaled before
    they are squared"""
    for x, found_root, other in _divided(m.node):
        if x is None or is_constant(x.node) or x.shape != m.node.types[0].shape:
            continue
        if not found_root.squares.keep_dims or is_safe(found_root.squares) or _first_axes(found_root.squares):
            continue
        y = _normalised(m, x, found_root)
        if y is not None:
            return y if other is None else m.make("mul", [y, m.now(other)])[0]
    return None


def _unrepeated(value: Value | None) -> Value | None:
    """Returns the source of a chain of broadcasts and identities."""
    while value is not None and value.node.op in ("broadcast_to", "identity", "stop_gradient"):
        value = value.node.inputs[0]
    return value


def _normalised(m: Found, x: Value, norm: Root) -> Value | None:
    """Returns x divided by the root."""
    if x == norm.squares.x and (inner := _unscaled(x, norm.inside, norm.least_inside)) is not None:
        x, c = inner
        norm = replace(
            norm,
            squares=replace(norm.squares, x=x),
            inside=norm.inside / c**2,
            least_inside=norm.least_inside / c**2,
            least=norm.least / c,
            added=norm.added / c,
        )
    sums, now = norm.squares, m.now(x)
    assert now is not None
    b = Rewriter(*m.node.sources)
    if x == sums.x:
        last = sums.axes == tuple(range(x.type.rank - len(sums.axes), x.type.rank))
        if sums.is_mean and norm.is_plain and last:
            if (whole := centred(x, sums.axes)) is not None:
                return b.layer_norm(m.now(whole), axes=sums.axes, epsilon=norm.inside)
            if norm.inside >= SMALLEST_EPSILON:  # with a smaller epsilon, rms_norm would lose the digits of small rows
                return b.rms_norm(now, axes=sums.axes, epsilon=norm.inside)
    source = m.now(sums.x)
    assert source is not None
    u, factor = _held(b, source, norm)
    return b.real_div(u if x == sums.x else b.mul(now, factor), _scaled_root(b, u, factor, norm))


SMALL = 2.0**-4  # numbers near 1 times a smaller factor have squares with few digits
MOST_EPSILON = 1024.0
SMALLEST_EPSILON = 2.0**-24  # smallest number of fp16


def _unscaled(x: Value, *epsilons: float) -> tuple[Value, float] | None:
    """Returns %u and c if x = %u * c for a small c, and if fp16 holds these epsilons divided by c^2. Else None."""
    u, c = factored(x)
    if u is None or not 0 < c < SMALL or u.shape != x.shape or is_constant(u.node):
        return None
    return (u, c) if all(e / c**2 <= MOST_EPSILON for e in epsilons) else None


def norm_of_product(m: Found) -> Value | None:
    """layer_norm(%x * c, epsilon=e)  ->  layer_norm(%x, epsilon=e / c^2), for a small c

    The result is equal because a norm does not depend on the scale of x, except by the epsilon.
    """
    x, epsilon = m.node.inputs[0], m.node.attrs["epsilon"]
    unscaled = None if x is None else _unscaled(x, epsilon)
    if unscaled is None:
        return None
    inputs = [m.now(unscaled[0]), *map(m.now, m.node.inputs[1:])]
    return m.make(m.node.op, inputs, **{**m.node.attrs, "epsilon": epsilon / unscaled[1] ** 2})[0]


def _held(b: Rewriter, x: Value, norm: Root) -> tuple[Value, Value]:
    """Returns x * factor and the factor. Small rows are scaled up, because fp16 has few digits for their squares,
    unless the square of the factor would make an epsilon overflow fp16."""
    sums = norm.squares
    brings_up = max(norm.inside, norm.least_inside) <= simpler.MOST_EPSILON
    brings_up &= max(norm.least, norm.added) <= MOST_LIMIT
    held = simpler.held if sums.is_mean else simpler.held_for_sum
    return held(b, x, sums.axes, brings_up=brings_up, low=ends(sums.x)[0])


MOST_LIMIT = 64.0  # MOST_LIMIT times the largest factor is half of fp16's range.
MOST_INSIDE = 2.0**14  # The largest sum of scaled squares.


def _scaled_root(b: Rewriter, u: Value, factor: Value, norm: Root) -> Value:
    """Returns the root times the factor, computed from u = x * factor."""
    sums = norm.squares

    def scaled(number: float, times: int) -> Value:
        return b.mul(factor, number) if times == 1 else simpler.scaled_epsilon(b, factor, number)

    if sums.is_mean:
        total = b.reduce_mean(b.square(u), axes=sums.axes)
    else:
        total = b.reduce_sum(b.square(u), axes=sums.axes)
        total = total if sums.factor == 1 else b.mul(total, sums.factor)
    total = b.add(total, scaled(norm.inside, 2)) if norm.inside else total
    total = b.maximum(total, scaled(norm.least_inside, 2)) if norm.least_inside else total
    y = b.sqrt(total)
    y = b.maximum(y, scaled(norm.least, 1)) if norm.least else y
    y = b.add(y, scaled(norm.added, 1)) if norm.added else y
    has_epsilon = norm.inside or norm.least_inside or norm.least or norm.added
    return b.maximum(y, simpler.LEAST) if has_epsilon else y


def root_alone(m: Found) -> Value | None:
    """sqrt(sum(%x^2))  ->  sqrt(sum((%x * f)^2)) / f, with f such that the squares fit fp16

    The inverse of a root is limited to fp16's largest number if an epsilon makes it finite: zeros times it are 0.
    """
    norm = root(m.node.values[0])
    if norm is None or is_safe(norm.squares) or is_constant(m.node) or norm.inside > MOST_INSIDE:
        return None
    if m.node.op == "real_div" and scalar(m.node.inputs[0]) != 1:
        return None
    b, x = Rewriter(*m.node.sources), m.now(norm.squares.x)
    assert x is not None
    if first := _first_axes(norm.squares):
        x = b.reduce_l2_norm(x, axes=first)
        rest = tuple(a for a in norm.squares.axes if a not in first)
        norm = replace(norm, squares=replace(norm.squares, x=x, axes=rest))
    u, factor = _held(b, x, norm)
    y = _scaled_root(b, u, factor, norm)
    y = b.real_div(factor, y) if norm.is_inverse else b.real_div(y, factor)
    y = _finite(b, y, norm.smallest) if norm.is_inverse else y
    return fitted(b, y, m.node.types[0].shape)


def _finite(b: Rewriter, y: Value, smallest: float) -> Value:
    """Returns the inverse of a root, limited to fp16's largest number if the smallest root is above 0, because 0 *
    infinity is NaN."""
    return b.minimum(y, LARGEST) if 0 < smallest < 1 / LARGEST else y


LARGEST = 65504.0  # largest number of fp16


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
        return _finite(b, b.mul(b.rsqrt(total), f), sqrt(epsilon))
    return b.real_div(b.sqrt(total), f)


def _with_epsilon(value: Value | None) -> tuple[Value, float] | None:
    """Returns x and e if the value is x + e with constant e >= 0, else None."""
    added = made_by(value, "add")
    if added is None:
        return None
    for x, by in (added.inputs, added.inputs[::-1]):
        if x is not None and (known := number(by)) is not None and known >= 0 and x.shape == added.types[0].shape:
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


def square_behind(m: Found) -> Value | None:
    """reduce_mean(reshape(%x^2))  ->  reduce_mean(reshape(%x)^2), also for other moves and other sums"""
    mover = m.alone(m.node.inputs[0], "reshape", "expand_dims", "squeeze", "transpose")
    x = squared(mover.inputs[0]) if mover is not None else None
    if mover is None or x is None or x.dtype.kind != "float" or bound(x) <= LARGEST_SAFE:
        return None
    (now,) = m.make(mover.op, [m.now(x)], **mover.attrs)
    inputs = [Rewriter(*m.node.sources).square(now), *map(m.now, m.node.inputs[1:])]
    return m.make(m.node.op, inputs, **m.node.attrs)[0]


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


def root_of_product(m: Found) -> Value | None:
    """sqrt(sum(%a^2) * sum(%b^2))  ->  sqrt(sum(%a^2)) * sqrt(sum(%b^2))"""
    product = made_by(m.node.inputs[0], "mul")
    if product is None or any(squares(v) is None for v in product.inputs):
        return None
    b = Rewriter(*m.node.sources)
    return b.mul(*(b.sqrt(m.now(v)) for v in product.inputs))


def _small(value: Value) -> Value | None:
    """Returns x if the value is max(x, e) or x + e with e up to 1e-6, else None."""
    node = value.node
    if node.op == "clip":
        return node.inputs[0] if 0 <= node.attrs["alpha"] <= 1e-6 and node.attrs["beta"] > 3e38 else None
    for x, e in (node.inputs, node.inputs[::-1]):
        if (known := number(e)) is not None and 0 <= known <= 1e-6 and x is not None:
            return x
    return None


MOST_TERMS = 4
LARGEST_ROOT = 32768.0


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
        if (known := number(value)) is not None and known >= 0:
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
        return _finite(b, b.real_div(factor, b.sqrt(total)), sqrt(epsilon))
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


def lp_norm(m: Found) -> Value | None:
    """lp_norm(%x, p=2)  ->  l2_norm(%x); for other p the formula, computed on %x divided by its largest magnitude"""
    (x,) = m.inputs
    assert x is not None
    axes, p = (m.node.attrs["axis"] % x.type.rank,), m.node.attrs["p"]
    b = Rewriter(*m.node.sources)
    if p == 2:
        return b.l2_norm(x, axes=axes, epsilon=1e-12)
    top = b.maximum(b.reduce_max(b.abs(x), axes=axes), simpler.LEAST)
    u = b.real_div(x, top)
    size = b.abs(u)
    total = b.reduce_sum(size if p == 1 else b.pow(size, float(p)), axes=axes)
    total = total if p == 1 else b.pow(total, 1 / p)
    return b.real_div(u, b.maximum(total, simpler.LEAST))  # a row of zeros gives zeros


def _any_of(*names: str) -> Pattern:
    pattern = op(names[0])
    for name in names[1:]:
        pattern = pattern | op(name)
    return pattern


SQUARES = "squares of numbers beyond 256 are infinite in fp16"
SOURCE = "coremltools#2585, #2821, reported from devices"
ROOTS = ("sqrt", "rsqrt", "pow", "reduce_l2_norm", "maximum", "clip", "inverse", "real_div")

FORMS = (
    Form(
        "square behind", _any_of("reduce_mean", "reduce_sum", "avg_pool", "linear", "matmul"), square_behind, quiet=True
    ),
    Form("kept", _any_of("expand_dims", "reshape"), kept, quiet=True),
    Form("mean", _any_of("mul", "real_div"), mean_of_sum, quiet=True),
    Form(
        "variance",
        op("sub"),
        variance,
        "written as the mean of squared differences: the mean of squares loses its digits where the mean is large",
        "arithmetic",
    ),
    Form("never negative", _any_of("relu", "clip"), never_negative, quiet=True),
    Form("shifted", op("add"), shifted, quiet=True),
    Form("shifted alone", op("sub"), shifted_alone, quiet=True),
    Form("root of a product", op("sqrt"), root_of_product, quiet=True),
    Form("cosine", op("real_div"), cosine, f"both sides are normalised first: {SQUARES}", "transformers.js#1728"),
    Form(
        "similarity", op("real_div"), dot_over_root, f"one side is normalised first: {SQUARES}", "transformers.js#1728"
    ),
    Form(
        "hypotenuse",
        _any_of("sqrt", "rsqrt", "pow", "inverse", "real_div"),
        hypotenuse,
        f"scaled before it is squared: {SQUARES}",
    ),
    Form(
        "root of windows", _any_of("sqrt", "rsqrt", "pow"), root_of_windows, f"scaled before it is squared: {SQUARES}"
    ),
    Form(
        "generalised mean",
        op("pow"),
        generalised_mean,
        "divided by its largest number before its power: cubes of numbers beyond 40 are infinite in fp16",
    ),
    Form("norm", _any_of("real_div", "mul"), over_root, f"written as a norm: {SQUARES}", SOURCE),
    Form("root", _any_of(*ROOTS), root_alone, f"scaled by its largest number before it is squared: {SQUARES}", SOURCE),
    Form("lp_norm", op("lp_norm"), lp_norm, f"written with numbers that are scaled first: {SQUARES}", SOURCE),
    Form(
        "norm of a product",
        _any_of("layer_norm", "rms_norm", "l2_norm", "instance_norm"),
        norm_of_product,
        "the norm is of the numbers before their small factor: fp16 has few digits of the squares of small numbers",
        "arithmetic",
    ),
)
assert set(ROOTS) <= OPS.keys()

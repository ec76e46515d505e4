"""Norms, variances and roots of sums of squares, in forms whose squares do not overflow fp16.

fp16 ends at 65504: a square is infinite from |x| = 256 on, a sum of 768 squares from |x| = 9.2 on. Reported for trained
networks: coremltools#2585 and #2821 (RMSNorm of language models), transformers.js#1728 (L2 norm of embeddings).
"""

from collections.abc import Iterator
from dataclasses import replace
from math import prod, sqrt

from hexane.bounds.any_input import bound, ends
from hexane.graph import Node, Value
from hexane.ops import OPS, simpler
from hexane.ops.match import Found, op
from hexane.ops.predicates import scalar
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.form import SQUARES, Form, any_of
from hexane.passes.repair.scales import LARGEST_ROOT, LARGEST_SAFE, finite, is_safe
from hexane.passes.repair.spellings import factor_over_root
from hexane.passes.repair.squares import (
    Root,
    Squares,
    centred,
    factored,
    fitted,
    root,
)
from hexane.validate import is_constant


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


def _divided(node: Node) -> Iterator[tuple[Value | None, Root, Value | None]]:
    """Yields each way to read the node as a dividend over a root: the dividend, the root, and the other factor."""
    if node.op == "real_div":
        norm = root(_unrepeated(node.inputs[1]))
        if norm is not None and not norm.is_inverse:
            yield node.inputs[0], norm, None
        return
    for x, k in (node.inputs, node.inputs[::-1]):
        if (factor := factor_over_root(_unrepeated(k))) is not None:
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

    If an epsilon makes the inverse of the root finite, the inverse is limited to fp16's largest number, so that 0 times
    the inverse is 0.
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
    y = finite(b, y, norm.smallest) if norm.is_inverse else y
    return fitted(b, y, m.node.types[0].shape)


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


SOURCE = "coremltools#2585, #2821, reported from devices"
ROOTS = ("sqrt", "rsqrt", "pow", "reduce_l2_norm", "maximum", "clip", "inverse", "real_div")


FORMS = (
    Form("norm", any_of("real_div", "mul"), over_root, f"written as a norm: {SQUARES}", SOURCE),
    Form(
        "root",
        any_of(*ROOTS),
        root_alone,
        f"scaled by its largest number before it is squared: {SQUARES}",
        SOURCE,
    ),
    Form("lp_norm", op("lp_norm"), lp_norm, f"written with numbers that are scaled first: {SQUARES}", SOURCE),
    Form(
        "norm of a product",
        any_of("layer_norm", "rms_norm", "l2_norm", "instance_norm"),
        norm_of_product,
        "the small factor is left out: the squares of small numbers have few digits in fp16",
        "arithmetic",
    ),
)
assert set(ROOTS) <= OPS.keys()

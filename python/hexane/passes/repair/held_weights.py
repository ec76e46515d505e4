"""Weights with a factor per row, which holds exponentials and squares within fp16."""

from math import floor, inf, log, log2

from hexane.bounds.any_input import ends
from hexane.graph import Value
from hexane.ops import simpler
from hexane.ops.match import Found, made_by
from hexane.ops.predicates import uniform
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.factors import is_made_scale
from hexane.passes.repair.scales import is_scaled
from hexane.passes.repair.squares import squared

SMALLEST = 2.0**-24  # Smallest number of fp16.


def exponent_of(value: Value) -> Value | None:
    """Returns s if the value is exp(s), unless s is known to be at most 0."""
    exp = made_by(value, "exp")
    return exp.inputs[0] if exp is not None and ends(exp.inputs[0])[1] > 0 else None


def held_weights(
    m: Found, weights: Value, axes: tuple[int, ...], most: float, least: float, brings_up: bool, low: float = -inf
) -> tuple[Value, Value | None, Value | None]:
    """Returns the scaled weights (at most `most`), the factor of each row, and each factor times `least`.

    most, brings_up, low: as in `simpler.held`. The factor lowers the exponents of exponentials, and scales the numbers
    of squares. For exponentials None replaces the factor, because fp16 may not hold it. Its product with `least` is
    infinite only in rows whose weights are negligible beside `least`. The product is None if `least` is 0, and
    otherwise above 0 in fp16.
    """
    b = Rewriter(*m.node.sources)
    if (exponents := _exponents_of(weights)) is not None:
        s, y = m.now(exponents[0]), m.now(exponents[1])
        assert s is not None
        shown = s if y is None else b.select(b.equal(y, 0.0), LOWEST, s)
        top = b.reduce_max(shown, axes=axes)
        top = top if most >= 1 else b.sub(top, log(most))
        below = b.sub(s, top)
        u = b.exp(below) if y is None else b.mul(b.exp(b.minimum(below, min(log(most), 0.0))), y)
        return u, None, b.maximum(b.exp(b.sub(log(least), top)), SMALLEST) if least else None
    if terms := squared_terms(weights):
        u, f = _held_squares(m, terms, axes, most, brings_up)
    else:
        now = m.now(weights)
        assert now is not None
        u, f = simpler.held(b, now, axes, most, brings_up, low)
    return u, f, b.maximum(b.mul(f, least), SMALLEST) if least else None


def _exponents_of(value: Value) -> tuple[Value, Value | None] | None:
    """Returns s and y if the value is exp(s) * y, or s alone. Returns None if s is known to be at most 0."""
    if (alone := exponent_of(value)) is not None:
        return alone, None
    for exp, y in (value.node.inputs, value.node.inputs[::-1]) if value.node.op == "mul" else ():
        s = None if exp is None else exponent_of(exp)
        if s is not None and y is not None and s.shape == value.shape and uniform(y) is None:
            return s, y
    return None


LOWEST = -65504.0
MOST_TERMS = 4


def squared_terms(value: Value | None) -> list[Value]:
    """Returns the numbers whose squares add up to the value, or [] for another value."""
    waiting, terms = [value], list[Value]()
    while waiting:
        v = waiting.pop()
        if v is None or value is None or v.shape != value.shape or len(terms) == MOST_TERMS:
            return []
        if (x := squared(v)) is not None:
            terms.append(x)
        elif v.node.op == "add":
            waiting += v.node.inputs
        else:
            return []
    return terms[::-1]


def _held_squares(
    m: Found, terms: list[Value], axes: tuple[int, ...], most: float, brings_up: bool
) -> tuple[Value, Value]:
    b, top = Rewriter(*m.node.sources), None
    now = [v for v in map(m.now, terms) if v is not None]
    for x in now:
        top = b.abs(x) if top is None else b.maximum(top, b.abs(x))
    root = 2.0 ** floor(log2(most / len(terms)) / 2)
    top = b.maximum(b.reduce_max(top, axes=axes), root / LARGEST_ROOT if brings_up else root)
    factor, total = b.inverse(b.mul(top, 1 / root)), None
    for x in now:
        square = b.square(b.mul(x, factor))
        total = square if total is None else b.add(total, square)
    assert total is not None
    return total, b.square(factor)


LARGEST_ROOT = 128.0  # the square of 128 is a number of fp16


def is_held_weight(value: Value) -> bool:
    """True if the value has a factor computed from its largest number, is a square of such values, or a product with
    exp(s - max(s))."""
    if value.node.op == "mul" and any(
        made_by(v, "exp") and v is not None and ends(v)[1] <= 1 for v in value.node.inputs
    ):
        return True
    scaled = (value, *squared_terms(value))
    return is_scaled(value) or any(
        v.node.op == "mul" and any(by is not None and is_made_scale(by) for by in v.node.inputs) for v in scaled
    )

"""Recognises the tanh approximation of GELU."""

import math

from hexane.graph import Graph, Value
from hexane.ops.match import Bound, Pattern, made_by, op
from hexane.ops.predicates import scalar
from hexane.passes.fuse.fuse_gelu import fuse_gated
from hexane.targets import Target

Polynomial = tuple[float, ...]  # coefficients by power, from 0

_DEGREE = 3
_DEPTH = 8  # the deepest expression that is searched: a file may nest any number of ops
_GELU = (0.0, math.sqrt(2 / math.pi), 0.0, math.sqrt(2 / math.pi) * 0.044715)


def fuse_gelu_tanh(graph: Graph, target: Target) -> Graph:
    """0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))  ->  gelu_tanh(x)

    The factors may have any order. The argument of tanh may be any expression of that polynomial whose coefficients
    agree to 6 digits.
    """

    return fuse_gated(graph, "gelu_tanh", _OPENED)


def _is_argument(value: Value, bound: Bound) -> bool:
    """True if the value is sqrt(2 / pi) * (x + 0.044715 * x^3)."""
    terms = _polynomial(value, bound["x"])
    return terms is not None and all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(terms, _GELU, strict=True))


_OPENED = op("add", 1.0, op("tanh", Pattern(fits=_is_argument)))


def _polynomial(value: Value | None, x: Value, depth: int = _DEPTH) -> Polynomial | None:
    """Returns the coefficients if the value is a polynomial in x of degree 3 at most, else None."""
    if value == x:
        return (0.0, 1.0, 0.0, 0.0)
    number = scalar(value)
    if number is not None:
        return (number, 0.0, 0.0, 0.0)
    node = made_by(value, "add", "mul", "square", "pow")
    if node is None or not depth or node.types[0] != x.type:
        return None
    left = _polynomial(node.inputs[0], x, depth - 1)
    if left is None:
        return None
    if node.op in ("square", "pow"):
        exponent = 2.0 if node.op == "square" else scalar(node.inputs[1])
        square = _product(left, left)
        return square if exponent == 2 else _product(square, left) if exponent == 3 else None
    right = _polynomial(node.inputs[1], x, depth - 1)
    if node.op == "mul":
        return _product(left, right)
    return None if right is None else tuple(a + b for a, b in zip(left, right, strict=True))


def _product(a: Polynomial | None, b: Polynomial | None) -> Polynomial | None:
    """Returns the product, or None if its degree is above 3."""
    if a is None or b is None:
        return None
    terms = [0.0] * (2 * _DEGREE + 1)
    for i, p in enumerate(a):
        for j, q in enumerate(b):
            terms[i + j] += p * q
    return None if any(terms[_DEGREE + 1 :]) else tuple(terms[: _DEGREE + 1])

"""Squared distances computed as |a|^2 + |b|^2 - 2 a b, whose terms overflow fp16 although their difference is small."""

from dataclasses import dataclass, field
from math import floor, log2, sqrt

import numpy as np

from hexane.bounds.any_input import LARGEST_GATE, bound
from hexane.graph import Node, Value, constant
from hexane.ops import simpler
from hexane.ops.match import Found, op
from hexane.ops.predicates import axes_of, scalar
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.form import Form
from hexane.passes.repair.squares import factored, squares
from hexane.validate import is_constant

MOVES = ("reshape", "expand_dims", "squeeze", "transpose", "broadcast_to", "identity", "neg", "relu")
LIMITS = ("maximum", "clip")
MOST_OPS = 24


@dataclass(slots=True)
class _Terms:
    """The tensors whose squares and products are added, and the largest number of terms in one sum."""

    tensors: dict[Value, None] = field(default_factory=dict)
    count: int = 1
    nodes: int = 0
    has_squares: bool = False
    has_product: bool = False

    def reach(self, value: Value | None) -> bool:
        """True if the value has degree two: if each tensor is multiplied by f, the value is multiplied by f^2."""
        self.nodes += 1
        if value is None or value.dtype.kind != "float" or self.nodes > MOST_OPS:
            return False
        value, _ = factored(value)
        if value is None:
            return False
        node = value.node
        if node.op == "const":
            return node.data is not None and bool((node.data >= 0).all())
        if node.op in ("add", "sub"):
            return all(self.reach(v) for v in node.inputs)
        if node.op in MOVES:
            return self.reach(node.inputs[0])
        if node.op in LIMITS:
            return _limit(node) is not None and self.reach(node.inputs[0])
        if node.op in ("reduce_sum", "reduce_sum_square") and (sums := squares(value)) is not None:
            self.has_squares = True
            return self._takes(sums.count, sums.x)
        if node.op == "matmul" and node.inputs[2] is None and node.inputs[0] is not None:
            self.has_product = True
            x, transposed = node.inputs[0], node.attrs["transpose_x"]
            return self._takes(x.shape[-2 if transposed else -1], x, node.inputs[1])
        return False

    def _takes(self, count: int, *tensors: Value | None) -> bool:
        self.count = max(self.count, count)
        self.tensors.update(dict.fromkeys(v for v in tensors if v is not None))
        return True


def _limit(node: Node) -> float | None:
    """Returns e if the node computes max(%x, e) by an op other than relu, for e from 0 to 1 / 1024, else None."""
    limit = scalar(node.inputs[1]) if node.op == "maximum" else None
    if node.op == "clip" and node.attrs["beta"] > 3e38:
        limit = float(node.attrs["alpha"])
    return limit if limit is not None and 0 <= limit <= LARGEST_LIMIT else None


LARGEST_LIMIT = 2.0**-10
SMALLEST = 2.0**-24  # smallest number of fp16


def _scaled(m: Found, value: Value | None, factor: Value) -> Value:
    """Returns the value of degree two rebuilt from tensors multiplied by the factor."""
    b, (inner, number) = Rewriter(*m.node.sources), factored(value)
    assert inner is not None
    node = inner.node
    if number != 1:
        return b.mul(_scaled(m, inner, factor), number)
    if node.op == "const":
        assert node.data is not None
        root = constant(np.sqrt(node.data).astype(inner.dtype.numpy), node.sources)
        return b.square(b.mul(root, b.reshape(factor, shape=(1,) * max(inner.type.rank, 1))))
    if node.op in ("add", "sub"):
        return m.make(node.op, [_scaled(m, v, factor) for v in node.inputs])[0]
    if node.op in LIMITS and (limit := _limit(node)):
        least = b.square(b.mul(b.reshape(factor, shape=(1,) * node.types[0].rank), sqrt(limit)))
        return b.maximum(_scaled(m, node.inputs[0], factor), b.maximum(least, SMALLEST))
    if node.op in (*MOVES, *LIMITS):
        others = [m.now(v) for v in node.inputs[1:]]
        return m.make(node.op, [_scaled(m, node.inputs[0], factor), *others], **node.attrs)[0]

    def times(x: Value | None) -> Value:
        now = m.now(x)
        assert now is not None
        return b.mul(now, b.reshape(factor, shape=(1,) * now.type.rank))

    if node.op == "matmul":
        return m.make("matmul", [times(node.inputs[0]), times(node.inputs[1])], **node.attrs)[0]
    sums = squares(inner)
    assert sums is not None
    return b.reduce_sum(b.square(times(sums.x)), axes=sums.axes, keep_dims=sums.keep_dims)


def distance(m: Found) -> Value | None:
    """sqrt(|%a|^2 + |%b|^2 - 2 * matmul(%a, %b))  ->  the same formula of %a * f and %b * f, divided by f

    Applies also to the sum times a factor up to 1/8, which is divided by f^2. The result is equal because each term has
    degree two, so that f^2 is a common factor. f is one number, min(1, m / the largest operand), where m is the result
    of `_most`.
    """
    node, factor = m.node, 1.0
    inner = node.inputs[0]
    if node.op in ("mul", "real_div"):
        inner, factor = factored(node.values[0])
        if not 0 < abs(factor) <= LARGEST_FACTOR:
            return None
    elif node.op == "pow" and scalar(node.inputs[1]) != 0.5:
        return None
    terms = _Terms()
    if inner is None or inner.node.op not in ("add", "sub", *MOVES, *LIMITS):
        return None
    if not terms.reach(inner) or not (terms.has_product and (terms.has_squares or _has_constant(inner))):
        return None
    if not terms.has_squares and any(is_constant(v.node) for v in terms.tensors):
        return None  # a linear layer
    tensors = [v for v in terms.tensors if not is_constant(v.node)]
    if not tensors or any(bound(v) <= LARGEST_GATE or is_scaled(v) for v in tensors):
        return None
    b = Rewriter(*node.sources)
    top = b.maximum(b.reduce_max(b.abs(m.now(tensors[0])), axes=_all(tensors[0]), keep_dims=False), _most(terms))
    for v in tensors[1:]:
        top = b.maximum(top, b.reduce_max(b.abs(m.now(v)), axes=_all(v), keep_dims=False))
    known = [float(abs(v.node.data).max(initial=0)) for v in terms.tensors if v.node.data is not None]
    top = b.maximum(top, max(known)) if known and max(known) > _most(terms) else top
    f = b.inverse(b.mul(top, 1 / _most(terms)))
    total = _scaled(m, inner, f)
    one = b.reshape(f, shape=(1,) * node.types[0].rank)
    if node.op in ("mul", "real_div"):
        step = b.real_div(sqrt(abs(factor)), one)
        y = b.mul(b.mul(total, step), step)
        return y if factor > 0 else b.neg(y)
    return b.real_div(b.sqrt(total), one)


LARGEST_FACTOR = 0.125  # the largest factor of a sum: larger ones bring few sums back into range


def _most(terms: _Terms) -> float:
    """Returns the largest number, a power of two, for which four sums of squares fit fp16's accumulator."""
    return simpler.LARGEST_SQUARED / 4 * 2.0 ** floor(-log2(terms.count) / 2)


def _all(value: Value) -> tuple[int, ...]:
    return axes_of((), value.type.rank)


def _has_constant(value: Value | None) -> bool:
    inner, _ = factored(value)
    if inner is None:
        return False
    if inner.node.op in ("add", "sub"):
        return any(v is not None and (v.node.op == "const" or _has_constant(v)) for v in inner.node.inputs)
    return inner.node.op in (*MOVES, *LIMITS) and _has_constant(inner.node.inputs[0])


def is_scaled(value: Value) -> bool:
    """True if the value is %x * f with a factor f that `distance` has made."""
    factors = value.node.inputs if value.node.op == "mul" else ()
    return any(
        v is not None
        and v.node.op == "reshape"
        and v.node.inputs[0] is not None
        and v.node.inputs[0].node.op == "inverse"
        for v in factors
    )


DISTANCE = Form(
    "distance",
    op("sqrt") | op("pow") | op("mul") | op("real_div"),
    distance,
    "both operands are scaled before they are squared: squares of numbers beyond 256 are infinite in fp16",
)

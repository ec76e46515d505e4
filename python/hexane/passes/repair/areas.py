"""Quotients of two sums of products, usually of box areas, whose products overflow fp16."""

from dataclasses import dataclass, field

from hexane.bounds.any_input import LARGEST_GATE, bound
from hexane.graph import Node, Value
from hexane.ops.match import Found, op
from hexane.ops.predicates import axes_of, uniform
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.distances import is_scaled
from hexane.passes.repair.form import Form
from hexane.passes.repair.squares import at_least, factored, squared
from hexane.validate import is_constant

MOVES = ("reshape", "expand_dims", "squeeze", "transpose", "broadcast_to", "identity", "neg", "relu")
MOST_OPS = 24
MOST = 64.0  # three products of numbers up to 64 have a sum of at most 12288
MOST_LIMIT = 1024.0
SMALLEST = 2.0**-24  # smallest number of fp16


@dataclass(slots=True)
class _Products:
    """The products that a sum adds, and the operands of these products."""

    nodes: dict[Node, None] = field(default_factory=dict)
    operands: dict[Value, None] = field(default_factory=dict)
    count: int = 0

    def reach(self, value: Value | None) -> bool:
        """True if the value is a sum of products of two computed tensors, and of small nonnegative constants."""
        value, _ = factored(value)
        self.count += 1
        if value is None or value.dtype.kind != "float" or self.count > MOST_OPS:
            return False
        if (known := uniform(value)) is not None:
            return 0 <= known <= MOST_LIMIT
        node = value.node
        if (limited := at_least(value)) is not None and node.op != "relu":
            return limited[1] <= MOST_LIMIT and self.reach(limited[0])
        if node.op in ("add", "sub"):
            return all(self.reach(v) for v in node.inputs)
        if node.op in MOVES:
            return self.reach(node.inputs[0])
        x = squared(value)
        operands = node.inputs if x is None else (x, x)
        if x is None and node.op != "mul":
            return False
        self.nodes[node] = None
        self.operands.update(dict.fromkeys(v for v in operands if v is not None))
        return all(v is not None and not is_constant(v.node) and bound(v) > LARGEST_GATE for v in operands)


def quotient_of_areas(m: Found) -> Value | None:
    """%a * %b / (%c * %d + %e * %g - %a * %b + e)  ->  the same formula of %a * f, %b * f, ... and e * f^2

    The result is equal because each term has degree two. f is one number for the whole tensor, min(1, 64 / the largest
    operand). The divisor must be a sum of products, and one product must occur in both sides, as in intersection over
    union.
    """
    above, below = m.node.inputs
    upper, lower = _Products(), _Products()
    if not upper.reach(above) or not lower.reach(below):
        return None
    if upper.nodes.keys().isdisjoint(lower.nodes) or len({**upper.nodes, **lower.nodes}) < LEAST_PRODUCTS:
        return None
    operands = [*{**upper.operands, **lower.operands}]
    if any(is_scaled(v) for v in operands):
        return None
    b, top = Rewriter(*m.node.sources), None
    for v in operands:
        now = m.now(v)
        assert now is not None
        largest = b.reduce_max(b.abs(now), axes=axes_of((), v.type.rank), keep_dims=False)
        top = largest if top is None else b.maximum(top, largest)
    assert top is not None
    f = b.inverse(b.mul(b.maximum(top, MOST), 1 / MOST))
    scaled: dict[Value, Value] = {}
    return b.real_div(_scaled(m, above, f, scaled), _scaled(m, below, f, scaled))


LEAST_PRODUCTS = 2


def _scaled(m: Found, value: Value | None, f: Value, scaled: dict[Value, Value]) -> Value:
    """Returns the value of degree two rebuilt from operands multiplied by f."""
    assert value is not None
    if value not in scaled:
        scaled[value] = _made(m, value, f, scaled)
    return scaled[value]


def _made(m: Found, value: Value, f: Value, scaled: dict[Value, Value]) -> Value:
    b, node = Rewriter(*m.node.sources), value.node
    inner, factor = factored(value)
    if factor != 1:
        return b.mul(_scaled(m, inner, f, scaled), factor)

    def shaped(y: Value, rank: int) -> Value:
        return b.reshape(y, shape=(1,) * rank)

    if (known := uniform(value)) is not None:
        return b.maximum(b.mul(shaped(b.square(f), max(value.type.rank, 1)), known), SMALLEST if known else 0.0)
    if (limited := at_least(value)) is not None and node.op != "relu":
        least = b.maximum(b.mul(shaped(b.square(f), value.type.rank), limited[1]), SMALLEST if limited[1] else 0.0)
        return b.maximum(_scaled(m, limited[0], f, scaled), least)
    if node.op in ("add", "sub"):
        return m.make(node.op, [_scaled(m, v, f, scaled) for v in node.inputs])[0]
    if node.op in MOVES:
        others = map(m.now, node.inputs[1:])
        return m.make(node.op, [_scaled(m, node.inputs[0], f, scaled), *others], **node.attrs)[0]
    x = squared(value)
    sides = [b.mul(m.now(v), shaped(f, v.type.rank)) for v in (node.inputs if x is None else (x, x)) if v is not None]
    return b.mul(*sides)


AREAS = Form(
    "quotient of areas",
    op("real_div"),
    quotient_of_areas,
    "the operands are scaled by the largest of them: areas beyond 65504 are infinite in fp16 before they are divided",
)

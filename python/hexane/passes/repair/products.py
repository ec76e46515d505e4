"""Products of two computed tensors that are scaled only afterwards, like attention scores."""

from collections import Counter
from dataclasses import dataclass, field
from math import frexp, ldexp

from hexane.graph import Graph, Node, Value, constant
from hexane.ops.match import Found, op
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.form import Form
from hexane.passes.repair.squares import factored
from hexane.validate.constants import is_constant

LEAST_POWER = -16
SHARED_FROM = -6  # smaller powers of two scale both operands, so that neither leaves fp16's normal numbers


# f(x * c) is f(x) * c for a power of two c above 0
MOVES: tuple[str, ...] = ("reshape", "expand_dims", "squeeze", "transpose", "broadcast_to", "tile", "identity", "neg")
MOVES += ("slice_by_size", "slice_by_index", "gather", "gather_along_axis", "pad", "reduce_max", "reduce_min", "relu")
JOINS = ("add", "sub", "concat", "maximum", "minimum", "select")
PRODUCTS = ("matmul", "einsum")
MOST_OPS = 24  # between the factor and its products


def factor_ahead(m: Found) -> Value | None:
    """matmul(%q, %k) * 0.125  ->  matmul(%q * 0.125, %k), for two computed operands

    Moves the power of two, which changes no digit; the rest of the factor, from 1 to 2, stays in place. Ops that a
    factor passes may stand between: a reshape, a transpose, the sum of two products (positions of Conformer and XLNet),
    a mask. Nothing else may read the ops between.
    """
    inner, factor = factored(m.node.values[0])
    power = _power(factor)
    if inner is None or power is None or inner.dtype.kind != "float":
        return None
    between = _Between(factor > 0, power >= SHARED_FROM)
    if not between.reach(inner) or not between.has_product or not _is_read_here_alone(m.graph, inner, between):
        return None
    made = _moved(m, inner, power, {v: None for node in between.nodes for v in node.values})
    rest = factor / ldexp(1, power)
    return made if rest == 1 else Rewriter(*m.node.sources).mul(made, rest)


@dataclass(slots=True)
class _Between:
    """The ops between a factor and the products that it moves to. is_positive: the factor is. takes_others: other
    tensors may be added; they are multiplied by the factor."""

    is_positive: bool
    takes_others: bool
    nodes: dict[Node, None] = field(default_factory=dict)
    has_product: bool = False

    def reach(self, value: Value | None) -> bool:
        """True if the factor can pass every op down to products of two computed tensors and constants."""
        if value is None or value.node in self.nodes or is_constant(value.node):
            return value is not None
        node = value.node
        if len(self.nodes) == MOST_OPS or value.dtype.kind != "float":
            return False
        if node.op in PRODUCTS and self._is_product(node):
            self.nodes[node] = None
            return True
        if not self._passes(node):
            return self.takes_others
        self.nodes[node] = None
        return all(self.reach(v) for v in _data_of(node))

    def _passes(self, node: Node) -> bool:
        if node.op == "pad":
            return bool(node.attrs["mode"] != "constant" or node.attrs["value"] == 0)
        signed = node.op in ("reduce_max", "reduce_min", "relu", "maximum", "minimum")
        return node.op in (*MOVES, *JOINS) and (self.is_positive or not signed)

    def _is_product(self, node: Node) -> bool:
        """A product with a weight may join one of two computed tensors."""
        if len(node.inputs) > 2 and (node.op == "einsum" or node.inputs[2] is not None):
            return False
        computed = [not _is_fixed(v) for v in node.inputs[:2]]
        self.has_product = self.has_product or (len(computed) == 2 and all(computed))
        return any(computed)


def _data_of(node: Node) -> tuple[Value | None, ...]:
    """The inputs that a factor multiplies."""
    if node.op == "select":
        return node.inputs[1:]
    return node.inputs if node.op in JOINS else node.inputs[:1]


def _is_read_here_alone(graph: Graph, inner: Value, between: _Between) -> bool:
    """True if all readers of the ops between are among them too, so that nothing is computed twice."""
    readers = Counter(v for node in between.nodes if node.op not in PRODUCTS for v in _data_of(node) if v is not None)
    readers[inner] += 1
    return all(graph.use_counts()[v] == readers[v] for node in between.nodes for v in node.values)


def _moved(m: Found, value: Value, power: int, made: dict[Value, Value | None]) -> Value:
    """The value times a power of two. made: maps each value between to its new value."""
    if (known := made.get(value)) is not None:
        return known
    node, b = value.node, Rewriter(*m.node.sources)
    if value not in made:
        if node.op == "const" and node.data is not None:  # fp16 would limit a mask of -1e9 before its factor
            return constant((node.data * ldexp(1, power)).astype(value.dtype.numpy), node.sources)
        now = m.now(value)
        assert now is not None
        return b.mul(now, ldexp(1, power))
    if node.op in PRODUCTS:
        x, y = (m.now(v) for v in node.inputs[:2])
        fixed = [_is_fixed(v) for v in node.inputs[:2]]
        if any(fixed):
            scaled = [v if is_fixed else b.mul(v, ldexp(1, power)) for v, is_fixed in zip((x, y), fixed, strict=True)]
        else:
            scaled = list(_scaled(b, power, x, y))
        inputs = [*scaled, *node.inputs[2:]]
    else:
        data = _data_of(node)
        place = 1 if node.op == "select" else 0
        inputs = [
            _moved(m, v, power, made) if v is not None and place <= i < place + len(data) else m.now(v)
            for i, v in enumerate(node.inputs)
        ]
    (now,) = m.make(node.op, inputs, **node.attrs)
    made[value] = now
    return now


def _power(factor: float) -> int | None:
    """The exponent of the power of two that moves; None where the factor is not below 1."""
    if not ldexp(1, -LARGEST_SHIFT) <= abs(factor) < 1:
        return None
    return max(frexp(factor)[1] - 1, LEAST_POWER)


LARGEST_SHIFT = 40  # a factor below is no scale of scores


def _scaled(b: Rewriter, power: int, x: Value | None, y: Value | None) -> tuple[Value, Value]:
    assert x is not None
    assert y is not None
    if power >= SHARED_FROM:
        return b.mul(x, ldexp(1, power)), y
    half = power // 2
    return b.mul(x, ldexp(1, half)), b.mul(y, ldexp(1, power - half))


def _is_fixed(value: Value | None) -> bool:
    """True if the value is a weight, into which its factor is folded, or which takes it as the layer's gain."""
    return value is None or value.node.op == "param" or is_constant(value.node)


WHY = (
    "the power of two in the scale is moved ahead of the product: scores that reach 32768 before their scale are "
    "infinite in the engine's accumulator"
)
PRODUCT = Form("product", op("mul") | op("real_div"), factor_ahead, WHY)

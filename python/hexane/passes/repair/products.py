"""Products that are scaled only after they are computed: attention scores, gates, layers with weights."""

from collections import Counter
from dataclasses import dataclass, field
from functools import reduce
from math import ceil, frexp, inf, ldexp, log2

from hexane.bounds.any_input import LARGEST_GATE, bound
from hexane.graph import Graph, Node, Value, constant
from hexane.ops.match import Found, op
from hexane.ops.predicates import uniform
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.form import Form
from hexane.passes.repair.squares import factored, squared
from hexane.validate.constants import is_constant

LEAST_POWER = -48  # operands that lose digits by a factor of 2^-48 have a product too small to matter.
SHARED_FROM = -6  # Both operands share a power of two below 2^-6, so that neither leaves fp16's normal numbers.


# Ops f with f(x * c) = f(x) * c for each positive power of two c.
MOVES: tuple[str, ...] = ("reshape", "expand_dims", "squeeze", "transpose", "broadcast_to", "tile", "identity", "neg")
MOVES += ("slice_by_size", "slice_by_index", "gather", "gather_along_axis", "pad", "reduce_max", "reduce_min", "relu")
JOINS = ("add", "sub", "concat", "maximum", "minimum", "select")
PRODUCTS = ("matmul", "einsum")
MOST_OPS = 24  # most ops between the factor and its products.
LAYERS = ("linear", "conv", "conv_transpose", "matmul")  # Layers whose weights take a factor.
ADDS = ("avg_pool", "reduce_sum", "reduce_mean")  # Windows of local response normalisation, sums of products.
QUOTIENTS = ("real_div", "inverse", "rsqrt", "pow", "exp")  # Ops whose products are usually near 1.


SMALLEST_OF_GATE = 2.0**-4  # A smaller factor takes digits from the gate: `factor_into` moves only as much as needed.


def gate_ahead(m: Found) -> Value | None:
    """%x * relu6(%x + 3) / 6  ->  %x * (relu6(%x + 3) / 6), if one operand's bound is above 2 and below the other's

    The result is equal because multiplication is associative. Old and new form round twice, and no layer is added.
    """
    inner, factor = factored(m.node.values[0])
    product = m.alone(inner, "mul")
    if product is None or inner is None or inner.dtype.kind != "float" or not SMALLEST_OF_GATE <= abs(factor) < 1:
        return None
    for x, gate in (product.inputs, product.inputs[::-1]):
        if x is None or gate is None or is_constant(x.node) or is_constant(gate.node) or x.shape != inner.shape:
            continue
        if not LARGEST_GATE < bound(gate) < bound(x):
            continue
        b, now = Rewriter(*m.node.sources), m.now(gate)
        assert now is not None
        is_whole = m.node.op == "real_div" and m.node.inputs[0] == inner
        scaled = b.real_div(now, 1 / factor) if is_whole else b.mul(now, factor)
        return b.mul(m.now(x), scaled)
    return None


def factor_into(m: Found) -> Value | None:
    """linear(%x, W) * 0.001  ->  linear(%x, W * 2^-10) * 1.024

    %a * %b * 0.001  ->  (%a * 2^-5) * (%b * 2^-5) * 1.024

    The result is equal because a product is linear in each operand. Powers of two do not change the digits of normal
    numbers. Weights are divided by a power of two that leaves their largest magnitude at 1/16 or more. Two computed
    operands share the power of two. Reshapes, transposes, relu and sums of products with the factor may come between
    the product and the factor, if nothing else reads them.
    """
    inner, factor = factored(m.node.values[0])
    power = _power(factor, LEAST_OF_ELEMENTS)
    if inner is None or power is None or power > LEAST_GAIN_OF_ENDS or inner.dtype.kind != "float":
        return None
    between = _Between(factor > 0, takes_others=False, of_elements=True)
    if not between.reach(inner) or not between.has_product or not _is_read_here_alone(m.graph, inner, between):
        return None
    headroom = [_headroom(node) for node in between.nodes if _is_layer(node)]
    least_gain = LEAST_GAIN
    if headroom:
        power, least_gain = max(power, -min(headroom)), LEAST_GAIN_OF_LAYERS
    elif any(len(_factors(m.graph, node)) > 2 for node in between.nodes if _is_of_elements(node)):
        power = _power(factor, LEAST_OF_SEVERAL) or power
    elif all(node.op in MOVES or _is_of_elements(node) for node in between.nodes):  # other sums may overflow
        products = [node for node in between.nodes if _is_of_elements(node)]
        power = max(power, -max(map(_needed, products)))
        if all(bound(v) < inf for node in products for v in node.inputs[:2] if v is not None):
            least_gain = LEAST_GAIN_OF_ENDS
    if power > least_gain:
        return None
    moved = _moved(m, inner, power, {v: None for node in between.nodes for v in node.values})
    rest = factor / ldexp(1, power)
    return moved if rest == 1 else Rewriter(*m.node.sources).mul(moved, rest)


LEAST_OF_ELEMENTS = -17  # enough for any product of two numbers of fp16.
LEAST_OF_SEVERAL = -40
LEAST_GAIN = -3  # For factors below 1 / 4: a smaller gain is not worth a layer.
LEAST_GAIN_OF_ENDS = -1  # For operands with known bounds: the needed power is exact.
LEAST_GAIN_OF_LAYERS = -5  # Scales of queries are larger: these layers stay unchanged.
SMALLEST_WEIGHT = 2.0**-4  # For a layer's largest weight: a weight 1024 times smaller is still normal in fp16.


def _is_layer(node: Node) -> bool:
    """True if the node multiplies a computed tensor by constant weights, with a constant bias or none. A convolution
    that sums a product is no layer here."""
    if node.op not in LAYERS or len(node.inputs) < 2 or _adds_products(node):
        return False
    x, weight, *rest = node.inputs
    return (
        x is not None
        and not _is_fixed(x)
        and weight is not None
        and weight.node.op == "const"
        and weight.dtype.kind == "float"
        and all(v is None or v.node.op == "const" for v in rest)
    )


def _adds_products(node: Node) -> bool:
    """True if the op is a sum or mean, or a convolution of an elementwise product, so that a factor can move to its
    operand."""
    if node.op in ADDS:
        return True
    x = node.inputs[0] if node.inputs else None
    return node.op == "conv" and x is not None and node.inputs[2] is None and _is_of_elements(x.node)


def _headroom(node: Node) -> int:
    """Returns the exponent of the power of two by which the layer's weights may be divided."""
    weight = node.inputs[1]
    assert weight is not None
    assert weight.node.data is not None
    largest = float(abs(weight.node.data).max(initial=0))
    return frexp(largest / SMALLEST_WEIGHT)[1] - 1 if 0 < largest < inf else 0


def _is_of_elements(node: Node) -> bool:
    """True if the node is %a * %b or %a^2, with computed tensors that may all be large and have no small factor yet."""
    if (x := squared(node.values[0])) is not None:
        operands: tuple[Value | None, ...] = (x, x)
    elif node.op == "mul":
        operands = node.inputs
    else:
        return False
    return all(
        v is not None
        and not _is_fixed(v)
        and v.shape == node.types[0].shape
        and v.node.op not in QUOTIENTS
        and abs(factored(v)[1]) >= 1
        and bound(v) > LARGEST_GATE
        for v in operands
    )


def _needed(node: Node) -> int:
    """Returns n such that a product of elements divided by 2^n fits the accumulator."""
    x = squared(node.values[0])
    operands = node.inputs if x is None else (x, x)
    most = [min(bound(v), LARGEST) for v in operands if v is not None]
    return max(0, ceil(log2(most[0] * most[1] / ACCUMULATED))) if min(most) > 0 else 0


LARGEST = 65504.0
ACCUMULATED = 32768.0


def _is_enlarged(node: Node) -> bool:
    """True if the node is %x * c with a number |c| >= 2, such as (q - z) * s with a large scale s."""
    return node.op == "mul" and any(
        (known := uniform(v)) is not None and abs(known) >= 2 and x is not None and x.shape == node.types[0].shape
        for x, v in (node.inputs, node.inputs[::-1])
    )


def factor_ahead(m: Found) -> Value | None:
    """matmul(%q, %k) * 0.125  ->  matmul(%q * 0.125, %k), for two computed operands

    Moves the power of two in the factor, which changes no digit. The remaining factor, from 1 to 2, stays after the
    product. Ops that commute with a factor may come between: a reshape, a transpose, the sum of two products (positions
    of Conformer and XLNet), a mask. Nothing else may read the ops between.
    """
    inner, factor = factored(m.node.values[0])
    power = _power(factor)
    if inner is None or power is None or inner.dtype.kind != "float":
        return None
    between = _Between(factor > 0, power >= SHARED_FROM)
    if not between.reach(inner) or not between.has_product or not _is_read_here_alone(m.graph, inner, between):
        return None
    moved = _moved(m, inner, power, {v: None for node in between.nodes for v in node.values})
    rest = factor / ldexp(1, power)
    return moved if rest == 1 else Rewriter(*m.node.sources).mul(moved, rest)


def factor_of_broadcast(m: Found) -> Value | None:
    """%x * reduce_sum(%y) * c  ->  (%x * 2^-n) * (reduce_sum(%y) * 2^-k) * rest, for c below 1/4 and sums that
    broadcast

    The gates of focal modulation are sums that broadcast. Later forms move the power of two into the sum.
    """
    inner, factor = factored(m.node.values[0])
    product, power = m.alone(inner, "mul"), _power(factor, LEAST_OF_BROADCAST)
    if product is None or power is None or power > LEAST_GAIN or inner is None or inner.dtype.kind != "float":
        return None
    for x, row in (product.inputs, product.inputs[::-1]):
        if x is None or row is None or x.shape != inner.shape or row.shape == inner.shape:
            continue
        total, _ = factored(row)
        if total is None or total.node.op not in ADDS or m.graph.use_counts()[row] != 1 or bound(x) <= LARGEST_GATE:
            continue
        if _is_fixed(x) or bound(row) <= LARGEST_GATE or x.node.op in QUOTIENTS or abs(factored(x)[1]) < 1:
            continue
        b, half = Rewriter(*m.node.sources), power // 2
        y = b.mul(b.mul(m.now(x), ldexp(1, power - half)), b.mul(m.now(row), ldexp(1, half)))
        rest = factor / ldexp(1, power)
        return y if rest == 1 else b.mul(y, rest)
    return None


LEAST_OF_BROADCAST = -34  # enough for an fp16 number times a sum of fp16 products


@dataclass(slots=True)
class _Between:
    """The ops between a factor and the products to which it can move.

    is_positive: the factor is positive. takes_others: other summands are allowed and are multiplied by the factor.
    of_elements: the products are elementwise products or layers with weights, not matrix products of computed tensors.
    """

    is_positive: bool
    takes_others: bool
    of_elements: bool = False
    nodes: dict[Node, None] = field(default_factory=dict)
    has_product: bool = False

    def reach(self, value: Value | None) -> bool:
        """Collects the ops between this value and the products, layers and constants that it is computed from. True if
        a factor of the value may be applied to these products and layers instead."""
        if value is None or value.node in self.nodes or is_constant(value.node):
            return value is not None
        node = value.node
        if len(self.nodes) == MOST_OPS or value.dtype.kind != "float":
            return False
        if self.of_elements:
            if _is_layer(node) or _is_of_elements(node) or _is_enlarged(node):
                self.nodes[node], self.has_product = None, True
                return True
            if _adds_products(node):
                self.nodes[node] = None
                return self.reach(node.inputs[0])
        elif node.op in PRODUCTS and self._is_product(node):
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
        """True for a matrix product with a computed operand. has_product is set if both operands are computed."""
        if len(node.inputs) > 2 and (node.op == "einsum" or node.inputs[2] is not None):
            return False
        computed = [not _is_fixed(v) for v in node.inputs[:2]]
        self.has_product = self.has_product or (len(computed) == 2 and all(computed))
        return any(computed)


def _data_of(node: Node) -> tuple[Value | None, ...]:
    """Returns the inputs that a factor multiplies."""
    if node.op == "select":
        return node.inputs[1:]
    return node.inputs if node.op in JOINS else node.inputs[:1]


def _is_read_here_alone(graph: Graph, inner: Value, between: _Between) -> bool:
    """True if the ops between the factor and its products have no other readers, so that nothing is computed twice."""
    readers = Counter(v for node in between.nodes if not _ends(node) for v in _data_of(node) if v is not None)
    readers[inner] += 1
    return all(graph.use_counts()[v] == readers[v] for node in between.nodes for v in node.values)


def _ends(node: Node) -> bool:
    """True if the node is a product, whose operands are not part of the ops between."""
    return node.op in (*PRODUCTS, *LAYERS, "mul", "square", "pow") and not _adds_products(node)


def _moved(m: Found, value: Value, power: int, moved: dict[Value, Value | None]) -> Value:
    """Returns the value times a power of two. moved: maps each value between the factor and the products to its new
    value, or to None before that exists."""
    if (known := moved.get(value)) is not None:
        return known
    node, b = value.node, Rewriter(*m.node.sources)
    if value not in moved:
        if node.op == "const":  # scaled at compile time: fp16 would clamp a mask of -1e9 first
            return _times(value, power)
        now = m.now(value)
        assert now is not None
        return b.mul(now, ldexp(1, power))
    if node.op in ("mul", "square", "pow"):
        moved[value] = now = _elements(m, node, power)
        return now
    if _is_layer(node):
        weights = [None if v is None else _times(v, power) for v in node.inputs[1:]]
        inputs = [m.now(node.inputs[0]), *weights]
    elif node.op in PRODUCTS:
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
            _moved(m, v, power, moved) if v is not None and place <= i < place + len(data) else m.now(v)
            for i, v in enumerate(node.inputs)
        ]
    (now,) = m.make(node.op, inputs, **node.attrs)
    moved[value] = now
    return now


def _factors(graph: Graph, node: Node, depth: int = 0) -> tuple[Value, ...]:
    """Returns the operands of an elementwise product. An operand that is an elementwise product without another reader
    is replaced by its own operands."""
    x = squared(node.values[0])
    result: list[Value] = []
    for v in node.inputs if x is None else (x, x):
        assert v is not None
        alone = x is None and graph.use_counts()[v] == 1 and _is_of_elements(v.node)
        result += _factors(graph, v.node, depth + 1) if alone and depth < MOST_NESTED else (v,)
    return tuple(result)


MOST_NESTED = 3


def _elements(m: Found, node: Node, power: int) -> Value:
    """Returns an elementwise product times a power of two."""
    b = Rewriter(*m.node.sources)
    if _is_of_elements(node) and len(factors := _factors(m.graph, node)) > 2:
        shares = [(power * (i + 1)) // len(factors) - (power * i) // len(factors) for i in range(len(factors))]
        scaled = [b.mul(m.now(v), ldexp(1, share)) for v, share in zip(factors, shares, strict=True)]
        return reduce(b.mul, scaled)
    if (x := squared(node.values[0])) is not None:
        half, now = power // 2, m.now(x)
        assert now is not None
        y = b.square(b.mul(now, ldexp(1, half)))
        return y if power % 2 == 0 else b.mul(y, 2.0)
    for place in (0, 1):
        if (known := uniform(node.inputs[place])) is not None:
            return b.mul(m.now(node.inputs[1 - place]), known * ldexp(1, power))
    # The larger operand comes first, because `_scaled` applies an unshared factor to the first operand.
    operands = sorted(node.inputs, key=lambda v: 0.0 if v is None else -min(bound(v), LARGEST))
    return b.mul(*_scaled(b, power, *(m.now(v) for v in operands)))


def _times(value: Value, power: int) -> Value:
    """Returns a constant times a power of two."""
    assert value.node.data is not None
    return constant((value.node.data * ldexp(1, power)).astype(value.dtype.numpy), value.node.sources)


def _power(factor: float, least: int = LEAST_POWER) -> int | None:
    """Returns the exponent of the power of two that moves, or None if the factor is not below 1 or is too small."""
    if not ldexp(1, -LARGEST_SHIFT) <= abs(factor) < 1:
        return None
    return max(frexp(factor)[1] - 1, least)


LARGEST_SHIFT = 48  # a smaller factor is not a scale of scores


def _scaled(b: Rewriter, power: int, x: Value | None, y: Value | None) -> tuple[Value, Value]:
    assert x is not None
    assert y is not None
    if power >= SHARED_FROM:
        return b.mul(x, ldexp(1, power)), y
    half = power // 2
    return b.mul(x, ldexp(1, half)), b.mul(y, ldexp(1, power - half))


def _is_fixed(value: Value | None) -> bool:
    """True if the value is a weight: a factor costs nothing, because it is folded into the weight or becomes the
    layer's gain."""
    return value is None or value.node.op == "param" or is_constant(value.node)


WHY = (
    "the power of two in the scale is moved ahead of the product: scores that reach 32768 before they are scaled are "
    "infinite in the engine's accumulator"
)
PRODUCT = Form("product", op("mul") | op("real_div"), factor_ahead, WHY)
ELEMENTS = "a product beyond 65504 is infinite in fp16 before its factor"
GATE = Form("gate", op("mul") | op("real_div"), gate_ahead, f"the factor is moved to the bounded operand: {ELEMENTS}")
BROADCAST = Form(
    "factor of a product with a sum",
    op("mul") | op("real_div"),
    factor_of_broadcast,
    f"the power of two in the factor is shared by the operands: {ELEMENTS}",
)
INTO = Form(
    "factor of a product",
    op("mul") | op("real_div"),
    factor_into,
    f"the power of two in the factor is moved into the product, or into the layer's weights: {ELEMENTS}",
)

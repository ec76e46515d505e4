"""Changes of a network that keep its results, tried before a report advises them.

In real numbers all changes are exact. A power of two may pass through a product, with its bias scaled too. A sum may
become a product with ones, or the sum of its parts. No factor passes through an activation.
"""

from collections.abc import Callable, Collection, Sequence
from math import isinf, prod

import numpy as np

from hexane.dtypes import FP16, FP32
from hexane.graph import Array, Graph, Node, Value, constant
from hexane.ops import OPS, apply
from hexane.ops.shape_rules import axis_indices
from hexane.report.difference import Difference

PRODUCTS = ("conv", "conv_transpose", "linear", "matmul")  # products: input 0 is scaled, input 2 is the bias
SUMS = ("reduce_sum", "reduce_mean")
_FLOATS = (FP16, FP32)
Change = Callable[[Node, Sequence[Value | None]], Value]


def changed(graph: Graph, nodes: Collection[Node], change: Change) -> Graph:
    """Returns the graph with the only result of each of these nodes replaced by `change(node)`. Taps are kept."""
    return graph.rewrite(lambda n, inputs: [change(n, inputs)] if n in nodes else None)


def product_in(graph: Graph, number: int, known: Collection[int], sources: Sequence[str]) -> Node | None:
    """Returns the product that a program has fused with the layer: the only one between the layer and the known layers,
    or among several the only one of these sources. Returns None if there is no such product."""
    numbers = {node: n for n, node in enumerate(graph.nodes)}
    start = graph.nodes[number]
    products: list[Node] = []
    stack, met = [start], set[Node]()
    while stack:
        node = stack.pop()
        if node in met or (node is not start and numbers[node] in known):
            continue
        met.add(node)
        if node.op in PRODUCTS and node.types[0].dtype in _FLOATS:
            products.append(node)
        else:
            stack += [v.node for v in node.inputs if v is not None]
    if len(products) > 1:
        products = [node for node in products if set(node.sources) & set(sources)]
    return products[0] if len(products) == 1 else None


def scaled(factor: float) -> Change:
    """matmul(%x, %w)  ->  mul(matmul(mul(%x, factor), %w), 1 / factor); a bias is multiplied by the factor too."""

    def change(node: Node, inputs: Sequence[Value | None]) -> Value:
        whole = [_times(v, factor) if i in (0, 2) and v is not None else v for i, v in enumerate(inputs)]
        return _times(apply(OPS[node.op], whole, node.attrs, node.sources)[0], 1 / factor)

    return change


def split(parts: int) -> Change:
    """matmul(%x, w)  ->  add(matmul(%x, w1), matmul(%x, w2)), for two parts: in w1 and w2 every second channel of the
    sum is 0. The weights are constants."""

    def change(node: Node, inputs: Sequence[Value | None]) -> Value:
        x, weight, *bias = inputs
        assert weight is not None
        assert weight.node.data is not None
        axis = _added_axis(node, weight)
        place = np.arange(weight.shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(weight.shape))])
        total: Value | None = None
        for part in range(parts):
            own = np.where(place % parts == part, weight.node.data, 0).astype(weight.dtype.numpy)
            whole = [x, constant(own, weight.node.sources), *(bias if part == 0 else [None] * len(bias))]
            result = apply(OPS[node.op], whole, node.attrs, node.sources)[0]
            total = result if total is None else apply(OPS["add"], [total, result], {}, node.sources)[0]
        assert total is not None
        return total

    return change


def can_split(node: Node, parts: int) -> bool:
    weight = node.inputs[1]
    whole = node.op != "conv_transpose" or node.attrs["groups"] == 1
    return (
        whole
        and weight is not None
        and weight.node.data is not None
        and weight.shape[_added_axis(node, weight)] >= parts
    )


def _added_axis(node: Node, weight: Value) -> int:
    """Returns the weight's axis over which products are summed."""
    last = len(weight.shape) - 1
    if node.op == "matmul":
        return last if node.attrs["transpose_y"] else max(last - 1, 0)
    return 0 if node.op == "conv_transpose" else 1


def has_bias(node: Node) -> bool:
    return len(node.inputs) > 2 and node.inputs[2] is not None


def added_by_a_product(node: Node, inputs: Sequence[Value | None]) -> Value:
    """reduce_sum(%x)  ->  reshape(matmul(reshape(transpose(%x)), ones)); a mean is multiplied by 1 / n."""
    x = inputs[0]
    assert x is not None
    axes = sorted(axis_indices(node.attrs["axes"], len(x.shape)) or range(len(x.shape)))
    order = [axis for axis in range(len(x.shape)) if axis not in axes] + axes
    extent = prod(x.shape[axis] for axis in axes)
    rows = apply(OPS["transpose"], [x], {"perm": tuple(order)}, node.sources)[0]
    rows = apply(OPS["reshape"], [rows], {"shape": (-1, extent)}, node.sources)[0]
    ones = constant(np.ones((extent, 1), x.dtype.numpy), node.sources)
    sums = apply(OPS["matmul"], [rows, ones], {}, node.sources)[0]
    if node.op == "reduce_mean":
        sums = _times(sums, 1 / extent)
    return apply(OPS["reshape"], [sums], {"shape": node.types[0].shape}, node.sources)[0]


def better(after: Difference, before: Difference) -> bool:
    """True if a change is worth its advice: no overflow is left, and there was one before or the distance has at least
    halved."""
    return not after.overflows and (bool(before.overflows) or after.relative_l2 <= before.relative_l2 / 2)


def as_tried(before: Difference, after: Difference) -> str:
    """Returns a text such as "tried: relative L2 0.3 before, 0.0004 after"."""
    return f"tried: {_said(before)} before, {_said(after)} after"


def _said(d: Difference) -> str:
    if not d.overflows and isinf(d.relative_l2):  # distance from an exact 0
        return f"{d.max_abs:.2g} apart"
    return (
        f"{d.overflows} of {d.size} infinite or NaN"
        if d.overflows or not d.finite
        else f"relative L2 {d.relative_l2:.2g}"
    )


def _times(value: Value, factor: float) -> Value:
    number: Array = np.asarray(factor, value.dtype.numpy)
    if value.node.op == "const" and value.node.data is not None:
        return constant((value.node.data * number).astype(value.dtype.numpy), value.node.sources)
    return apply(OPS["mul"], [value, constant(number, value.node.sources)], {}, value.node.sources)[0]

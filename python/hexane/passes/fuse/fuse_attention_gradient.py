"""Recognises the gradients of attention as the ops that `hx.grad` makes of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hexane.dtypes import BOOL, FP32
from hexane.graph import Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.ops.match import made_by, op
from hexane.ops.predicates import scalar
from hexane.ops.records.attention_gradient import ATTENTION_GRADIENT
from hexane.targets import Target

# The gradient of the scores, from the softmax of the scores and its own gradient.
_OF_WEIGHTS = op("mul", "weights", op("reduce_sum", "shares", alone=True), alone=True)
_OF_SOFTMAX = op("sub", op("mul", "products", "weights", name="shares"), _OF_WEIGHTS)


Users = Mapping[Value, Sequence[Node]]
Counts = Mapping[Value, int]


@dataclass(frozen=True, slots=True)
class _Attention:
    inputs: tuple[Value | None, ...]  # query, key, value, gradient, mask
    scale: float
    causal: bool
    hidden: float
    gradients: tuple[Value, Value, Value]  # gradients of query, key and value


def fuse_attention_gradient(graph: Graph, target: Target) -> Graph:
    """p = softmax(matmul(%q, %k) {transpose_y=True} * 0.125 + %mask), d = matmul(%g, %v) {transpose_y=True},
    s = (d * p - p * reduce_sum(d * p)) * 0.125,
    matmul(%s, %k), matmul(%s, %q) {transpose_x=True}, matmul(%p, %g) {transpose_x=True}
    ->  attention_gradient(%q, %k, %v, %g, %mask) {scale=0.125}

    %q, %k, %v and %g are fp32 and have one shape. The mask may be missing, or added to the scores, or be a select
    between the scores and a constant. Nothing else may read the intermediate values, which are then never stored. The
    kernel may sum over keys and queries in another order.
    """
    if not {"softmax", "reduce_sum", "sub"} <= graph.ops:
        return graph
    users, place = graph.users(), {node: i for i, node in enumerate(graph.nodes)}
    gradients: dict[Node, tuple[_Attention, int]] = {}
    for node in graph.nodes:
        attention = _attention(node, graph, users) if node.op == "sub" else None
        if attention is None:
            continue
        last = max((place[v.node] for v in attention.inputs if v is not None and v.node in place), default=-1)
        if all(place[v.node] > last for v in attention.gradients):
            gradients |= {v.node: (attention, i) for i, v in enumerate(attention.gradients)}
    if not gradients:
        return graph
    became: dict[Value, Value] = {}
    by_attention: dict[int, tuple[Value, ...]] = {}

    def change(node: Node, _: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node not in gradients:
            return None
        a, i = gradients[node]
        if id(a) not in by_attention:
            operands = [None if v is None else became.get(v, v) for v in a.inputs]
            attrs = {"scale": a.scale, "causal": a.causal, "hidden": a.hidden}
            by_attention[id(a)] = apply(OPS[ATTENTION_GRADIENT], operands, attrs, node.sources)
        return (by_attention[id(a)][i],)

    return graph.rewrite(change, became=became)


def _attention(node: Node, graph: Graph, users: Users) -> _Attention | None:
    """Returns the attention whose softmax has its gradient computed by the node, or None."""
    counts = graph.use_counts()
    for bound in _OF_SOFTMAX.match(graph, node.values[0], {}):
        weights, products, shares = bound["weights"], bound["products"], bound["shares"]
        softmax, product = made_by(weights, "softmax"), made_by(products, "matmul")
        if softmax is None or product is None or (counts[weights], counts[products], counts[shares]) != (3, 1, 2):
            continue
        rows = node.types[0].rank - 1
        (total,) = [user for user in users[shares] if user.op == "reduce_sum"]
        if softmax.attrs["axis"] != rows or total.attrs["axes"] != (rows,) or not total.attrs["keep_dims"]:
            continue
        if (attention := _of_parts(node.values[0], softmax, product, counts, users)) is not None:
            return attention
    return None


def _of_parts(slopes: Value, softmax: Node, products: Node, counts: Counts, users: Users) -> _Attention | None:
    """Returns the attention with these parts, or None. slopes: the gradient of the softmax's operand. products:
    the matrix product of the gradient and the values."""
    weights, scores, mask, hidden = softmax.values[0], softmax.inputs[0], None, -math.inf
    chosen = made_by(scores, "select", "add")
    if chosen is not None and counts[chosen.values[0]] == 1:
        mask, scores, hidden = _unmasked(chosen)
    scaled, scale = _unscaled(scores, counts)
    of_scores = made_by(scaled, "matmul")
    if of_scores is None or scaled is None or counts[scaled] != 1 or scaled.type != weights.type:
        return None
    if chosen is not None and chosen.op == "select":
        kept = _only_user(slopes, users, counts, "select")
        if kept is None or kept.inputs[:2] != (mask, slopes) or scalar(kept.inputs[2]) != 0:
            return None
        slopes = kept.values[0]
    if scale != 1:
        factor = _only_user(slopes, users, counts, "mul")
        if factor is None or scale not in map(scalar, factor.inputs):
            return None
        slopes = factor.values[0]
    (query, key), (gradient, value) = (_operands(node, transpose_y=True) for node in (of_scores, products))
    if query is None or key is None or gradient is None or value is None or counts[slopes] != 2:
        return None
    if {v.type for v in (query, key, value, gradient)} != {query.type} or query.dtype is not FP32:
        return None
    if mask is not None and mask.dtype not in (FP32, BOOL):
        return None
    of_query = _product(users[slopes], (slopes, key), transpose_x=False)
    of_key = _product(users[slopes], (slopes, query), transpose_x=True)
    of_value = _product(users[weights], (weights, gradient), transpose_x=True)
    if of_query is None or of_key is None or of_value is None:
        return None
    causal = hidden == -math.inf and _is_causal(mask, query.shape[-2])
    inputs = (query, key, value, gradient, None if causal else mask)
    return _Attention(inputs, scale, causal, hidden, (of_query, of_key, of_value))


def _unmasked(chosen: Node) -> tuple[Value | None, Value | None, float]:
    """Returns (mask, scores, the score of a hidden key). The scores are None if the node does not mask any."""
    if chosen.op == "select":
        mask, scores, other = chosen.inputs
        known = scalar(other)
        return (mask, None, 0.0) if known is None or math.isnan(known) else (mask, scores, known)
    for scores, mask in (chosen.inputs, chosen.inputs[::-1]):
        if scores is not None and scores.type == chosen.types[0] and made_by(scores, "mul", "matmul") is not None:
            return mask, scores, -math.inf
    return None, None, 0.0


def _unscaled(value: Value | None, counts: Counts) -> tuple[Value | None, float]:
    """Returns (x, c) such that the value is x * c with constant c. Returns (value, 1) if the value is no product with a
    constant or has other readers."""
    node = made_by(value, "mul")
    for x, factor in () if node is None or value is None or counts[value] != 1 else (node.inputs, node.inputs[::-1]):
        known = scalar(factor)
        if known is not None and x is not None and value is not None and x.type == value.type:
            return x, known
    return value, 1.0


def _only_user(value: Value, users: Users, counts: Counts, op: str) -> Node | None:
    """Returns the value's only reader if that is this op, else None."""
    readers = users.get(value, [])
    return readers[0] if counts[value] == len(readers) == 1 and readers[0].op == op else None


def _operands(product: Node, **transposes: bool) -> tuple[Value | None, Value | None]:
    attrs = {"transpose_x": False, "transpose_y": False} | transposes
    fits = not any(product.inputs[2:]) and all(product.attrs[name] == flag for name, flag in attrs.items())
    return (product.inputs[0], product.inputs[1]) if fits else (None, None)


def _product(nodes: Sequence[Node], operands: tuple[Value, Value], transpose_x: bool) -> Value | None:
    """Returns the result of the first matmul among the nodes with these operands, or None."""
    for node in nodes:
        if node.op == "matmul" and _operands(node, transpose_x=transpose_x) == operands:
            return node.values[0]
    return None


def _is_causal(mask: Value | None, rows: int) -> bool:
    """True if the mask is a constant lower triangle."""
    data = None if mask is None or mask.dtype is not BOOL else mask.node.data
    if data is None or data.shape[-2:] != (rows, rows) or data.size != rows * rows:
        return False
    return np.array_equal(data.reshape(rows, rows), np.tri(rows, dtype=np.bool_))

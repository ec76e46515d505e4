"""Gradients of reductions, softmax and cumulative sums."""

from collections.abc import Sequence

from hexane.graph import Node, Value
from hexane.ops.compose import Builder
from hexane.ops.gradients.rule import count_of, filled, kept, ones, operand, unary

Gradients = Sequence[Value | None]


def reduce_sum(b: Builder, node: Node, g: Value) -> Gradients:
    return (b.broadcast_to(kept(b, g, node), shape=operand(node, 0).shape),)


def reduce_mean(b: Builder, node: Node, g: Value) -> Gradients:
    return (b.broadcast_to(b.mul(kept(b, g, node), 1 / max(count_of(node), 1)), shape=operand(node, 0).shape),)


def extreme(b: Builder, node: Node, g: Value) -> Gradients:
    """The gradient goes to the largest or smallest element. Equal elements share the gradient, as in amax."""
    x = operand(node, 0)
    extremes = b.cast(b.equal(x, kept(b, node.values[0], node)), dtype=x.dtype)
    shared = b.reduce_sum(extremes, axes=node.attrs["axes"])
    return (b.mul(extremes, b.real_div(kept(b, g, node), shared)),)


def reduce_prod(b: Builder, node: Node, g: Value) -> Gradients:
    """The gradient of an element is the product of the earlier elements times the product of the later ones. So nothing
    is divided by an element that may be 0."""
    x, axes = operand(node, 0), node.attrs["axes"]
    perm = [*(i for i in range(len(x.shape)) if i not in axes), *axes]
    moved = b.transpose(x, perm=perm)
    if not x.type.size:
        return (None,)
    line = b.reshape(moved, shape=(-1, count_of(node)))
    others = b.mul(*(b.cumprod(line, axis=1, exclusive=True, reverse=back) for back in (False, True)))
    placed = b.transpose(b.reshape(others, shape=moved.shape), perm=[perm.index(i) for i in range(len(perm))])
    return (b.mul(placed, kept(b, g, node)),)


def reduce_sum_square(b: Builder, node: Node, g: Value) -> Gradients:
    return (b.mul(b.mul(operand(node, 0), 2.0), kept(b, g, node)),)


def reduce_l1_norm(b: Builder, node: Node, g: Value) -> Gradients:
    return (b.mul(b.sign(operand(node, 0)), kept(b, g, node)),)


def reduce_l2_norm(b: Builder, node: Node, g: Value) -> Gradients:
    """The gradient is 0 if the norm is 0."""
    norm = kept(b, node.values[0], node)
    safe = b.select(b.equal(norm, 0.0), ones(b, norm), norm)
    return (b.mul(operand(node, 0), b.real_div(kept(b, g, node), safe)),)


def reduce_log_sum(b: Builder, node: Node, g: Value) -> Gradients:
    x = operand(node, 0)
    total = b.reduce_sum(x, axes=node.attrs["axes"])
    return (b.broadcast_to(b.real_div(kept(b, g, node), total), shape=x.shape),)


def reduce_log_sum_exp(b: Builder, node: Node, g: Value) -> Gradients:
    return (b.mul(b.exp(b.sub(operand(node, 0), kept(b, node.values[0], node))), kept(b, g, node)),)


@unary
def softmax(b: Builder, x: Value, y: Value, g: Value, axis: int) -> Value:
    weighted = b.mul(g, y)
    return b.sub(weighted, b.mul(y, b.reduce_sum(weighted, axes=(axis,))))


@unary
def log_softmax(b: Builder, x: Value, y: Value, g: Value, axis: int) -> Value:
    return b.sub(g, b.mul(b.exp(y), b.reduce_sum(g, axes=(axis,))))


@unary
def cumsum(b: Builder, x: Value, y: Value, g: Value, axis: int, exclusive: bool, reverse: bool) -> Value:
    return b.cumsum(g, axis=axis, exclusive=exclusive, reverse=not reverse)


def topk(b: Builder, node: Node, g: Value | None, indices: Value | None) -> Gradients:
    """Scatters the gradients to the elements that were selected."""
    x = operand(node, 0)
    if g is None:
        return (None,)
    return (b.scatter_along_axis(filled(b, x), node.values[1], g, axis=node.attrs["axis"], mode="add"),)

"""Gradients of matrix products and of pairs that rotate."""

from collections.abc import Sequence

from hexane.graph import Node, Value
from hexane.ops.compose import Builder, part
from hexane.ops.gradients.rule import operand, unbroadcast

Gradients = Sequence[Value | None]


def matmul(b: Builder, node: Node, g: Value) -> Gradients:
    """z = x y  ->  dx = dz y^T, dy = x^T dz; gradients of broadcast batch axes are summed"""
    x, y, bias = node.inputs
    assert x is not None
    assert y is not None
    tx, ty = node.attrs["transpose_x"], node.attrs["transpose_y"]
    dx = b.matmul(y, g, transpose_x=ty, transpose_y=True) if tx else b.matmul(g, y, transpose_y=not ty)
    if len(y.shape) == 2 and len(x.shape) > 2 and not tx:  # One product sums over the rows of the whole batch.
        rows, columns = (b.reshape(v, shape=(-1, v.shape[-1])) for v in (x, g))
        dy = b.matmul(columns, rows, transpose_x=True) if ty else b.matmul(rows, columns, transpose_x=True)
    elif ty:
        dy = b.matmul(g, x, transpose_x=True, transpose_y=tx)
    else:
        dy = b.matmul(x, g, transpose_x=not tx)
    dbias = None if bias is None else b.reduce_sum(g, axes=tuple(range(len(g.shape) - 1)), keep_dims=False)
    return unbroadcast(b, dx, x), unbroadcast(b, dy, y), dbias


def rotary_embedding(b: Builder, node: Node, g: Value) -> Gradients:
    """Pairs (x1, x2) rotated by an angle  ->  pairs of g rotated back."""
    x, cos, sin = (operand(node, i) for i in range(3))
    interleaved = node.attrs["interleaved"]
    (x1, x2), (g1, g2) = (pairs(b, v, interleaved) for v in (x, g))
    return (
        b.rotary_embedding(g, cos, b.neg(sin), interleaved=interleaved),
        unbroadcast(b, b.add(b.mul(g1, x1), b.mul(g2, x2)), cos),
        unbroadcast(b, b.sub(b.mul(g2, x1), b.mul(g1, x2)), sin),
    )


def pairs(b: Builder, x: Value, interleaved: bool) -> tuple[Value, Value]:
    """Returns the first and the second numbers of the pairs along the last axis."""
    rank, half = len(x.shape), x.shape[-1] // 2
    deep = b.reshape(x, shape=(*x.shape[:-1], half, 2) if interleaved else (*x.shape[:-1], 2, half))
    axis = rank - (0 if interleaved else 1)
    first, second = (b.reshape(part(b, deep, axis, i, i + 1), shape=(*x.shape[:-1], half)) for i in range(2))
    return first, second

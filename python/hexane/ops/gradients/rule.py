"""The type of gradient rules, and their shared parts."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Array, Node, Value
from hexane.ops.compose import Builder

# rule(b, node, *gradients of the outputs) -> the gradients of the inputs. A gradient of an output is None where nothing
# depends on that output; one of an input is None where it is 0, or where the input has none (integers, masks).
Rule = Callable[..., "Sequence[Value | None]"]


def unary(derivative: Callable[..., Value]) -> Rule:
    """The rule of an op with one input, from derivative(b, x, y, g, **attrs): the gradient g of the result y, times
    dy/dx."""

    def rule(b: Builder, node: Node, g: Value) -> Sequence[Value | None]:
        return (derivative(b, node.inputs[0], node.values[0], g, **node.attrs),)

    return rule


def zero(b: Builder, node: Node, *_: Value | None) -> Sequence[Value | None]:
    """The rule of a step function: its derivative is 0 wherever it has one."""
    return (None,) * len(node.inputs)


def masked(b: Builder, condition: Value, g: Value) -> Value:
    """g where the condition holds, else 0."""
    return b.select(condition, g, zeros(b, g))


def zeros(b: Builder, like: Value) -> Value:
    """One 0 of the dtype."""
    return b.const(np.zeros((), like.dtype.numpy))


def ones(b: Builder, like: Value) -> Value:
    """One 1 of the dtype."""
    return b.const(np.ones((), like.dtype.numpy))


def filled(b: Builder, like: Value) -> Value:
    """Zeros in the shape of `like`."""
    return b.broadcast_to(zeros(b, like), shape=like.shape)


def unbroadcast(b: Builder, g: Value, like: Value | None) -> Value | None:
    """The gradient of an operand that was broadcast: the sum over the axes that it did not have, or had once."""
    if like is None or g.shape == like.shape:
        return g
    lead = len(g.shape) - len(like.shape)
    axes = [i for i, d in enumerate(g.shape) if i < lead or (like.shape[i - lead] == 1 and d != 1)]
    return b.reshape(b.reduce_sum(g, axes=axes, keep_dims=True) if axes else g, shape=like.shape)


def kept(b: Builder, v: Value, node: Node) -> Value:
    """A reduction's result or its gradient, with the reduced axes as axes of extent 1."""
    x = node.inputs[0]
    assert x is not None
    return b.reshape(v, shape=[1 if i in node.attrs["axes"] else d for i, d in enumerate(x.shape)])


def count_of(node: Node) -> int:
    """The elements of x that each element of a reduction's result is made of."""
    x = node.inputs[0]
    assert x is not None
    return prod(x.shape[axis] for axis in node.attrs["axes"])


def operand(node: Node, index: int) -> Value:
    """An input that is there."""
    result = node.inputs[index]
    assert result is not None
    return result


def moved_to_front(b: Builder, x: Value, axis: int) -> Value:
    """x with one axis in front of the others."""
    rank = len(x.shape)
    return b.transpose(x, perm=[axis, *(i for i in range(rank) if i != axis)]) if axis else x


def moved_back(b: Builder, x: Value, axis: int) -> Value:
    """The axis in front, where it was."""
    rank = len(x.shape)
    return b.transpose(x, perm=[*range(1, axis + 1), 0, *range(axis + 1, rank)]) if axis else x


def added_at(b: Builder, g: Value, axis: int, places: Array, extent: int) -> Value:
    """The slices of g along an axis, each added to that at its place along an axis of `extent` zeros."""
    rows = moved_to_front(b, g, axis)
    nothing = b.broadcast_to(zeros(b, g), shape=(extent, *rows.shape[1:]))
    at = b.const(np.asarray(places, np.int64).reshape(-1, 1))
    return moved_back(b, b.scatter_nd(nothing, at, rows, mode="add"), axis)


def no_rule(why: str) -> Error:
    """The error of a form of an op that has no gradient rule."""
    return Error(f"got a gradient of this form, which has no rule: {why}")


def attrs_of(node: Node, *names: str) -> dict[str, Any]:
    """These attributes of a node."""
    return {name: node.attrs[name] for name in names}

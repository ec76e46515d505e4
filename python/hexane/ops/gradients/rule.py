"""The type of gradient rules, and their shared parts."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Array, Node, Value
from hexane.ops.compose import Builder

# rule(b, node, *gradients of the outputs) -> the gradients of the inputs. An output's gradient is None if nothing
# depends on the output. The gradient of an input is None if the gradient is 0, or if the input is an integer or a mask.
Rule = Callable[..., "Sequence[Value | None]"]


def unary(derivative: Callable[..., Value]) -> Rule:
    """Returns the rule of an op with one input. derivative(b, x, y, g, **attrs): returns the result's gradient g times
    dy/dx."""

    def rule(b: Builder, node: Node, g: Value) -> Sequence[Value | None]:
        return (derivative(b, node.inputs[0], node.values[0], g, **node.attrs),)

    return rule


def zero(b: Builder, node: Node, *_: Value | None) -> Sequence[Value | None]:
    """The rule of a step function: the derivative is 0 wherever it exists."""
    return (None,) * len(node.inputs)


def masked(b: Builder, condition: Value, g: Value) -> Value:
    """Returns g where the condition is true, else 0."""
    return b.select(condition, g, zeros(b, g))


def zeros(b: Builder, like: Value) -> Value:
    """Returns a scalar 0 in the dtype of `like`."""
    return b.const(np.zeros((), like.dtype.numpy))


def ones(b: Builder, like: Value) -> Value:
    """Returns a scalar 1 in the dtype of `like`."""
    return b.const(np.ones((), like.dtype.numpy))


def filled(b: Builder, like: Value) -> Value:
    """Returns zeros in the shape of `like`."""
    return b.broadcast_to(zeros(b, like), shape=like.shape)


def unbroadcast(b: Builder, g: Value, like: Value | None) -> Value | None:
    """Returns the gradient of a broadcast operand: the sum over the axes that broadcasting added or widened."""
    if like is None or g.shape == like.shape:
        return g
    lead = len(g.shape) - len(like.shape)
    axes = [i for i, d in enumerate(g.shape) if i < lead or (like.shape[i - lead] == 1 and d != 1)]
    return b.reshape(b.reduce_sum(g, axes=axes, keep_dims=True) if axes else g, shape=like.shape)


def kept(b: Builder, v: Value, node: Node) -> Value:
    """Reshapes a reduction's result, or its gradient, to keep the reduced axes with extent 1."""
    x = node.inputs[0]
    assert x is not None
    return b.reshape(v, shape=[1 if i in node.attrs["axes"] else d for i, d in enumerate(x.shape)])


def count_of(node: Node) -> int:
    """Returns the number of elements of x that a reduction combines to one."""
    x = node.inputs[0]
    assert x is not None
    return prod(x.shape[axis] for axis in node.attrs["axes"])


def operand(node: Node, index: int) -> Value:
    """Returns an input that the node must have."""
    result = node.inputs[index]
    assert result is not None
    return result


def moved_to_front(b: Builder, x: Value, axis: int) -> Value:
    """Returns x with one axis moved to the front."""
    rank = len(x.shape)
    return b.transpose(x, perm=[axis, *(i for i in range(rank) if i != axis)]) if axis else x


def moved_back(b: Builder, x: Value, axis: int) -> Value:
    """Moves the first axis back to index `axis`."""
    rank = len(x.shape)
    return b.transpose(x, perm=[*range(1, axis + 1), 0, *range(axis + 1, rank)]) if axis else x


def added_at(b: Builder, g: Value, axis: int, places: Array, extent: int) -> Value:
    """Returns zeros of `extent` along an axis, with the slices of g added at these places."""
    rows = moved_to_front(b, g, axis)
    nothing = b.broadcast_to(zeros(b, g), shape=(extent, *rows.shape[1:]))
    at = b.const(np.asarray(places, np.int64).reshape(-1, 1))
    return moved_back(b, b.scatter_nd(nothing, at, rows, mode="add"), axis)


def no_rule(why: str) -> Error:
    """Returns the error for a form of an op that has no gradient rule."""
    return Error(f"got a gradient of this form, which has no rule: {why}")


def attrs_of(node: Node, *names: str) -> dict[str, Any]:
    return {name: node.attrs[name] for name in names}

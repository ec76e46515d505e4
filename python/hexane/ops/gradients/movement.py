"""Gradients of ops that move elements: each gradient is moved back to its element."""

from collections.abc import Sequence
from math import prod

import numpy as np

from hexane.graph import Node, Value
from hexane.ops.compose import Builder, part
from hexane.ops.gradients.rule import added_at, filled, moved_back, moved_to_front, no_rule, operand, unary, unbroadcast

Gradients = Sequence[Value | None]


@unary
def reshape(b: Builder, x: Value, y: Value, g: Value, shape: tuple[int, ...]) -> Value:
    return b.reshape(g, shape=x.shape)


@unary
def transpose(b: Builder, x: Value, y: Value, g: Value, perm: tuple[int, ...]) -> Value:
    return b.transpose(g, perm=[perm.index(i) for i in range(len(perm))])


@unary
def reverse(b: Builder, x: Value, y: Value, g: Value, axes: tuple[int, ...]) -> Value:
    return b.reverse(g, axes=axes)


def broadcast_to(b: Builder, node: Node, g: Value) -> Gradients:
    return (unbroadcast(b, g, operand(node, 0)),)


@unary
def slice_by_index(
    b: Builder, x: Value, y: Value, g: Value, begin: tuple[int, ...], end: tuple[int, ...], stride: tuple[int, ...]
) -> Value:
    """Pads g with zeros, between the elements of a stride and around them."""
    if not y.type.size:
        return filled(b, x)
    for axis, step in enumerate(stride):
        if step > 1:
            g = spaced(b, g, axis, step)
    after = [d - start - n for d, start, n in zip(x.shape, begin, g.shape, strict=True)]
    return b.pad(g, begin=begin, end=after) if any(begin) or any(after) else g


def spaced(b: Builder, g: Value, axis: int, step: int) -> Value:
    """Inserts step - 1 zeros between neighbours on an axis."""
    shape = g.shape
    wide = b.reshape(g, shape=(*shape[: axis + 1], 1, *shape[axis + 1 :]))
    margin = [step - 1 if i == axis + 1 else 0 for i in range(len(shape) + 1)]
    filled_up = b.pad(wide, begin=[0] * len(margin), end=margin)
    joined = b.reshape(filled_up, shape=(*shape[:axis], shape[axis] * step, *shape[axis + 1 :]))
    return part(b, joined, axis, 0, (shape[axis] - 1) * step + 1)


def concat(b: Builder, node: Node, g: Value) -> Gradients:
    axis, start, parts = node.attrs["axis"], 0, []
    for value in node.inputs:
        assert value is not None
        parts.append(part(b, g, axis, start, start + value.shape[axis]))
        start += value.shape[axis]
    return parts


@unary
def pad(
    b: Builder, x: Value, y: Value, g: Value, begin: tuple[int, ...], end: tuple[int, ...], mode: str, value: float
) -> Value:
    """A constant margin has no gradient. Gradients of copies are added to the gradients of the copied elements."""
    if mode == "constant":
        return b.pad(g, begin=[-n for n in begin], end=[-n for n in end])
    for axis, (before, after, extent) in enumerate(zip(begin, end, x.shape, strict=True)):
        if before or after:
            widths = (max(before, 0), max(after, 0))
            places = np.pad(np.arange(extent), widths, mode=mode)  # type: ignore[call-overload]
            places = places[max(-before, 0) : len(places) - max(-after, 0)]
            g = added_at(b, g, axis, places, extent)
    return g


def interleave(b: Builder, node: Node, g: Value) -> Gradients:
    """Moves the pixels of a block back to channels."""
    x, a = operand(node, 0), node.attrs
    (n, h, w, c), block, groups = x.shape, a["block"], a["groups"]
    margins = [(first, size * there - first - wanted) for first, size, there, wanted in
               zip(a["begin"], block, (h, w), a["shape"], strict=True)]  # fmt: skip
    whole = b.pad(g, begin=(0, margins[0][0], margins[1][0], 0), end=(0, margins[0][1], margins[1][1], 0))
    deep = b.reshape(whole, shape=(n, h, block[0], w, block[1], groups, c // (prod(block) * groups)))
    return (b.reshape(b.transpose(deep, perm=(0, 1, 3, 5, 2, 4, 6)), shape=x.shape),)


# ---- gathers and scatters ----


def gather(b: Builder, node: Node, g: Value) -> Gradients:
    x, indices, axis = operand(node, 0), operand(node, 1), node.attrs["axis"]
    count = prod(indices.shape)
    g = b.reshape(g, shape=(*x.shape[:axis], count, *x.shape[axis + 1 :]))
    rows = moved_to_front(b, g, axis)
    nothing = b.reshape(filled(b, moved_to_front(b, x, axis)), shape=(x.shape[axis], *rows.shape[1:]))
    return moved_back(b, b.scatter_nd(nothing, b.reshape(indices, shape=(count, 1)), rows, mode="add"), axis), None


def gather_along_axis(b: Builder, node: Node, g: Value) -> Gradients:
    x, indices = operand(node, 0), operand(node, 1)
    return b.scatter_along_axis(filled(b, x), indices, g, axis=node.attrs["axis"], mode="add"), None


def gather_nd(b: Builder, node: Node, g: Value) -> Gradients:
    x, indices, batch = operand(node, 0), operand(node, 1), node.attrs["batch_dims"]
    if batch:  # The indices get the coordinates of the batch axes, too.
        lead = indices.shape[:-1]
        kind = indices.dtype.numpy
        own = [np.broadcast_to(np.indices(lead, kind, sparse=True)[i], lead)[..., None] for i in range(batch)]
        indices = b.concat(*[b.const(np.ascontiguousarray(o)) for o in own], indices, axis=len(lead))
    return b.scatter_nd(filled(b, x), indices, g, mode="add"), None


def scatter_along_axis(b: Builder, node: Node, g: Value) -> Gradients:
    indices, axis, mode = operand(node, 1), node.attrs["axis"], node.attrs["mode"]
    read = b.gather_along_axis(g, indices, axis=axis)
    if mode == "add":
        return g, None, read
    if mode != "update":
        raise no_rule(f"mode {mode!r}")
    written = b.mul(read, 0.0)
    return b.scatter_along_axis(g, indices, written, axis=axis), None, read


def scatter_nd(b: Builder, node: Node, g: Value) -> Gradients:
    indices, mode = operand(node, 1), node.attrs["mode"]
    read = b.gather_nd(g, indices)
    if mode == "add":
        return g, None, read
    if mode != "update":
        raise no_rule(f"mode {mode!r}")
    return b.scatter_nd(g, indices, filled(b, operand(node, 2))), None, read

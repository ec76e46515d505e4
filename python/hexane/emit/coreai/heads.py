"""Attention with separate heads. The scores of a head are an image with a channel for each key and a column for each
query."""

import math
from typing import Any

import numpy as np

from hexane.dtypes import BOOL
from hexane.emit.coreai.images import BATCH, COLUMNS, Image, reshaped
from hexane.graph import Node, Value
from hexane.ops.compose import Builder, held
from hexane.passes.fuse.fuse_transpose import transposed

HEADS = (BATCH, 0, COLUMNS, 1)  # the axes of a tensor (batch, heads, tokens, features)


class _Operand:
    """The queries, keys or values of all heads, or one tensor for all heads. heads: the number of the attention's
    heads."""

    def __init__(self, x: Value, image: Image | None, heads: int) -> None:
        self.image, self.x = image, x
        self.count = x.shape[-3] if x.type.rank > 2 else 1
        self.heads = heads

    def head(self, b: Builder, number: int) -> tuple[Value, bool]:
        """Returns a head as (batch, 1, tokens, features), and True if the last two axes are exchanged."""
        i = number if self.count == self.heads else 0
        if self.image is not None:
            pixels, features = self.image.pixels, self.image.factors[1]
            part = _part(b, pixels, 1, i * features, features)
            return reshaped(b, part, (pixels.shape[0], 1, features, pixels.shape[3])), True
        wide = reshaped(b, self.x, (*[1] * (4 - self.x.type.rank), *self.x.shape))
        return _part(b, wide, 1, i, 1), False


def _part(b: Builder, x: Value, axis: int, start: int, size: int) -> Value:
    if size == x.shape[axis]:
        return x
    begin, extents = [0] * x.type.rank, list(x.shape)
    begin[axis], extents[axis] = start, size
    return b.slice_by_index(x, begin=begin, end=[p + n for p, n in zip(begin, extents, strict=True)])


def heads_apart(b: Builder, node: Node, images: list[Image | None]) -> Image | Value | None:
    """Expands scaled_dot_product_attention to a product of keys and queries for each head. Returns None for tensors of
    more than four axes. images: of each operand, or None. A single query is a row of features; several queries are
    columns."""
    if node.types[0].rank > 4:
        return None
    query, key, value, mask = node.inputs
    assert query is not None
    assert key is not None
    assert value is not None
    attrs = node.attrs
    shape = (*[1] * (4 - node.types[0].rank), *node.types[0].shape)
    batch, heads, queries, features = shape
    keys = key.shape[-2]
    known = [image if image is not None and image.axes == HEADS else None for image in images[:3]]
    if known[0] is not None:
        known[0] = known[0].of(b.mul(known[0].pixels, attrs["scale"]))
    else:
        query = b.mul(query, attrs["scale"])
    operands = [_Operand(x, image, heads) for x, image in zip((query, key, value), known, strict=True)]
    results = [_head(b, attrs, operands, _masks(b, attrs, mask, (heads, queries, keys), i), i) for i in range(heads)]
    if queries == 1:
        return reshaped(b, b.concat(*results, axis=1) if heads > 1 else results[0], node.types[0].shape)
    columns = [reshaped(b, y, (batch, features, 1, queries)) for y in results]
    pixels = b.concat(*columns, axis=1) if heads > 1 else columns[0]
    if node.types[0].rank == 4:
        return Image(pixels, HEADS, (heads, features))
    spread = reshaped(b, pixels, (batch, heads, features, queries))
    return reshaped(b, transposed(spread, (0, 1, 3, 2), b.sources), node.types[0].shape)


def _head(b: Builder, attrs: Any, operands: list[_Operand], masks: list[tuple[Value, float]], number: int) -> Value:
    """Returns the result of a head: (batch, 1, features, queries), or (batch, 1, 1, features) for one query."""
    (q, q_turned), (k, k_turned), (v, v_turned) = (operand.head(b, number) for operand in operands)
    queries = q.shape[-1 if q_turned else -2]
    if queries == 1:
        scores, axis = b.matmul(q, k, transpose_x=q_turned, transpose_y=not k_turned), 3
    else:
        scores = b.matmul(k, q, transpose_x=k_turned, transpose_y=not q_turned)
        scores, axis = reshaped(b, scores, (scores.shape[0], scores.shape[2], 1, scores.shape[3])), 1
    for given, hidden in masks:
        mask = given if queries == 1 else transposed(given, (0, 3, 1, 2), b.sources)
        if mask.dtype is BOOL:
            scores = b.select(mask, scores, b.const(held(hidden, scores.dtype.numpy)))
        else:
            scores = b.add(scores, mask)
    weights = b.softmax(scores, axis=axis)
    if attrs["zero_hidden"]:
        shown = b.greater(b.reduce_max(scores, axes=(axis,)), b.const(held(-math.inf, scores.dtype.numpy)))
        weights = b.select(shown, weights, b.const(np.array(0, weights.dtype.numpy)))
    if queries == 1:
        return b.matmul(weights, v, transpose_y=v_turned)
    weights = reshaped(b, weights, (weights.shape[0], 1, weights.shape[1], weights.shape[3]))
    return b.matmul(v, weights, transpose_x=not v_turned)


def _masks(
    b: Builder, attrs: Any, mask: Value | None, shape: tuple[int, int, int], number: int
) -> list[tuple[Value, float]]:
    """Returns the masks of a head, each (batch, 1, queries, keys), where any axis may have extent 1, with the score
    that the mask gives to hidden keys."""
    heads, queries, keys = shape
    result: list[tuple[Value, float]] = []
    if attrs["causal"]:
        result.append((b.const(np.tri(queries, keys, dtype=np.bool_)[None, None]), -math.inf))
    if mask is not None:
        wide = reshaped(b, mask, (*[1] * (4 - mask.type.rank), *mask.shape))
        own = wide if wide.shape[1] == 1 else _part(b, wide, 1, number, 1)
        assert wide.shape[1] in (1, heads)
        result.append((own, float(attrs["hidden"])))
    return result

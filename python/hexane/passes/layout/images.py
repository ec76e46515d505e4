"""Matrices as images, whose pixels are rows and whose channels are columns."""

from collections.abc import Mapping
from math import prod

import numpy as np

from hexane.graph import Value, constant
from hexane.ops import OPS, apply
from hexane.ops.encoded_moves import moved
from hexane.ops.predicates import only_along
from hexane.ops.rewriter import Rewriter


def filters_of(weight: Value, out_first: bool) -> Value | None:
    if (data := weight.node.data) is not None:
        filters = np.ascontiguousarray(data if out_first else data.T)[:, :, None, None]
        return constant(filters, weight.node.sources, weight.dtype)
    matrix = weight if out_first else moved(apply(OPS["transpose"], [weight], {"perm": (1, 0)})[0].node)
    shape = (*weight.shape, 1, 1) if out_first else (*weight.shape[::-1], 1, 1)
    return None if matrix is None else moved(apply(OPS["reshape"], [matrix], {"shape": shape})[0].node)


def _four(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape as (batch, rows, tokens, channels)."""
    *lead, rows, channels = shape
    return (prod(lead[:-1]), lead[-1] if lead else 1, rows, channels)


def to_image(b: Rewriter, x: Value) -> Value:
    four = _four(x.shape)
    image: Value = b.transpose(x if x.shape == four else b.reshape(x, shape=four), perm=(0, 3, 1, 2))
    return image


def columns_to_image(b: Rewriter, x: Value) -> Value:
    """Returns the image of a left operand whose columns are the product's rows, as in Gemm with transA."""
    *lead, channels, rows = x.shape
    if prod(lead) == 1:
        return b.reshape(x, shape=(1, channels, 1, rows))
    image: Value = b.transpose(b.reshape(x, shape=(prod(lead[:-1]), lead[-1], channels, rows)), perm=(0, 2, 1, 3))
    return image


def from_image(b: Rewriter, image: Value, shape: tuple[int, ...]) -> Value:
    rows: Value = b.transpose(image, perm=(0, 2, 3, 1))
    value: Value = rows if rows.shape == shape else b.reshape(rows, shape=shape)
    return value


def on_image(value: Value, shape: tuple[int, ...], images: Mapping[Value, Value]) -> Value | None:
    """Returns an elementwise op's operand in the form that the op reads on images, or None for other operands."""
    if value in images and value.shape == shape:
        return images[value]
    if value.node.op != "const" or value.node.data is None:
        return None
    if value.type.size == 1:
        return constant(value.node.data.reshape(()), value.node.sources, value.dtype)
    if not only_along(value, len(shape) - 1, shape):
        return None
    return constant(value.node.data.reshape(-1, 1, 1), value.node.sources, value.dtype)

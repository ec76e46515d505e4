"""Ops of an attention's gradient on this CPU, which compute the scores of a few queries at a time."""

import math

import numpy as np

from hexane.dtypes import BOOL, FP32, DType
from hexane.errors import Error
from hexane.graph import Array
from hexane.ops.attributes import flag, number
from hexane.ops.shape_rules import Shape, broadcast
from hexane.ops.spec import Op

ATTENTION_GRADIENT = "attention_gradient"


def _shape(query: Shape, key: Shape, value: Shape, gradient: Shape, mask: Shape | None, **_: object) -> list[Shape]:
    scores = (*query[:-1], query[-2]) if len(query) > 1 else ()
    if {query, key, value, gradient} != {query} or not scores:
        raise Error(f"got {query}, {key}, {value} and {gradient}, need one shape of at least two axes")
    if mask is not None and broadcast(mask, scores) != scores:
        raise Error(f"got a mask {mask}, need a shape that broadcasts to {scores}")
    return [query] * 3


def _dtype(query: DType, key: DType, value: DType, gradient: DType, mask: DType | None, **_: object) -> DType:
    if {query, key, value, gradient} != {FP32} or mask not in (None, FP32, BOOL):
        raise Error(f"got {query}, {key}, {value}, {gradient} and {mask}, need fp32 and a mask in fp32 or bool")
    return FP32


def _gradients(
    query: Array,
    key: Array,
    value: Array,
    gradient: Array,
    mask: Array | None,
    scale: float,
    causal: bool,
    hidden: float,
) -> list[Array]:
    keep = np.tri(query.shape[-2], dtype=np.bool_) if causal else np.ones((1, 1), np.bool_)
    if mask is not None and mask.dtype == np.bool_:
        keep = keep & mask
    scores = query @ key.swapaxes(-1, -2) * scale
    if mask is not None and mask.dtype != np.bool_:
        scores = scores + mask
    scores = np.where(keep, scores, hidden)
    weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-math.inf))
    weights /= weights.sum(-1, keepdims=True)
    slopes = weights * (gradient @ value.swapaxes(-1, -2))
    slopes = np.where(keep, slopes - weights * slopes.sum(-1, keepdims=True), 0) * scale
    gradients = (slopes @ key, slopes.swapaxes(-1, -2) @ query, weights.swapaxes(-1, -2) @ gradient)
    return [np.asarray(a, query.dtype) for a in gradients]


OPS = (
    Op(
        name=ATTENTION_GRADIENT,
        doc="The gradients of query, key and value (.., L, E) in softmax(query @ key.T * scale + mask) @ value, from "
            "the result's gradient. causal: a query attends only to keys up to its own position. A bool mask keeps "
            "True, and other scores are `hidden`.",
        inputs=("query", "key", "value", "gradient", "mask?"), outputs=("query", "key", "value"),
        attrs={"scale": number(1.0), "causal": flag(False), "hidden": number(-math.inf)}, shape=_shape, dtype=_dtype,
        kernel=ATTENTION_GRADIENT, level="kernel", ref=_gradients, cases=(),
    ),
)  # fmt: skip

"""Matrix products, attention, and ops composed of them."""

import math
from collections.abc import Sequence
from functools import reduce
from itertools import accumulate
from math import frexp, ldexp, prod
from typing import Any

import numpy as np

from hexane.dtypes import BOOL
from hexane.errors import Error
from hexane.graph import Value
from hexane.ops.attributes import finite, flag, number
from hexane.ops.compose import Builder, held, limited, part
from hexane.ops.dtype_rules import floating
from hexane.ops.gradients import products as grads
from hexane.ops.records.reduce import softmax
from hexane.ops.shape_rules import Shape, broadcast
from hexane.ops.spec import Case, Op

Array = Any


def matmul_shape(
    x: Shape, y: Shape, bias: Shape | None = None, transpose_x: bool = False, transpose_y: bool = False
) -> Shape:
    if len(x) < 2 or len(y) < 2:
        raise Error(f"got the shapes {x} and {y}, need at least 2 axes; reshape vectors first")
    m, k = (x[-1], x[-2]) if transpose_x else (x[-2], x[-1])
    k2, n = (y[-1], y[-2]) if transpose_y else (y[-2], y[-1])
    if k != k2:
        raise Error(f"last dimension of x {x} must match that of y {y}: got {k} and {k2}")
    if bias is not None and bias != (n,):
        raise Error(f"got a bias of shape {bias}, need ({n},)")
    return (*broadcast(x[:-2], y[:-2]), m, n)


def _matmul(
    x: Array, y: Array, bias: Array | None = None, transpose_x: bool = False, transpose_y: bool = False
) -> Array:
    product = np.matmul(np.swapaxes(x, -1, -2) if transpose_x else x, np.swapaxes(y, -1, -2) if transpose_y else y)
    return product if bias is None else product + bias


def _linear_shape(x: Shape, weight: Shape, bias: Shape | None = None) -> Shape:
    if len(weight) != 2 or not x or x[-1] != weight[1]:
        raise Error(f"got an input of shape {x} and a weight of shape {weight}, need (.., in) and (out, in)")
    if bias is not None and bias != (weight[0],):
        raise Error(f"got a bias of shape {bias}, need ({weight[0]},)")
    return (*x[:-1], weight[0])


def _linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    y = np.matmul(x, weight.T)
    return y if bias is None else y + bias


def _expand_linear(b: Builder, x: Value, weight: Value, bias: Value | None = None) -> Value:
    if len(x.shape) == 1:
        row = b.reshape(x, shape=(1, *x.shape))
        return b.reshape(b.matmul(row, weight, bias, transpose_y=True), shape=(weight.shape[0],))
    return b.matmul(x, weight, bias, transpose_y=True)


def _attention_shape(query: Shape, key: Shape, value: Shape, mask: Shape | None = None, **_: Any) -> Shape:
    if min(len(query), len(key), len(value)) < 2 or query[-1] != key[-1] or key[-2] != value[-2]:
        raise Error(f"got query {query}, key {key} and value {value}, need (.., L, E), (.., S, E) and (.., S, V)")
    batch = broadcast(query[:-2], key[:-2], value[:-2])
    scores = (*batch, query[-2], key[-2])
    if mask is not None and broadcast(mask, scores) != scores:
        raise Error(f"got a mask of shape {mask}, need one that broadcasts to {scores}")
    return (*batch, query[-2], value[-1])


def _attention_dtype(query: Any, key: Any, value: Any, mask: Any = None, **_: Any) -> Any:
    d = floating(query, key, value)
    if mask not in (None, BOOL, d):
        raise Error(f"got a mask of dtype {mask}, need bool or {d}")
    return d


def _hides(_: Any, attrs: dict[str, Any]) -> None:
    if math.isnan(attrs["hidden"]):
        raise Error("hidden: got nan, need a number")


def _explicit_scale(types: Any, attrs: dict[str, Any]) -> dict[str, Any]:
    depth = types[0].shape[-1] if types[0].rank else 1
    return {**attrs, "scale": attrs["scale"] or 1 / math.sqrt(max(depth, 1))}


def attention_weights(
    query: Array, key: Array, mask: Array | None, scale: float, causal: bool, zero_hidden: bool, hidden: float
) -> Array:
    """Returns the softmax of the attention scores."""
    scores = np.matmul(query, np.swapaxes(key, -1, -2)) * scale
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, hidden) if mask.dtype == np.bool_ else scores + mask
    weights = softmax(scores, -1)
    return np.where(np.isnan(weights), 0, weights) if zero_hidden else weights


def _attention(query: Array, key: Array, value: Array, mask: Array | None, **attrs: Any) -> Array:
    return np.matmul(attention_weights(query, key, mask, **attrs), value)


def _expand_attention(
    b: Builder, query: Value, key: Value, value: Value, mask: Value | None, scale: float, causal: bool, zero_hidden: bool,
    hidden: float,
) -> Value:  # fmt: skip
    scores = b.mul(b.matmul(query, key, transpose_y=True), scale)
    return b.matmul(_weights(b, scores, (mask, None), causal, zero_hidden, hidden), value)


def scale_first(
    b: Builder, query: Value, key: Value, value: Value, mask: Value | None, scale: float, causal: bool, zero_hidden: bool,
    hidden: float,
) -> Value:  # fmt: skip
    """Like attention's expansion, but of a scale below 1, a power of two from 1 / 64 on is applied before the product.
    A chip's accumulator is infinite from 32768 on."""
    return attention_of_parts(b, query, (key,), (value,), (mask, None), scale, causal, zero_hidden, hidden)


def attention_of_parts(
    b: Builder, query: Value, keys: Sequence[Value], values: Sequence[Value], masks: tuple[Value | None, Value | None],
    scale: float, causal: bool, zero_hidden: bool, hidden: float,
) -> Value:  # fmt: skip
    """Like `scale_first`, for keys and values that are split into several tensors. The tensors are not concatenated:
    each has its own products. masks: the attention's mask, and a bool mask that is False for keys to leave out; both
    masks cover all keys."""
    ahead = ldexp(1, max(frexp(scale)[1] - 1, -6)) if 0 < abs(scale) < 1 else 1.0
    query = query if ahead == 1 else b.mul(query, ahead)
    products = [b.matmul(query, key, transpose_y=True) for key in keys]
    scores = products[0] if len(products) == 1 else b.concat(*products, axis=products[0].type.rank - 1)
    scores = scores if scale == ahead else b.mul(scores, scale / ahead)
    weights = _weights(b, scores, masks, causal, zero_hidden, hidden)
    if len(values) == 1:
        return b.matmul(weights, values[0])
    ends = [0, *accumulate(value.shape[-2] for value in values)]
    parts = [part(b, weights, weights.type.rank - 1, *ends[i : i + 2]) for i in range(len(values))]
    return reduce(b.add, [b.matmul(one, value) for one, value in zip(parts, values, strict=True)])


def _weights(
    b: Builder, scores: Value, masks: tuple[Value | None, Value | None], causal: bool, zero_hidden: bool, hidden: float
) -> Value:
    mask, kept = masks
    least, other = (b.const(held(v, scores.dtype.numpy)) for v in (-math.inf, hidden))
    if causal:
        limited(prod(scores.shape[-2:]), np.dtype(np.bool_))
        scores = b.select(b.const(np.tri(*scores.shape[-2:], dtype=np.bool_)), scores, least)
    if mask is not None:
        scores = b.select(mask, scores, other) if mask.dtype is BOOL else b.add(scores, mask)
    if kept is not None:
        scores = b.select(kept, scores, least)
    weights = b.softmax(scores, axis=-1)
    if zero_hidden:  # if the largest score of a row is hidden, all are: a test without NaN, which the engine lacks
        shown = b.greater(b.reduce_max(scores, axes=(-1,)), least)
        weights = b.select(shown, weights, b.const(np.array(0, weights.dtype.numpy)))
    return weights


def _rotary_shape(x: Shape, cos: Shape, sin: Shape, **_: Any) -> Shape:
    if not x or x[-1] % 2 or cos != sin or broadcast(cos, (*x[:-1], x[-1] // 2)) != (*x[:-1], x[-1] // 2):
        raise Error(
            f"got x {x}, cos {cos} and sin {sin}, need an even last axis and tables that broadcast to half of it"
        )
    return x


def _halves(x: Array, interleaved: bool) -> tuple[Array, Array]:
    if interleaved:
        return x[..., 0::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def _expand_rotary(b: Builder, x: Value, cos: Value, sin: Value, interleaved: bool) -> Value:
    a, c = grads.pairs(b, x, interleaved)
    first, second = b.sub(b.mul(a, cos), b.mul(c, sin)), b.add(b.mul(a, sin), b.mul(c, cos))
    return b.reshape(b.stack(first, second, axis=len(x.shape) - (0 if interleaved else 1)), shape=x.shape)


def _rotary(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    a, c = _halves(x, interleaved)
    first, second = a * cos - c * sin, a * sin + c * cos
    if interleaved:
        return np.stack([first, second], -1).reshape(x.shape)
    return np.concatenate([first, second], -1)


def over_columns(scale: Array, weight: Shape, transpose_y: bool, **_: Any) -> Array:
    """Reshapes the scale of each column of the result to broadcast over the right operand."""
    return scale[:, None] if transpose_y else scale


OPS = (
    Op(
        name="matmul", doc="Matrix product over the last two axes, batched over the others with broadcasting.",
        inputs=("x", "y", "bias?"), attrs={"transpose_x": flag(False), "transpose_y": flag(False)}, shape=matmul_shape,
        dtype=floating, kernel="matmul", epilogue=True, product=over_columns, lengths="rows", ref=_matmul,
        cases=(
            Case(((7, 5), (5, 3))), Case(((2, 3, 7, 5), (3, 5, 4), (4,))),
            Case(((1, 9), (17, 9)), {"transpose_y": True}), Case(((2, 5, 7), (5, 33)), {"transpose_x": True}),
        ), grad=grads.matmul,
    ),
    Op(
        name="linear", doc="x @ weight.T + bias, weight (out, in).", inputs=("x", "weight", "bias?"),
        shape=_linear_shape, dtype=floating, expand=_expand_linear, lengths="rows", ref=_linear,
        cases=(Case(((3, 7), (5, 7), (5,))), Case(((2, 3, 4), (6, 4))), Case(((4,), (3, 4)))),
    ),
    Op(
        name="scaled_dot_product_attention",
        doc="softmax(query @ key.T * scale + mask) @ value. A scale of 0 stands for 1 / sqrt(E). A bool mask keeps "
            "True; other scores become `hidden`. With zero_hidden, the NaN weights of a row whose keys are all hidden "
            "become 0.",
        inputs=("query", "key", "value", "mask?"),
        attrs={"scale": number(0.0), "causal": flag(False), "zero_hidden": flag(False),
               "hidden": number(-math.inf)},
        shape=_attention_shape, dtype=_attention_dtype, check=(finite("scale"), _hides), canonical=_explicit_scale,
        kernel="scaled_dot_product_attention", expand=_expand_attention, ref=_attention,
        cases=(
            Case(((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4))),
            Case(((2, 5, 8), (2, 5, 8), (2, 5, 8), (5, 5)), {"scale": 0.25, "causal": True}),
            Case(((2, 2, 3, 4, 8), (2, 1, 1, 37, 8), (2, 1, 1, 37, 17), (4, 37)), dtypes=("fp32", "fp32", "fp32", "bool")),
            Case(((6, 1, 16), (6, 33, 16), (6, 33, 16), (33,)), dtypes=("fp32", "fp32", "fp32", "bool")),
            Case(((5, 19, 3), (70, 3), (70, 20), (5, 1, 70))),
            Case(((2, 9, 4), (2, 3, 4), (2, 3, 4), (9, 3)), {"zero_hidden": True}, dtypes=("fp32", "fp32", "fp32", "bool"), low=-2.0, high=0.5),
            Case(((2, 9, 4), (2, 3, 4), (2, 3, 4), (9, 3)), {"hidden": -2.5}, dtypes=("fp32", "fp32", "fp32", "bool")),
        ),
    ),
    Op(
        name="rotary_embedding",
        doc="Rotates pairs of the last axis by angles. The pairs are neighbours if interleaved, else an element of the "
            "first half and one of the second.",
        inputs=("x", "cos", "sin"), attrs={"interleaved": flag(False)}, shape=_rotary_shape, dtype=floating,
        kernel="rotary_embedding", expand=_expand_rotary, ref=_rotary,
        cases=(
            Case(((2, 3, 5, 8), (5, 4), (5, 4))), Case(((2, 5, 8), (5, 4), (5, 4)), {"interleaved": True}),
            Case(((3, 74), (37,), (37,)), {"interleaved": True}), Case(((2, 3, 66), (2, 1, 33), (2, 1, 33))),
        ),
        grad=grads.rotary_embedding,
    ),
)  # fmt: skip

"""Attention and rotary embedding as layers of the engine."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hexane.dtypes import BOOL
from hexane.graph import Node
from hexane.lowering.masks import FLOOR
from hexane.ops.records.linear import scale_first
from hexane.targets.rules import rules


def attention(b: Any, node: Node, query: Any, key: Any, value: Any, mask: Any) -> Any:
    """Lowers attention to one layer if the layer supports its operands, else to products and a softmax."""
    a = node.attrs
    scores = (*node.types[0].shape[:-1], key.shape[-2])
    plain = not a["zero_hidden"] and max(len(v.shape) for v in (query, key, value)) <= 4 and key.shape == value.shape
    hides = mask is not None and mask.dtype is BOOL
    # The op replaces hidden scores by a number, but the layer can only add a mask to the scores.
    replaced = not math.isinf(a["hidden"]) and (hides or a["causal"]) and not _shows_keys(a, mask, scores)
    if not plain or replaced or (hides and mask.node.op != "const") or (mask is not None and len(mask.shape) > 4):
        return scale_first(b, query, key, value, mask, **a)
    kind, most = query.dtype.numpy, rules()["infinite_mask"].number("value")
    if hides:
        mask = b.const(np.where(mask.node.data, 0, -most).astype(kind))
    if a["causal"]:
        causal = np.where(np.tri(*scores[-2:], dtype=np.bool_), 0, -most).astype(kind)
        mask = b.const(causal) if mask is None else b.maximum(b.add(mask, b.const(causal)), -float(most))
    if mask is not None and mask.shape[-1:] != scores[-1:]:
        mask = b.broadcast_to(mask, shape=(*mask.shape[:-1], scores[-1]))
    return b.layer("sdpa", query, key, value, mask, scale=a["scale"], subtract_max=True)


def _shows_keys(attrs: Mapping[str, Any], mask: Any, scores: tuple[int, ...]) -> bool:
    """True if each row of a constant mask shows a key and the hidden score is far below any other score. In that case
    the weights of hidden keys are 0, whether the hidden score replaces the scores or is added to them."""
    if attrs["hidden"] > FLOOR:
        return False
    shown = np.tri(*scores[-2:], dtype=np.bool_) if attrs["causal"] else np.ones((1, scores[-1]), np.bool_)
    if mask is not None:
        if mask.dtype is not BOOL or mask.node.op != "const" or mask.node.data.ndim == 0:
            return False
        shown = shown & mask.node.data
    return bool(shown.any(axis=-1).all())


def rotary(b: Any, node: Node, x: Any, cos: Any, sin: Any) -> Any:
    """Lowers rotary embedding. The halves, or every second element, are views with no more axes than x."""
    axis, half, step = len(x.shape) - 1, x.shape[-1] // 2, 2 if node.attrs["interleaved"] else 1
    first, second = (
        b.layer("input_view", x, axis=axis, offset=i if step == 2 else i * half, size=half, step=step) for i in (0, 1)
    )
    rotated = (
        b.layer("sub", b.layer("mul", first, cos), b.layer("mul", second, sin)),
        b.layer("add", b.layer("mul", first, sin), b.layer("mul", second, cos)),
    )
    if step == 1:
        return b.layer("concat", *rotated, axis=axis)
    flat = [b.reshape(v, shape=(-1, half, 1)) for v in rotated]
    return b.reshape(b.layer("concat", *flat, axis=2), shape=x.shape)

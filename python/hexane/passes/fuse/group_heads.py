"""Lets query heads share keys and values instead of repeating them for each head (grouped-query attention)."""

from hexane.graph import Graph, Value
from hexane.ops import OPS, apply
from hexane.ops.match import Found, made_by, op, rewrite
from hexane.targets import Target

_MOST_AXES = 7  # the rewritten query has one axis more than the query


def group_heads(graph: Graph, target: Target) -> Graph:
    """scaled_dot_product_attention(%q : (N, 8, L, E), reshape(broadcast_to(%k)), reshape(broadcast_to(%v)))  ->  scaled_dot_product_attention(%q : (N, 2, 4, L, E), %k : (N, 2, 1, S, E), %v : (N, 2, 1, S, V)), reshaped

    The broadcasts repeat an axis that directly follows the heads. The mask may have one head or one per query head.
    """  # noqa: E501

    def build(m: Found) -> tuple[Value, ...] | None:
        query, key, value, mask = m.inputs
        keys, values = _before_repeat(key), _before_repeat(value)
        if query is None or key is None or keys is None or values is None or query.type.rank > _MOST_AXES:
            return None
        heads = keys.shape[-4]
        if values.shape[-4] != heads or query.shape[-3:-2] != key.shape[-3:-2]:
            return None
        operands = [_grouped(query, heads), keys, values, None if mask is None else _grouped(mask, heads)]
        return m.make("reshape", m.make(m.node.op, operands, **m.node.attrs), shape=m.node.types[0].shape)

    return rewrite(graph, op("scaled_dot_product_attention"), build)


def _before_repeat(value: Value | None) -> Value | None:
    """Returns x of (.., heads, 1, rows, columns) if the value is x broadcast along the axis of extent 1 and reshaped to
    merge that axis with the heads, else None."""
    inner = value
    while (node := made_by(inner, "reshape")) is not None:
        inner = node.inputs[0]
    repeat = made_by(inner, "broadcast_to")
    source = None if repeat is None else repeat.inputs[0]
    if value is None or inner is None or source is None or source.type.rank != value.type.rank + 1:
        return None
    if source.type.rank < 4 or source.shape != (*inner.shape[:-3], 1, *inner.shape[-2:]):
        return None
    joined = (*inner.shape[:-4], inner.shape[-4] * inner.shape[-3], *inner.shape[-2:])
    return source if value.shape == joined else None


def _grouped(value: Value, heads: int) -> Value:
    """Returns the value with its head axis split in two: the key heads, and the query heads that share each of them."""
    if value.type.rank < 3:
        return value
    *batch, count, rows, columns = value.shape
    both = (1, 1) if count == 1 else (heads, count // heads)
    return apply(OPS["reshape"], [value], {"shape": (*batch, *both, rows, columns)}, value.node.sources)[0]

"""onnxruntime's attention ops (domain com.microsoft), as scaled_dot_product_attention and matrix products.

Letters of shapes: B batch, N heads, S queries, T keys (P of them from earlier calls), D and V extents of a head.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hexane.dtypes import BOOL, INT32, INT64
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.onnx.foreign import MICROSOFT
from hexane.importers.onnx.handlers.microsoft_quantised import scaled_product
from hexane.importers.onnx.node import Builder, OnnxNode, Result, known
from hexane.importers.onnx.registry import domain_op
from hexane.ops.compose import cast, part

HIDDEN = -10000.0  # the value that onnxruntime adds to the scores of padding

_ATTENTION: dict[str, Any] = {
    "do_rotary": 0,
    "mask_filter_value": HIDDEN,
    "num_heads": int,
    "past_present_share_buffer": 0,
    "qkv_hidden_sizes": tuple[int, ...],
    "rotary_embedding_dim": 0,
    "scale": 0.0,
    "unidirectional": 0,
}


@domain_op(MICROSOFT, "Attention", inputs=(2, 7), attributes=_ATTENTION, required=("num_heads",))
def attention(b: Builder, n: OnnxNode) -> Result:
    """Multiplies x (B, S, I) by weights (I, columns of Q, K and V), then applies attention. past and present are (2, B,
    N, P or T, D)."""
    x, weight, bias = n.value(0), n.value(1), n.optional(2)
    if len(x.shape) != 3 or len(weight.shape) != 2:
        raise Error(f"got the shapes {x.shape} and {weight.shape}, need (B, S, I) and (I, 3 * hidden)")
    product = b.matmul(x, weight) if bias is None else b.matmul(x, weight, bias)
    sizes = n.attrs.get("qkv_hidden_sizes") or (weight.shape[1] // 3,) * 3
    if len(sizes) != 3 or sum(sizes) != weight.shape[1]:
        raise Error(f"qkv_hidden_sizes: got {sizes}, need three that sum to {weight.shape[1]}")
    return _of_projections(b, n, product, sizes, n.optional(3), n.optional(4), n.optional(5))


@domain_op(
    MICROSOFT, "QAttention", inputs=(5, 9), required=("num_heads",),
    attributes={k: v for k, v in _ATTENTION.items() if k not in ("qkv_hidden_sizes", "rotary_embedding_dim")},
)  # fmt: skip
def quantised_attention(b: Builder, n: OnnxNode) -> Result:
    """Applies Attention to integer inputs and weights."""
    x, weight = n.value(0), n.value(1)
    scales, zeros = (n.value(3), n.value(4)), (n.optional(6), n.optional(7))
    product = scaled_product(b, x, weight, scales, zeros, n.value(2))
    return _of_projections(b, n, product, (weight.shape[1] // 3,) * 3, n.optional(5), n.optional(8), None)


def _of_projections(
    b: Builder, n: OnnxNode, product: Value, sizes: tuple[int, ...], mask: Value | None, past: Value | None,
    added: Value | None,
) -> list[Value]:  # fmt: skip
    """Applies attention to queries, keys and values that are concatenated on the last axis."""
    for name in ("do_rotary", "past_present_share_buffer"):
        if n.attrs[name]:
            raise Error(f"{name}: got {n.attrs[name]}, need 0; export the model again without it")
    heads = _heads_of(n)
    pieces = b.split(product, axis=2, split_sizes=sizes)
    query, key, value = (_by_head(b, piece, heads) for piece in pieces)
    if past is not None:
        if past.shape[:1] + past.shape[2:3] != (2, heads) or len(past.shape) != 5:
            raise Error(f"past: got {past.shape}, need (2, batch, {heads}, length, head)")
        old = b.split(past, axis=0, num_splits=2)
        key, value = (b.concat(b.squeeze(o, axes=(0,)), v, axis=2) for o, v in zip(old, (key, value), strict=True))
    out = _merged(b, _attended(b, n, query, key, value, mask, added))
    if not n.wants(1):
        return [out]
    return [out, b.stack(key, value, axis=0)]


@domain_op(
    MICROSOFT, "MultiHeadAttention", inputs=(1, 10), required=("num_heads",),
    attributes={"mask_filter_value": HIDDEN, "num_heads": int, "scale": 0.0, "unidirectional": 0},
)  # fmt: skip
def multi_head_attention(b: Builder, n: OnnxNode) -> Result:
    """Applies attention to Q, K and V in one of these forms: separate (B, S, N * D), K and V by head (B, N, T, D), K
    and V packed (B, T, N, 2, D), or all packed (B, S, N, 3, D)."""
    heads, query = _heads_of(n), n.value(0)
    first, second, bias = n.optional(1), n.optional(2), n.optional(3)
    for i, name in ((8, "past_sequence_length"), (9, "cache_indirection")):
        if n.has(i):
            raise Error(f"got {name}, need a model whose cache has no spare places; export it again without them")
    if first is None and second is None and len(query.shape) == 5:
        parts = [_packed(b, query, i) for i in range(3)]
    elif first is not None and second is None and len(first.shape) == 5:
        parts = [_by_head(b, query, heads), _packed(b, first, 0), _packed(b, first, 1)]
    elif first is not None and second is not None:
        parts = [_by_head(b, query, heads)] + [
            v if len(v.shape) == 4 else _by_head(b, v, heads) for v in (first, second)
        ]
    else:
        raise Error("got a query without key and value, need all three, or packed ones of 5 axes")
    if bias is not None:
        sizes = [p.shape[1] * p.shape[3] for p in parts]
        if bias.shape != (sum(sizes),):
            raise Error(f"got a bias of shape {bias.shape}, need ({sum(sizes)},)")
        cut = b.split(bias, axis=0, split_sizes=sizes)
        by_head = first is not None and len(first.shape) == 4  # K and V by head include their biases
        for i in range(1 if by_head else 3):
            parts[i] = b.add(parts[i], b.reshape(cut[i], shape=(parts[i].shape[1], 1, parts[i].shape[3])))
    key, value = (_after_past(b, n.optional(6 + i), v) for i, v in enumerate(parts[1:]))
    out = _merged(b, _attended(b, n, parts[0], key, value, n.optional(4), n.optional(5)))
    return [out, key, value]


def _packed(b: Builder, x: Value, index: int) -> Value:
    """Reshapes one packed part: (B, S, N, several, D) -> (B, N, S, D)."""
    piece = b.squeeze(part(b, x, 3, index, index + 1), axes=(3,))
    result: Value = b.transpose(piece, perm=(0, 2, 1, 3))
    return result


def _after_past(b: Builder, past: Value | None, new: Value) -> Value:
    result: Value = new if past is None else b.concat(past, new, axis=2)
    return result


def _heads_of(n: OnnxNode, name: str = "num_heads") -> int:
    heads = int(n.attrs[name])
    if heads < 1:
        raise Error(f"{name}: got {heads}, need a positive integer")
    return heads


def _by_head(b: Builder, x: Value, heads: int) -> Value:
    """Reshapes (B, S, N * D) -> (B, N, S, D)."""
    if len(x.shape) != 3 or x.shape[2] % heads:
        raise Error(f"got {x.shape} for {heads} heads, need (batch, length, a multiple of {heads})")
    by_head = b.reshape(x, shape=(*x.shape[:2], heads, x.shape[2] // heads))
    result: Value = b.transpose(by_head, perm=(0, 2, 1, 3))
    return result


def _merged(b: Builder, x: Value) -> Value:
    """Reshapes (B, N, S, D) -> (B, S, N * D)."""
    batch, heads, rows, columns = x.shape
    result: Value = b.reshape(b.transpose(x, perm=(0, 2, 1, 3)), shape=(batch, rows, heads * columns))
    return result


def _attended(
    b: Builder, n: OnnxNode, query: Value, key: Value, value: Value, mask: Value | None, added: Value | None
) -> Value:
    """Returns the attention of Attention and MultiHeadAttention, where mask_filter_value is added to the scores of
    padding."""
    rows, keys = query.shape[2], key.shape[2]
    bias = None if mask is None else cast(b, _padding(b, n, mask, query.shape[0], rows, keys), query.dtype)
    causal = bool(n.attrs["unidirectional"]) and rows > 1
    if causal and bias is None and added is None and rows == keys:
        result: Value = b.scaled_dot_product_attention(query, key, value, scale=n.attrs["scale"], causal=True)
        return result
    if causal:
        seen = np.tri(rows, keys, keys - rows, dtype=np.bool_)
        if bias is None and added is None:
            result = b.scaled_dot_product_attention(query, key, value, b.const(seen), scale=n.attrs["scale"])
            return result
        lowest = np.finfo(np.float16 if query.dtype.bits == 16 else np.float32).min  # the score of later keys
        hidden = b.const(np.full((), lowest, query.dtype.numpy))
        bias = b.select(b.const(seen), b.const(np.zeros((), query.dtype.numpy)) if bias is None else bias, hidden)
    if added is not None:
        bias = added if bias is None else b.add(bias, added)
    result = b.scaled_dot_product_attention(query, key, value, bias, scale=n.attrs["scale"])
    return result


def _padding(b: Builder, n: OnnxNode, mask: Value, batch: int, rows: int, keys: int) -> Value:
    """Returns the mask as an addend of the scores (B, 1, S, T): 0 for valid keys, mask_filter_value for others. Forms
    of the mask:

    Mask (B,): the number of keys; (2 * B,): the ends of valid keys, then their starts; (B, T), (B, S, T): 1 for valid
    keys; (B, 1, M, M): a larger square, from which the rows and columns of these queries and keys are cut.
    """
    places, shape = np.arange(keys, dtype=np.int32), mask.shape
    if shape in ((batch,), (2 * batch,)):
        ends = b.reshape(cast(b, part(b, mask, 0, 0, batch), INT32), shape=(batch, 1, 1, 1))
        counts = b.less(b.const(places), ends)
        if shape != (batch,):
            starts = b.reshape(cast(b, part(b, mask, 0, batch, 2 * batch), INT32), shape=(batch, 1, 1, 1))
            counts = b.logical_and(counts, b.greater_equal(b.const(places), starts))
    elif shape in ((batch, keys), (batch, rows, keys)):
        key_mask = b.reshape(mask, shape=(batch, 1, 1 if len(shape) == 2 else rows, keys))
        counts = b.greater(cast(b, key_mask, INT32), 0) if mask.dtype is not BOOL else key_mask
    elif len(shape) == 4 and shape[1] == 1 and min(shape[2:]) >= keys:
        square = part(b, part(b, mask, 2, keys - rows, keys), 3, 0, keys)
        counts = b.greater(cast(b, square, INT32), 0)
    else:
        raise Error(
            f"mask: got {shape} for {batch} x {rows} queries and {keys} keys, need one of the forms of its docs"
        )
    kind, hidden = np.float32, n.attrs["mask_filter_value"]
    result: Value = b.select(counts, b.const(np.zeros((), kind)), b.const(np.full((), hidden, kind)))
    return result


_GROUPED: Mapping[str, Any] = {
    "causal": 1,
    "do_rotary": 0,
    "k_norm_epsilon": float,
    "k_quant_type": "NONE",
    "kv_cache_bit_width": int,
    "kv_num_heads": int,
    "local_window_size": -1,
    "num_heads": int,
    "q_norm_epsilon": float,
    "qk_norm_epsilon": 1e-6,
    "qk_output": 0,
    "rotary_interleaved": 0,
    "scale": 0.0,
    "sliding_window_cache": 0,
    "smooth_softmax": -1,
    "softcap": 0.0,
    "v_quant_type": "NONE",
}


@domain_op(
    MICROSOFT, "GroupQueryAttention", inputs=(7, 17), attributes=_GROUPED, required=("num_heads", "kv_num_heads"),
    shape_inputs=(6,),
)  # fmt: skip
def group_query_attention(b: Builder, n: OnnxNode) -> Result:
    """Applies causal attention with a cache, in which groups of heads share keys and values. seqlens_k: the index of
    each sequence's last key. The old cache is past_key and past_value (B, N, P, D). The new cache has max(P,
    total_sequence_length) rows; rows after the last key are 0."""
    heads, groups = _heads_of(n), _heads_of(n, "kv_num_heads")
    if heads % groups:
        raise Error(f"got {heads} heads and {groups} groups of keys, need a multiple")
    query, key, value = _grouped_parts(b, n, heads, groups)
    batch, _, rows, _ = query.shape
    total = n.integer(6)
    past = [n.optional(3), n.optional(4)]
    if (past[0] is None) != (past[1] is None):
        raise Error("got one of past_key and past_value, need both or none")
    room = 0 if past[0] is None else past[0].shape[2]
    lengths = b.add(b.reshape(cast(b, n.value(5), INT64), shape=(batch, 1)), 1)
    first = rows == total  # a prompt: the cache is empty, and shorter sequences are padded at the end
    before = b.const(np.zeros((batch, 1), np.int64)) if first else b.sub(lengths, rows)
    if n.has(14) or n.has(15):
        if not (n.has(14) and n.has(15)):
            raise Error("got one of q_norm_weight and k_norm_weight, need both or none")
        query, key = (
            b.rms_norm(v, n.value(14 + i), axes=(-1,), epsilon=_norm_epsilon(n, side))
            for i, (v, side) in enumerate(((query, "q"), (key, "k")))
        )
    if n.attrs["do_rotary"]:
        cos, sin = n.value(7), n.value(8)
        at = n.optional(9)
        at = (
            b.add(before, b.const(np.arange(rows)))
            if at is None
            else b.reshape(cast(b, at, INT64), shape=(batch, rows))
        )
        query, key = (rotated(b, v, cos, sin, at, bool(n.attrs["rotary_interleaved"])) for v in (query, key))
    keys = max(room, total)
    present = [_cached(b, old, new, before, lengths, keys) for old, new in zip(past, (key, value), strict=True)]
    mask = _grouped_mask(b, n, before, rows, keys)
    out = _grouped_scores(b, n, query, present[0], present[1], mask, groups)
    return [_merged(b, out), *present]


def _norm_epsilon(n: OnnxNode, side: str) -> float:
    return float(n.attrs.get(f"{side}_norm_epsilon") or n.attrs["qk_norm_epsilon"])


def _grouped_parts(b: Builder, n: OnnxNode, heads: int, groups: int) -> tuple[Value, Value, Value]:
    """Returns query (B, N, S, D), key and value (B, groups, S, D), from three inputs or one packed input."""
    query, key, value = n.value(0), n.optional(1), n.optional(2)
    for name, usual in (
        ("k_quant_type", "NONE"),
        ("v_quant_type", "NONE"),
        ("qk_output", 0),
        ("sliding_window_cache", 0),
    ):
        if n.attrs[name] != usual:
            raise Error(f"{name}: got {n.attrs[name]}, need {usual}; export the model again without it")
    if key is None and value is None:
        packed = _by_head(b, query, heads + 2 * groups)
        query, key, value = b.split(packed, axis=1, split_sizes=(heads, groups, groups))
        return query, key, value
    if key is None or value is None:
        raise Error("got one of key and value, need both or none")
    return _by_head(b, query, heads), _by_head(b, key, groups), _by_head(b, value, groups)


def _cached(b: Builder, past: Value | None, new: Value, before: Value, lengths: Value, keys: int) -> Value:
    """Returns the cache (B, N, keys, D) with the old entries, the new entries and then zeros."""
    batch, groups, rows, width = new.shape
    room = 0 if past is None else past.shape[2]
    offset = known(before)
    if offset is not None and (offset == keys - rows).all() and room == keys - rows:
        return new if past is None or not room else b.concat(past, new, axis=2)
    pieces = [
        *([] if past is None or not room else [past]),
        new,
        b.const(np.zeros((batch, groups, 1, width), new.dtype.numpy)),
    ]
    places = b.const(np.arange(keys, dtype=np.int64))
    old = b.less(places, before)
    fresh = b.less(places, b.add(before, rows))
    index = b.select(fresh, b.add(b.sub(places, before), room), b.const(np.array(room + rows, np.int64)))
    index = b.select(old, b.add(places, b.mul(before, 0)), index) if room else index
    wide = b.broadcast_to(b.reshape(index, shape=(batch, 1, keys, 1)), shape=(batch, groups, keys, width))
    result: Value = b.gather_along_axis(b.concat(*pieces, axis=2), wide, axis=2)
    return result


def _grouped_mask(b: Builder, n: OnnxNode, before: Value, rows: int, keys: int) -> Value | None:
    """Returns True at keys that a query (.., 1, S, 1) attends to: no later ones, and none outside the window."""
    batch = before.shape[0]
    here = b.add(b.reshape(before, shape=(batch, 1, 1, 1)), b.const(np.arange(rows, dtype=np.int64).reshape(rows, 1)))
    places = b.const(np.arange(keys, dtype=np.int64))
    seen = b.less_equal(places, here)
    if not n.attrs["causal"]:
        raise Error("causal: got 0, need 1; export the model again with MultiHeadAttention")
    window = n.attrs["local_window_size"]
    if window > 0:
        seen = b.logical_and(seen, b.greater(places, b.sub(here, window)))
    result: Value = seen
    return result


def _grouped_scores(
    b: Builder, n: OnnxNode, query: Value, key: Value, value: Value, mask: Value | None, groups: int
) -> Value:
    """Applies attention of (B, N, S, D) over (B, groups, T, D). N / groups heads share a key."""
    batch, heads, rows, width = query.shape
    keys, added, sink = key.shape[2], n.optional(10), n.optional(11)
    share = heads // groups
    grouped = b.reshape(query, shape=(batch, groups, share, rows, width))
    key, value = (b.reshape(v, shape=(batch, groups, 1, *v.shape[2:])) for v in (key, value))
    seen = b.expand_dims(mask, axes=(1,))  # (B, 1, 1, S, T)
    scale = n.attrs["scale"] or width**-0.5
    cap, smooth = n.attrs["softcap"], n.attrs["smooth_softmax"] > 0
    if added is not None:
        added = b.broadcast_to(added, shape=(added.shape[0], heads if added.shape[1] > 1 else 1, rows, added.shape[3]))
        added = part(b, added, 3, 0, keys) if added.shape[3] > keys else added
        shape = (
            (added.shape[0], groups, share, rows, keys) if added.shape[1] > 1 else (added.shape[0], 1, 1, rows, keys)
        )
        added = b.reshape(added, shape=shape)
    if not cap and not smooth and sink is None:
        if added is not None:
            seen = b.select(seen, added, b.const(np.full((), -np.inf, query.dtype.numpy)))
        out = b.scaled_dot_product_attention(grouped, key, value, seen, scale=scale)
    else:
        scores = b.mul(b.matmul(grouped, key, transpose_y=True), scale)
        if cap:
            scores = b.mul(b.tanh(b.mul(scores, 1 / cap)), cap)
        if added is not None:
            scores = b.add(scores, added)
        scores = b.select(seen, scores, b.const(np.full((), -np.inf, query.dtype.numpy)))
        if smooth or sink is not None:  # adds a score without a key, whose value is 0
            extra = (
                b.const(np.zeros((), query.dtype.numpy))
                if sink is None
                else b.reshape(sink, shape=(groups, share, 1, 1))
            )
            extra = b.broadcast_to(extra, shape=(batch, groups, share, rows, 1))
            shares = part(b, b.softmax(b.concat(scores, extra, axis=-1), axis=-1), 4, 0, keys)
        else:
            shares = b.softmax(scores, axis=-1)
        out = b.matmul(shares, value)
    result: Value = b.reshape(out, shape=(batch, heads, rows, out.shape[-1]))
    return result


def rotated(b: Builder, x: Value, cos: Value, sin: Value, places: Value, interleaved: bool) -> Value:
    """Rotates x (B, N, S, D) by the rows of the tables (positions, half) at the indices in places (B, S). Elements
    beyond the tables' width are unchanged."""
    rotary_dim = 2 * cos.shape[-1]
    if cos.shape != sin.shape or len(cos.shape) != 2 or rotary_dim > x.shape[-1]:
        raise Error(
            f"got tables {cos.shape} and {sin.shape} for heads of {x.shape[-1]}, need (places, half of it or less)"
        )
    tables = [b.expand_dims(b.gather(table, places, axis=0), axes=(1,)) for table in (cos, sin)]
    if rotary_dim == x.shape[-1]:
        result: Value = b.rotary_embedding(x, *tables, interleaved=interleaved)
        return result
    first, rest = part(b, x, 3, 0, rotary_dim), part(b, x, 3, rotary_dim, x.shape[-1])
    result = b.concat(b.rotary_embedding(first, *tables, interleaved=interleaved), rest, axis=3)
    return result


@domain_op(
    MICROSOFT, "RotaryEmbedding", inputs=(4, 4),
    attributes={
        "interleaved": 0, "is_packed_batching": 0, "num_heads": 0, "rotary_embedding_dim": 0, "scale": 1.0
    },
    ignores=("is_packed_batching", "scale"),
)  # fmt: skip
def rotary_embedding(b: Builder, n: OnnxNode) -> Result:
    """Rotates x (B, S, N * D) or (B, N, S, D). position_ids is (B, S), or (1,): the first position."""
    x, at, cos, sin = (n.value(i) for i in range(4))
    dim, heads = n.attrs["rotary_embedding_dim"], n.attrs["num_heads"]
    flat = len(x.shape) == 3
    if flat:
        width = 2 * cos.shape[-1] if not dim else x.shape[2] // max(heads, 1)
        queries = _by_head(b, x, heads or x.shape[2] // width)
    else:
        queries = x
    batch, _, rows, _ = queries.shape
    at = cast(b, at, INT64)
    if at.type.size == 1 and len(at.shape) < 2:
        at = b.broadcast_to(b.add(b.reshape(at, shape=(1, 1)), b.const(np.arange(rows))), shape=(batch, rows))
    if dim and dim != 2 * cos.shape[-1]:
        raise Error(f"rotary_embedding_dim: got {dim} with tables {cos.shape}, need twice their last dim")
    out = rotated(b, queries, cos, sin, at, bool(n.attrs["interleaved"]))
    return _merged(b, out) if flat else out

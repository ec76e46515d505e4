"""Finds the axes along which an op computes each index independently. Along independent axes an op can be split into
pieces, and independent axes can be merged."""

from collections.abc import Callable
from functools import partial

from hexane.graph import Node, Value
from hexane.ops.records import elementwise

# Axis of the result -> for each input the axis that is split with it, or None if every piece reads the whole input.
Lines = dict[int, tuple[int | None, ...]]

ELEMENTWISE = frozenset(op.name for op in elementwise.OPS)


def lines(node: Node) -> Lines:
    """Returns the axes of a node's results along which pieces are independent. Returns no axes for an unknown op."""
    if node.op in ELEMENTWISE:
        return _aligned(node)
    known = _KINDS.get(node.op)
    return known(node) if known is not None else {}


def aligned_axis(v: Value | None, axis: int, rank: int) -> int | None:
    """Returns the axis of an input that broadcasts to an axis of a result of this rank. Returns None if the input lacks
    this axis or if its extent is 1."""
    if v is None:
        return None
    own = axis - rank + v.type.rank
    return own if own >= 0 and v.shape[own] != 1 else None


def _aligned(node: Node, *excluded: int) -> Lines:
    """Returns all axes except `excluded`, for an op whose inputs broadcast."""
    rank = node.types[0].rank
    return {i: tuple([aligned_axis(v, i, rank) for v in node.inputs]) for i in range(rank) if i not in excluded}


def _but_axis(node: Node) -> Lines:
    return _aligned(node, node.attrs["axis"] % max(node.types[0].rank, 1))


def _but_axes(node: Node) -> Lines:
    return _aligned(node, *node.attrs["axes"])


def _but_padded(node: Node) -> Lines:
    return _aligned(
        node, *[i for i, (a, z) in enumerate(zip(node.attrs["begin"], node.attrs["end"], strict=True)) if a or z]
    )


def _but_repeated(node: Node) -> Lines:
    return _aligned(node, *[i for i, n in enumerate(node.attrs["reps"]) if n != 1])


def _transpose(node: Node) -> Lines:
    return {i: (p,) for i, p in enumerate(node.attrs["perm"])}


def _reduction(node: Node) -> Lines:
    x = node.inputs[0]
    assert x is not None
    gone = set(reduced_axes(node))
    kept = [i for i in range(x.type.rank) if i not in gone]
    return {i if node.attrs["keep_dims"] else place: (i,) for place, i in enumerate(kept)}


def reduced_axes(node: Node) -> tuple[int, ...]:
    """Returns the axes of a reduction, an argmax or an argmin as nonnegative numbers."""
    x = node.inputs[0]
    assert x is not None
    given = (node.attrs["axis"],) if "axis" in node.attrs else node.attrs["axes"]
    return tuple(a % x.type.rank for a in given) or tuple(range(x.type.rank))


def _batch_norm(node: Node) -> Lines:
    params = len(node.inputs) - 1
    of_channels = tuple([None if v is None else 0 for v in node.inputs[1:]])
    return {i: (i, *(of_channels if i == node.attrs["axis"] else (None,) * params)) for i in range(node.types[0].rank)}


def _instance_norm(node: Node) -> Lines:
    return {0: (0, None, None), 1: (1, *[None if v is None else 0 for v in node.inputs[1:]])}


def _gather(node: Node) -> Lines:
    x, indices = node.inputs
    assert x is not None
    assert indices is not None
    axis, many = node.attrs["axis"] % x.type.rank, indices.type.rank
    by_output: Lines = {i: (i, None) for i in range(axis)}
    by_output |= {axis + i: (None, i) for i in range(many)}
    return by_output | {i + many - 1: (i, None) for i in range(axis + 1, x.type.rank)}


def _matmul(node: Node) -> Lines:
    x, y, bias = node.inputs
    assert x is not None
    assert y is not None
    rank = node.types[0].rank
    if x.type.rank < 2 or y.type.rank < 2:
        return {}
    rows = x.type.rank - (1 if node.attrs["transpose_x"] else 2)
    columns = y.type.rank - (2 if node.attrs["transpose_y"] else 1)
    by_output: Lines = {i: (aligned_axis(x, i, rank), aligned_axis(y, i, rank), None) for i in range(rank - 2)}
    return by_output | {rank - 2: (rows, None, None), rank - 1: (None, columns, None if bias is None else 0)}


def _attention(node: Node) -> Lines:
    """Returns the batch axes, and the rows of the query unless the attention is causal."""
    query, _, value, mask = node.inputs
    assert query is not None
    assert value is not None
    rank = node.types[0].rank
    result: Lines = {i: tuple([aligned_axis(v, i, rank) for v in node.inputs]) for i in range(rank - 2)}
    if not node.attrs["causal"]:
        result[rank - 2] = (query.type.rank - 2, None, None, aligned_axis(mask, rank - 2, rank))
    return result


def _conv(node: Node) -> Lines:
    out: Lines = {1: (None, 0, None if node.inputs[2] is None else 0)} if node.attrs["groups"] == 1 else {}
    return {0: (0, None, None), **out}


def _conv_transpose(node: Node) -> Lines:
    out: Lines = {1: (None, 1, None if node.inputs[2] is None else 0)} if node.attrs["groups"] == 1 else {}
    return {0: (0, None, None), **out}


def _first(count: int, node: Node) -> Lines:
    """Returns the first `count` axes, for an op on images."""
    return {i: (i,) for i in range(count)}


_KINDS: dict[str, Callable[[Node], Lines]] = {
    **dict.fromkeys(("softmax", "log_softmax", "cumsum", "cumprod", "hardmax", "argsort", "topk", "concat"), _but_axis),
    **dict.fromkeys(("lp_norm", "local_response_norm"), _but_axis),
    **dict.fromkeys(("layer_norm", "rms_norm", "l2_norm", "mean_variance_norm", "reverse"), _but_axes),
    **dict.fromkeys(
        ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_sum_square"), _reduction
    ),
    **dict.fromkeys(("reduce_l1_norm", "reduce_l2_norm", "reduce_log_sum", "reduce_log_sum_exp"), _reduction),
    **dict.fromkeys(("reduce_argmax", "reduce_argmin"), _reduction),
    **dict.fromkeys(("max_pool", "avg_pool", "resize_bilinear", "resize_nearest_neighbor"), partial(_first, 2)),
    **dict.fromkeys(("space_to_depth", "depth_to_space", "pixel_shuffle", "pixel_unshuffle"), partial(_first, 1)),
    "pad": _but_padded,
    "tile": _but_repeated,
    "transpose": _transpose,
    "broadcast_to": _aligned,
    "batch_norm": _batch_norm,
    "instance_norm": _instance_norm,
    "gather": _gather,
    "matmul": _matmul,
    "scaled_dot_product_attention": _attention,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
}

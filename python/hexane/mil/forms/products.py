"""Matrix products, attention, reductions, softmax and norms."""

import math
from collections.abc import Sequence

from hexane.errors import Error
from hexane.graph import Node, Value
from hexane.mil.forms.form import Form, MilCall, keeps_indices, plain
from hexane.ops.compose import Builder

PRODUCTS = ("conv", "conv_transpose", "matmul", "linear")  # products, whose weights stay encoded
_REDUCTIONS = (
    "reduce_l1_norm", "reduce_l2_norm", "reduce_log_sum", "reduce_log_sum_exp", "reduce_max", "reduce_mean", "reduce_min",  # noqa: E501
    "reduce_prod", "reduce_sum", "reduce_sum_square",
)  # fmt: skip


def _write_matmul(node: Node) -> MilCall | None:
    x, y, bias = node.inputs
    return None if bias is not None else MilCall("matmul", {"x": x, "y": y, **node.attrs})


def _read_matmul(b: Builder, x: Value, y: Value, transpose_x: bool, transpose_y: bool) -> Value:
    return b.matmul(x, y, None, transpose_x=transpose_x, transpose_y=transpose_y)


def _write_attention(node: Node) -> MilCall | None:
    query, key, value, mask = node.inputs
    assert query is not None
    attrs = node.attrs
    if attrs["causal"] or attrs["zero_hidden"] or not math.isinf(attrs["hidden"]):
        return None
    if attrs["scale"] != _scale(query) or len(query.shape) < 3:
        return None
    return MilCall("scaled_dot_product_attention", {"query": query, "key": key, "value": value, "attn_mask": mask})


def _scale(query: Value) -> float:
    return 1 / math.sqrt(max(query.shape[-1], 1))


def _read_attention(b: Builder, query: Value, key: Value, value: Value, attn_mask: Value | None) -> Value:
    return b.scaled_dot_product_attention(query, key, value, attn_mask)


def _write_layer_norm(node: Node) -> MilCall:
    x, gamma, beta = node.inputs
    return MilCall(
        "layer_norm",
        {"x": x, "axes": node.attrs["axes"], "gamma": gamma, "beta": beta, "epsilon": node.attrs["epsilon"]},
    )


def _read_layer_norm(
    b: Builder, x: Value, axes: Sequence[int] | None, gamma: Value | None, beta: Value | None, epsilon: float
) -> Value:
    """Reads a layer norm. If `axes` are not the last axes, x is transposed and the result is transposed back."""
    rank = len(x.shape)
    axes = tuple(range(rank)) if axes is None else axes
    if any(not -rank <= a < rank for a in axes):
        raise Error(f"axes: got {tuple(axes)} for x {x.type}, need {-rank}..{rank - 1}")
    normalised = sorted({a % rank for a in axes})
    perm = [*(i for i in range(rank) if i not in normalised), *normalised]
    if perm == list(range(rank)):
        return b.layer_norm(x, gamma, beta, axes=axes, epsilon=epsilon)
    moved = b.layer_norm(
        b.transpose(x, perm=perm), gamma, beta, axes=range(rank - len(normalised), rank), epsilon=epsilon
    )
    return b.transpose(moved, perm=[perm.index(i) for i in range(rank)])


def _write_l2_norm(node: Node) -> MilCall | None:
    """Writes an l2_norm over the last three axes, which MIL requires."""
    x = node.inputs[0]
    assert x is not None
    rank = len(x.shape)
    if rank < 3 or node.attrs["axes"] != tuple(range(rank - 3, rank)):
        return None
    return MilCall("l2_norm", {"x": x, "epsilon": node.attrs["epsilon"]})


def _read_l2_norm(b: Builder, x: Value, epsilon: float) -> Value:
    if len(x.shape) < 3:
        raise Error(f"got x {x.type}, need 3 axes or more")
    return b.l2_norm(x, axes=(-3, -2, -1), epsilon=epsilon)


def _write_local_response_norm(node: Node) -> MilCall | None:
    """Writes a norm over an odd number of channels. MIL would add one to an even number of channels."""
    attrs = node.attrs
    if attrs["axis"] != 1 or attrs["size"] % 2 == 0:
        return None
    return MilCall(
        "local_response_norm", {"x": node.inputs[0], **{k: attrs[k] for k in ("size", "alpha", "beta", "k")}}
    )


def _read_local_response_norm(b: Builder, x: Value, size: int, alpha: float, beta: float, k: float) -> Value:
    if size % 2 == 0:
        raise Error(f"size: got {size}, need an odd number")
    return b.local_response_norm(x, size=size, alpha=alpha, beta=beta, k=k, axis=1)


def _place(op: str) -> Form:
    """Returns the form of an op whose result is an index. MIL has indices in int32 and uint16, not in int64."""
    form = plain(op, dtype="output_dtype")
    write = form.write
    assert write is not None
    return form._replace(write=lambda node: write(node) if keeps_indices(node) else None)


FORMS = (
    *map(plain, (*_REDUCTIONS, "softmax", "linear", "cumsum")),
    plain("einsum")._replace(op="", write=None),  # MIL's einsum is only read; ours is expanded
    _place("reduce_argmax"),
    _place("reduce_argmin"),
    plain("batch_norm", fixed={"axis": 1}),
    plain("instance_norm", fixed={"layout": "nchw"}),
    Form("matmul", "matmul", _write_matmul, _read_matmul),
    Form("scaled_dot_product_attention", "scaled_dot_product_attention", _write_attention, _read_attention),
    Form("layer_norm", "layer_norm", _write_layer_norm, _read_layer_norm),
    Form("l2_norm", "l2_norm", _write_l2_norm, _read_l2_norm),
    Form("local_response_norm", "local_response_norm", _write_local_response_norm, _read_local_response_norm),
)

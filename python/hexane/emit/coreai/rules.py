"""Expands ops, and variants of ops, that Core AI lacks: those whose records have no expansion, or one that overflows in
fp16. `RULES` has the patterns for a Rewriter."""

from collections.abc import Callable
from math import log, prod
from typing import Any

import numpy as np

from hexane.dtypes import FP16, INT32
from hexane.emit.coreai.forms import nearest_places
from hexane.graph import Node, Value
from hexane.ops import simpler
from hexane.ops.rewriter import Pattern

RULES: dict[str, list[Pattern]] = {}


def rule(*names: str) -> Callable[[Pattern], Pattern]:
    """Registers a pattern, a function of the rewriter and the node."""

    def register(pattern: Pattern) -> Pattern:
        for name in names:
            RULES.setdefault(name, []).append(pattern)
        return pattern

    return register


def _x(n: Node) -> Value:
    assert n.inputs[0] is not None
    return n.inputs[0]


def _root_of_squares(b: Any, x: Value, node: Node) -> Any:
    """In fp16, scales each row to within 128 first, because fp16 cannot represent the square of 256."""
    axes, keep = node.attrs["axes"], node.attrs["keep_dims"]
    if x.type.dtype is not FP16:
        return b.sqrt(b.reduce_sum(b.mul(x, x), axes=axes, keep_dims=keep))
    u, factor = simpler.held_for_sum(b, x, axes)
    root = b.real_div(b.sqrt(b.reduce_sum(b.mul(u, u), axes=axes, keep_dims=True)), factor)
    return root if keep else b.reshape(root, shape=node.types[0].shape)


# Rules of one line each: x is the first operand.
_LINES: dict[str, Any] = {
    "neg": lambda b, x, n: simpler.neg(b, x),
    "square": lambda b, x, n: b.mul(x, x),
    "inverse": lambda b, x, n: b.real_div(b.const(np.ones((), x.dtype.numpy)), x),
    "exp2": lambda b, x, n: b.exp(b.mul(x, log(2))),
    "sign": lambda b, x, n: b.sub(b.cast(b.greater(x, 0), dtype=x.dtype), b.cast(b.less(x, 0), dtype=x.dtype)),
    "less": lambda b, x, n: b.greater(n.inputs[1], x),
    "greater_equal": lambda b, x, n: b.logical_or(b.greater(x, n.inputs[1]), b.equal(x, n.inputs[1])),
    "less_equal": lambda b, x, n: b.logical_or(b.greater(n.inputs[1], x), b.equal(x, n.inputs[1])),
    "mod": lambda b, x, n: b.sub(x, b.mul(b.floor_div(x, n.inputs[1]), n.inputs[1])),
    "clip": lambda b, x, n: simpler.clip(b, x, **n.attrs),
    "relu6": lambda b, x, n: simpler.clip(b, x, 0.0, 6.0),
    "leaky_relu": lambda b, x, n: b.select(b.less(x, 0), b.mul(x, n.attrs["alpha"]), x),
    "prelu": lambda b, x, n: simpler.prelu(b, x, n.inputs[1]),
    "thresholded_relu": lambda b, x, n: b.select(b.greater(x, n.attrs["alpha"]), x, 0.0),
    "threshold": lambda b, x, n: b.maximum(x, n.attrs["alpha"]),
    "elu": lambda b, x, n: _elu(b, x, n.attrs["alpha"], 1.0),
    "celu": lambda b, x, n: _elu(b, x, n.attrs["alpha"], n.attrs["alpha"]),
    "selu": lambda b, x, n: simpler.selu(b, x, **n.attrs),
    "softplus": lambda b, x, n: b.add(b.relu(x), b.log(b.add(b.exp(b.neg(b.abs(x))), 1.0))),
    "softsign": lambda b, x, n: b.real_div(x, b.add(b.abs(x), 1.0)),
    "sigmoid_hard": lambda b, x, n: simpler.sigmoid_hard(b, x, **n.attrs),
    "hard_swish": lambda b, x, n: simpler.hard_swish(b, x),
    "scaled_tanh": lambda b, x, n: b.mul(b.tanh(b.mul(x, n.attrs["beta"])), n.attrs["alpha"]),
    "linear_activation": lambda b, x, n: b.add(b.mul(x, n.attrs["alpha"]), n.attrs["beta"]),
    "reduce_sum_square": lambda b, x, n: b.reduce_sum(b.mul(x, x), **n.attrs),
    "reduce_l1_norm": lambda b, x, n: b.reduce_sum(b.abs(x), **n.attrs),
    "reduce_l2_norm": _root_of_squares,
    "reduce_log_sum": lambda b, x, n: b.log(b.reduce_sum(x, **n.attrs)),
}


def _in_a_line(line: Any) -> Pattern:
    return lambda b, n: line(b, _x(n), n)


RULES.update((name, [_in_a_line(line)]) for name, line in _LINES.items())


def _elu(b: Any, x: Value, alpha: float, scale: float) -> Any:
    below = b.minimum(x, 0.0) if scale == 1 else b.real_div(b.minimum(x, 0.0), scale)
    return b.select(b.less(x, 0), b.mul(b.sub(b.exp(below), 1.0), alpha), x)


@rule("floor", "ceil")
def _floor(b: Any, n: Node) -> Any:
    """Rounds to nearest, and corrects by one if the result is beyond x."""
    x, near = _x(n), b.round(_x(n))
    if n.op == "floor":
        return b.sub(near, b.cast(b.greater(near, x), dtype=x.dtype))
    return b.add(near, b.cast(b.greater(x, near), dtype=x.dtype))


@rule("l2_norm")
def _l2_norm(b: Any, n: Node) -> Any:
    """Scales each row so that fp16 can represent its sum of squares."""
    return simpler.l2_norm(b, _x(n), **n.attrs) if _x(n).dtype is FP16 else None


@rule("reduce_log_sum_exp")
def _log_sum_exp(b: Any, n: Node) -> Any:
    x, axes = _x(n), n.attrs["axes"]
    largest = b.reduce_max(x, axes=axes, keep_dims=True)
    total = b.add(b.log(b.reduce_sum(b.exp(b.sub(x, largest)), axes=axes, keep_dims=True)), largest)
    return total if total.shape == n.types[0].shape else b.reshape(total, shape=n.types[0].shape)


@rule("local_response_norm")
def _local_response(b: Any, n: Node) -> Any:
    """Expands to an average pool over the channel axis with zero padding: the mean of squares over nearby channels."""
    x, a = _x(n), n.attrs
    if not x.type.size:
        return b.mul(x, x)
    outer, inner = prod(x.shape[: a["axis"]]), prod(x.shape[a["axis"] + 1 :])
    squares = b.reshape(b.mul(x, x), shape=(1, outer, x.shape[a["axis"]], inner))
    pad = ((a["size"] - 1) // 2, a["size"] // 2, 0, 0)
    means = b.avg_pool(squares, kernel_sizes=(a["size"], 1), pad=pad, exclude_padding=False)
    scale = b.pow(b.add(b.mul(means, a["alpha"]), a["k"]), a["beta"])
    return b.real_div(x, b.reshape(scale, shape=x.shape))


@rule("matmul")
def _plain_product(b: Any, n: Node) -> Any:
    x, y, bias = n.inputs
    assert x is not None
    assert y is not None
    transposes = {f"transpose_{side}": n.attrs[f"transpose_{side}"] for side in "xy"}
    if x.type.rank == 1:
        x, transposes["transpose_x"] = b.reshape(x, shape=(1, x.shape[0])), False
    if y.type.rank == 1:
        y, transposes["transpose_y"] = b.reshape(y, shape=(y.shape[0], 1)), False
    z = b.matmul(x, y, None, **transposes)
    z = z if z.shape == n.types[0].shape else b.reshape(z, shape=n.types[0].shape)
    return z if bias is None else b.add(z, bias)


@rule("conv", "conv_transpose", "max_pool", "avg_pool")
def _channels_first(b: Any, n: Node) -> Any:
    """Transposes to channels first, because Core AI's windows are over the last axes."""
    x, *rest = n.inputs
    if x is None or n.attrs["layout"] != "nhwc":
        return None
    rank = x.type.rank
    first = b.transpose(x, perm=(0, rank - 1, *range(1, rank - 1)))
    result = b.apply(n.op, first, *rest, **{**n.attrs, "layout": "nchw"})
    return b.transpose(result, perm=(0, *range(2, rank), 1))


@rule("conv", "conv_transpose", "max_pool", "avg_pool")
def _of_one_axis(b: Any, n: Node) -> Any:
    x, *rest = n.inputs
    if x is None or x.type.rank != 3 or n.attrs["layout"] != "nchw":
        return None
    weights = [v if v is None or v.type.rank < 3 else b.expand_dims(v, axes=(2,)) for v in rest]
    attrs = dict(n.attrs)
    for name in ("strides", "dilations", "kernel_sizes"):
        if name in attrs:
            attrs[name] = (1, *attrs[name])
    attrs["pad"] = (0, 0, *attrs["pad"])
    if "output_padding" in attrs:
        attrs["output_padding"] = (0, *attrs["output_padding"])
    result = b.apply(n.op, b.expand_dims(x, axes=(2,)), *weights, **attrs)
    return b.reshape(result, shape=n.types[0].shape)


@rule("conv_transpose")
def _cut_afterwards(b: Any, n: Node) -> Any:
    """Core AI crops both ends equally. For different ends, the whole result is computed and then cropped."""
    x, weight, bias = n.inputs
    pad = n.attrs["pad"]
    if pad[::2] == pad[1::2] or n.attrs["layout"] != "nchw":
        return None
    whole = b.conv_transpose(x, weight, bias, **{**n.attrs, "pad": (0,) * len(pad)})
    return b.slice_by_size(whole, begin=(0, 0, *pad[::2]), size=n.types[0].shape)


@rule("gather")
def _gather(b: Any, n: Node) -> Any:
    x, indices = n.inputs
    assert x is not None
    assert indices is not None
    axis = int(n.attrs["axis"]) % x.type.rank
    front = x if axis == 0 else b.transpose(x, perm=(axis, *[i for i in range(x.type.rank) if i != axis]))
    result = b.gather_nd(front, b.reshape(indices, shape=(*indices.shape, 1)))
    if axis == 0:
        return result
    k = indices.type.rank
    return b.transpose(result, perm=(*range(k, k + axis), *range(k), *range(k + axis, result.type.rank)))


@rule("gather_nd", "gather_along_axis", "scatter_nd", "scatter_along_axis")
def _with_narrow_places(b: Any, n: Node) -> Any:
    """Casts indices to int32, the only dtype that Core AI supports."""
    x, indices, *rest = n.inputs
    if indices is None or indices.dtype is INT32:
        return None
    return b.apply(n.op, x, b.cast(indices, dtype=INT32), *rest, **n.attrs)


@rule("gather_nd")
def _gather_of_batches(b: Any, n: Node) -> Any:
    x, indices = n.inputs
    count = int(n.attrs["batch_dims"])
    if indices is None or not count:
        return None
    front = np.indices(indices.shape[:count], np.int32)
    front = np.moveaxis(front, 0, -1).reshape(*indices.shape[:count], *[1] * (indices.type.rank - count - 1), count)
    front = np.broadcast_to(front, (*indices.shape[:-1], count))
    whole = b.concat(b.const(np.ascontiguousarray(front)), b.cast(indices, dtype=INT32), axis=-1)
    return b.gather_nd(x, whole)


@rule("one_hot")
def _one_hot(b: Any, n: Node) -> Any:
    x, axis = _x(n), int(n.attrs["axis"]) % n.types[0].rank
    shape = [n.types[0].shape[axis] if i == axis else 1 for i in range(n.types[0].rank)]
    depth = n.types[0].shape[axis]
    places = b.cast(b.expand_dims(x, axes=(axis,)), dtype=INT32)
    places = b.select(b.less(places, 0), b.add(places, depth), places)
    numbers = b.const(np.arange(depth, dtype=np.int32).reshape(shape))
    on, off = (b.const(np.array(n.attrs[name], n.types[0].dtype.numpy)) for name in ("on", "off"))
    return b.select(b.equal(places, numbers), on, off)


@rule("pad")
def _pad_of_a_part(b: Any, n: Node) -> Any:
    """Crops by negative pads before the padding."""
    x, begin, end = _x(n), n.attrs["begin"], n.attrs["end"]
    if min((*begin, *end, 0)) >= 0:
        return None
    if any(d + min(p, 0) + min(q, 0) < 0 for d, p, q in zip(x.shape, begin, end, strict=True)):
        return None
    cut, before, after = simpler.inner_pad(b, x, begin, end)
    return b.pad(cut, **{**n.attrs, "begin": before, "end": after})


@rule("resize_nearest_neighbor")
def _gathered(b: Any, n: Node) -> Any:
    """Gathers rows and columns at their constant source indices."""
    y = _x(n)
    if n.attrs["layout"] != "nchw" or 0 in y.shape:
        return None
    for axis, places in zip((2, 3), nearest_places(n), strict=True):
        y = b.gather(y, b.const(places), axis=axis)
    return y


@rule("cumsum")
def _exclusive(b: Any, n: Node) -> Any:
    """Shifts the elements by one before the sums, which excludes the element itself."""
    x, axis, is_reverse = _x(n), int(n.attrs["axis"]), bool(n.attrs["reverse"])
    if not n.attrs["exclusive"] or x.shape[axis] == 0:
        return None
    begin, size = [0] * x.type.rank, list(x.shape)
    begin[axis], size[axis] = int(is_reverse), x.shape[axis] - 1
    one = [int(i == axis) for i in range(x.type.rank)]
    none = [0] * x.type.rank
    sides = {"begin": none, "end": one} if is_reverse else {"begin": one, "end": none}
    moved = b.pad(b.slice_by_size(x, begin=begin, size=size), **sides)
    return b.cumsum(moved, axis=axis, reverse=is_reverse)


@rule("topk")
def _topk(b: Any, n: Node) -> Any:
    x, axis = _x(n), int(n.attrs["axis"])
    order = b.argsort(x, axis=axis, descending=n.attrs["largest"], dtype=INT32)
    size = list(x.shape)
    size[axis] = n.types[0].shape[axis]
    first = b.slice_by_size(order, begin=(0,) * x.type.rank, size=size)
    return b.gather_along_axis(x, first, axis=axis), b.cast(first, dtype=n.types[1].dtype)


@rule("reduce_argmax", "reduce_argmin")
def _arg(b: Any, n: Node) -> Any:
    """Returns the first index of the sorted order, which keeps the order of equal elements."""
    x, axis = _x(n), int(n.attrs["axis"]) % max(_x(n).type.rank, 1)
    order = b.argsort(x, axis=axis, descending=n.op == "reduce_argmax", dtype=INT32)
    size = [1 if i == axis else d for i, d in enumerate(x.shape)]
    first = b.cast(b.slice_by_size(order, begin=(0,) * x.type.rank, size=size), dtype=n.types[0].dtype)
    return first if first.shape == n.types[0].shape else b.reshape(first, shape=n.types[0].shape)


@rule("quantize", "dequantize")
def _rounding(b: Any, n: Node) -> Any:
    """Writes the rounding as arithmetic. Scales and zero points are reshaped to broadcast along their axis. Returns
    None for scales of more than one axis."""
    x, scale, zero = n.inputs
    assert x is not None
    assert scale is not None
    if scale.type.rank > 1:
        return None

    def lined(v: Value) -> Any:
        if v.type.rank == 0:
            return v
        shape = [v.shape[0] if i == n.attrs["axis"] % x.type.rank else 1 for i in range(x.type.rank)]
        return b.reshape(v, shape=shape)

    if n.op == "dequantize":
        y = b.cast(x, dtype=scale.dtype)
        y = y if zero is None else b.sub(y, b.cast(lined(zero), dtype=scale.dtype))
        y = b.mul(y, lined(scale))
        return y if y.dtype is n.types[0].dtype else b.cast(y, dtype=n.types[0].dtype)
    to = n.types[0].dtype
    y = b.round(b.real_div(x, b.cast(lined(scale), dtype=x.dtype)))
    y = y if zero is None else b.add(y, b.cast(lined(zero), dtype=y.dtype))
    low, high = (-(1 << to.bits - 1), (1 << to.bits - 1) - 1) if to.kind == "int" else (0, (1 << to.bits) - 1)
    return b.cast(simpler.clip(b, y, low, high), dtype=to)

"""Expands ops that Core ML lacks, or supports only in part."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import FP32, INT32
from hexane.graph import Node, Value
from hexane.lowering.mil_ops import FORMS
from hexane.ops import simpler
from hexane.ops.compose import Builder, cast
from hexane.ops.rewriter import Pattern
from hexane.passes.retarget.resize import linear_by_products, nearest_by_gather


def _integer_division(b: Builder, node: Node) -> Value | None:
    """Divides integers, truncated toward zero, because MIL does not define real_div of integers."""
    x, y = node.inputs
    if x is None or y is None or x.dtype.kind == "float":
        return None
    size = b.floor_div(b.abs(x), b.abs(y))
    return b.mul(b.mul(size, b.sign(x)), b.sign(y))


def _fmod(b: Builder, node: Node) -> Value:
    x, y = node.inputs
    assert x is not None
    return b.mul(b.mod(b.abs(x), b.abs(y)), b.sign(x))


def _asinh(b: Builder, node: Node) -> Value:
    x = node.inputs[0]
    assert x is not None
    size = b.abs(x)
    return b.mul(b.log(b.add(size, b.sqrt(b.add(b.square(size), 1.0)))), b.sign(x))


def _acosh(b: Builder, node: Node) -> Value:
    x = node.inputs[0]
    assert x is not None
    return b.log(b.add(x, b.sqrt(b.sub(b.square(x), 1.0))))


def _one_hot(b: Builder, node: Node) -> Value:
    (indices,) = node.inputs
    assert indices is not None
    attrs, kind = node.attrs, node.types[0].dtype
    axis, depth = int(attrs["axis"]) % node.types[0].rank, int(attrs["depth"])
    x = cast(b, indices, INT32)
    x = b.select(b.less(x, 0), b.add(x, depth), x)
    wide = b.expand_dims(x, axes=(axis,))
    places = np.arange(depth, dtype=np.int32).reshape([-1 if i == axis else 1 for i in range(node.types[0].rank)])
    on, off = (b.const(np.full([1] * node.types[0].rank, attrs[n], kind.numpy)) for n in ("on", "off"))
    return b.select(b.equal(wide, b.const(places)), on, off)


_KEEP = """
broadcast_to concat equal gather gather_along_axis gather_nd greater greater_equal less less_equal maximum minimum
not_equal reduce_max reduce_min select split stack tile
"""


def _in_int32(b: Builder, node: Node) -> list[Value] | None:
    """Moves and compares bools and small integers as int32."""
    spared = 0 if node.op == "select" else -1
    small = [v for i, v in enumerate(node.inputs) if v is not None and i != spared and v.dtype.kind != "float"]
    if node.op not in _KEEP.split() or all(v.dtype is INT32 for v in small):
        return None
    inputs = [
        v if v is None or i == spared or v.dtype.kind == "float" else cast(b, v, INT32)
        for i, v in enumerate(node.inputs)
    ]
    values = b.several(node.op, *inputs, **node.attrs)
    return [cast(b, value, kind.dtype) for value, kind in zip(values, node.types, strict=True)]


def _padded_integers(b: Builder, node: Node) -> Value | None:
    """Concatenates constants to x, because MIL pads only floats."""
    x, attrs = node.inputs[0], node.attrs
    assert x is not None
    if x.dtype.kind == "float" or attrs["mode"] != "constant":
        return None
    for axis, ends in enumerate(zip(attrs["begin"], attrs["end"], strict=True)):
        parts = [
            [b.const(np.full([n if i == axis else d for i, d in enumerate(x.shape)], attrs["value"], x.dtype.numpy))]
            if n > 0
            else []
            for n in ends
        ]
        x = b.concat(*parts[0], x, *parts[1], axis=axis) if any(parts) else x
    return x if min((*attrs["begin"], *attrs["end"])) >= 0 else None


def _depth_to_space(b: Builder, node: Node) -> Value | None:
    """Returns a pixel_shuffle, because MIL's depth_to_space has only the other mode."""
    x = node.inputs[0]
    assert x is not None
    if node.attrs["mode"] != "CRD" or x.dtype.kind != "float":
        return None
    return b.pixel_shuffle(x, upscale_factor=node.attrs["block_size"])


def _nearest(b: Any, node: Node) -> Sequence[Value] | None:
    result = nearest_by_gather(b, node)
    return None if result is None else result.values


def _linear_resize(b: Any, node: Node) -> Sequence[Value] | None:
    result = linear_by_products(b, node)
    return None if result is None else result.values


def _channels_first(b: Builder, node: Node) -> Value | None:
    if node.attrs["layout"] != "nhwc":
        return None
    x, *others = node.inputs
    assert x is not None
    rank = len(x.shape)
    first, last = (0, rank - 1, *range(1, rank - 1)), (0, *range(2, rank), 1)
    moved = b.apply(node.op, b.transpose(x, perm=first), *others, **{**node.attrs, "layout": "nchw"})
    return b.transpose(moved, perm=last)


def _picked_pad(b: Builder, node: Node) -> Value | None:
    """Gathers the elements of the padded result on each axis, because all of them are elements of x."""
    x, attrs = node.inputs[0], node.attrs
    assert x is not None
    mode: Any = attrs["mode"]  # NumPy's name of the mode
    is_picked = mode in ("wrap", "edge", "reflect") and (x.dtype.kind != "float" or mode == "wrap")
    if not is_picked or min((*attrs["begin"], *attrs["end"])) < 0:
        return None
    for axis, ends in enumerate(zip(attrs["begin"], attrs["end"], strict=True)):
        if any(ends):
            picks = np.pad(np.arange(x.shape[axis], dtype=np.int32), ends, mode=mode)
            x = b.gather(x, picks, axis=axis)
    return x


def _hard_swish(b: Builder, node: Node) -> Value:
    """Expands to x * (clip(x + 3, 0, 6) / 6), as the CPU's kernel computes it."""
    x = node.inputs[0]
    assert x is not None
    return b.mul(x, b.mul(b.clip(b.add(x, 3.0), alpha=0.0, beta=6.0), 1 / 6))


def _closed_pool(b: Builder, node: Node) -> Value | None:
    """Replaces ceil_mode by a larger pad at the end, if padding does not count."""
    x, attrs = node.inputs[0], dict(node.attrs)
    counts = node.op == "avg_pool" and not attrs["exclude_padding"]
    if x is None or not attrs["ceil_mode"] or attrs["layout"] != "nchw" or counts or max(attrs["dilations"]) > 1:
        return None
    pads = list(attrs["pad"])
    for i, (extent, out) in enumerate(zip(x.shape[2:], node.types[0].shape[2:], strict=True)):
        reach = (out - 1) * attrs["strides"][i] + attrs["kernel_sizes"][i]
        pads[2 * i + 1] = max(pads[2 * i + 1], reach - extent - pads[2 * i])
    return b.apply(node.op, x, **{**attrs, "pad": tuple(pads), "ceil_mode": False})


def _whole_norm(b: Builder, node: Node) -> Value | None:
    """Adds a scale of 1 to a norm that has only a shift."""
    *others, gamma, beta = node.inputs
    if gamma is not None or beta is None:
        return None
    return b.apply(node.op, *others, np.ones(beta.shape, beta.dtype.numpy), beta, **node.attrs)


def _attention(b: Builder, node: Node) -> Value | None:
    *parts, mask = node.inputs
    given = [v for v in parts if v is not None]
    if node.attrs["causal"] or len({len(v.shape) for v in given}) > 1 or len(given) < 3:
        return None
    batch = np.broadcast_shapes(*(v.shape[:-2] for v in given))
    if all(v.shape[:-2] == batch for v in given):
        return None
    wide = [v if v.shape[:-2] == batch else b.broadcast_to(v, shape=(*batch, *v.shape[-2:])) for v in given]
    return b.scaled_dot_product_attention(*wide, mask, **node.attrs)


def _select(b: Builder, node: Node) -> Value | None:
    cond, x, y = node.inputs
    shape = node.types[0].shape
    if x is None or y is None or np.broadcast_shapes(x.shape, y.shape) == shape:
        return None
    return b.select(cond, b.broadcast_to(x, shape=shape), y)


def _response_norm(b: Builder, node: Node) -> Value | None:
    """Reshapes x, so that the norm is over axis 1 of four."""
    x, axis = node.inputs[0], int(node.attrs["axis"])
    assert x is not None
    if len(x.shape) == 4 and axis == 1:
        return None
    before, after = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
    moved = b.reshape(x, shape=(before, x.shape[axis], after, 1))
    return b.reshape(b.local_response_norm(moved, **{**node.attrs, "axis": 1}), shape=x.shape)


def _along_axis(b: Builder, node: Node) -> Value | None:
    """Slices x to the extents of the indices on the other axes."""
    x, indices = node.inputs
    assert x is not None
    assert indices is not None
    axis = int(node.attrs["axis"])
    end = [d if i == axis else n for i, (d, n) in enumerate(zip(x.shape, indices.shape, strict=True))]
    if tuple(end) == x.shape:
        return None
    return b.gather_along_axis(b.slice_by_index(x, begin=[0] * len(end), end=end), indices, axis=axis)


def _spread(b: Builder, node: Node, part: Value) -> Value:
    """Reshapes one number per index of an axis to broadcast over x."""
    x = node.inputs[0]
    assert x is not None
    along = [-1 if i == node.attrs["axis"] else 1 for i in range(len(x.shape))]
    return b.reshape(part, shape=along) if part.type.size > 1 else b.reshape(part, shape=())


def _quantize(b: Builder, node: Node) -> Value | None:
    x, scale, zero = node.inputs
    kind = node.types[0].dtype
    if x is None or scale is None or kind.kind not in ("int", "uint") or kind.bits > 16:
        return None
    y = b.round(b.real_div(cast(b, x, FP32), _spread(b, node, scale)))
    y = y if zero is None else b.add(y, cast(b, _spread(b, node, zero), FP32))
    limits = np.iinfo(kind.numpy)
    return cast(b, b.clip(y, alpha=float(limits.min), beta=float(limits.max)), kind)


def _dequantize(b: Builder, node: Node) -> Value | None:
    x, scale, zero = node.inputs
    if x is None or scale is None:
        return None
    y = cast(b, x, INT32)
    y = y if zero is None else b.sub(y, cast(b, _spread(b, node, zero), INT32))
    return cast(b, b.mul(cast(b, y, FP32), _spread(b, node, scale)), node.types[0].dtype)


def _product(b: Builder, node: Node) -> Value | None:
    x, y, bias = node.inputs
    return None if bias is None else b.add(b.matmul(x, y, None, **node.attrs), bias)


def _relu_of_integers(b: Builder, node: Node) -> Value | None:
    x = node.inputs[0]
    return None if x is None or x.dtype.kind == "float" else b.maximum(x, 0)


def _linear(b: Builder, node: Node) -> Value | None:
    x, weight, bias = node.inputs
    y = b.matmul(x, weight, None, transpose_y=True)
    return y if bias is None else b.add(y, bias)


def _batch_norm(b: Builder, node: Node) -> Value | None:
    """Expands a batch norm with computed statistics."""
    x, mean, variance, gamma, beta = node.inputs
    assert x is not None
    along = [1] * len(x.shape)
    along[int(node.attrs["axis"])] = -1
    mean, variance, gamma, beta = (
        None if v is None else b.reshape(v, shape=along) for v in (mean, variance, gamma, beta)
    )
    y = b.real_div(b.sub(x, mean), b.sqrt(b.add(variance, node.attrs["epsilon"])))
    y = y if gamma is None else b.mul(y, gamma)
    return y if beta is None else b.add(y, beta)


def _pattern(form: Callable[..., Any]) -> Pattern:
    return lambda b, node: form(b, *node.inputs, **node.attrs)


_SHARED = (
    "conv", "conv_transpose", "clip", "pad", "broadcast_to", "resize_nearest_neighbor", "resize_bilinear",
    "gather", "gather_along_axis", "gather_nd", "celu", "prelu", "selu", "neg",
)  # fmt: skip
_OWN: Mapping[str, tuple[Pattern, ...]] = {
    "depth_to_space": (_depth_to_space,),
    "resize_nearest_neighbor": (_channels_first, _nearest),
    "resize_bilinear": (_channels_first, _linear_resize),
    "conv": (_channels_first,),
    "max_pool": (_channels_first, _closed_pool),
    "avg_pool": (_channels_first, _closed_pool),
    "layer_norm": (_whole_norm,),
    "instance_norm": (_whole_norm,),
    "hard_swish": (_hard_swish,),
    "select": (_select,),
    "scaled_dot_product_attention": (_attention,),
    "matmul": (_product,),
    "gather_along_axis": (_along_axis,),
    "quantize": (_quantize,),
    "dequantize": (_dequantize,),
    "local_response_norm": (_response_norm,),
    "real_div": (_integer_division,),
    "fmod": (_fmod,),
    "asinh": (_asinh,),
    "acosh": (_acosh,),
    "one_hot": (_one_hot,),
    "relu": (_relu_of_integers,),
    "linear": (_linear,),
    "batch_norm": (_whole_norm, _batch_norm),
    "pad": (_padded_integers, _picked_pad),
    "sigmoid_hard": (_pattern(simpler.sigmoid_hard),),
}
RULES: Mapping[str, tuple[Pattern, ...]] = {
    op: (
        *((_pattern(FORMS[op]),) if op in _SHARED else ()),
        *_OWN.get(op, ()),
        *((_in_int32,) if op in _KEEP.split() else ()),
    )
    for op in {*_OWN, *_SHARED, *_KEEP.split()}
}

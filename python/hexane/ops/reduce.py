"""Reductions, softmax, cumulative sum, and the norms."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hexane.dtypes import INT32, INT64
from hexane.errors import Error
from hexane.ops.spec import (
    Attr,
    Case,
    Op,
    Shape,
    axis_index,
    axis_indices,
    element_type,
    finite,
    flag,
    floating,
    integer,
    integers,
    number,
    numeric,
    same,
    text,
)

Array = Any


def reduced(x: Shape, axes: tuple[int, ...] = (), keep_dims: bool = True, **_: Any) -> Shape:
    """The shape after reducing `axes` (none named: all of them)."""
    found = axis_indices(axes, len(x)) or tuple(range(len(x)))
    return tuple(1 if i in found else d for i, d in enumerate(x) if keep_dims or i not in found)


def _axes(x: Array, axes: tuple[int, ...]) -> tuple[int, ...]:
    return axis_indices(axes, x.ndim) or tuple(range(x.ndim))


def _log_sum_exp(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return total if keepdims else np.squeeze(total, axis)


def _reduce(
    name: str, doc: str, ref: Callable[..., Any], dtype: Callable[..., Any], onnx: str, low: float = -2.0
) -> Op:
    def run(x: Array, axes: tuple[int, ...], keep_dims: bool) -> Array:
        return ref(x, axis=_axes(x, axes), keepdims=keep_dims)

    def canonical(types: Any, attrs: Any) -> dict[str, Any]:
        rank = types[0].rank
        return {"axes": axis_indices(attrs["axes"], rank) or tuple(range(rank)), "keep_dims": attrs["keep_dims"]}

    return Op(
        name=name, doc=doc, inputs=("x",), attrs={"axes": integers(()), "keep_dims": flag(True)}, shape=reduced,
        dtype=dtype, kernel=name, canonical=canonical, layout="reduce", ref=run, onnx=(onnx,),
        cases=(Case(((2, 3, 17),), {"axes": (-1,)}, low=low), Case(((2, 5, 4),), {"axes": (0, 1), "keep_dims": False}, low=low),
               Case(((3, 4),), {"keep_dims": False}, low=low)),
    )  # fmt: skip


def _arg(name: str, doc: str, ref: Callable[..., Any]) -> Op:
    def shape(x: Shape, axis: int, keep_dims: bool, dtype: Any) -> Shape:
        if x[axis_index(axis, len(x))] == 0:
            raise Error(f"got the shape {x}, need at least one element along axis {axis}")
        return reduced(x, (axis,), keep_dims)

    def index_dtype(x: Any, **attrs: Any) -> Any:
        numeric(x)
        if attrs["dtype"] not in (INT32, INT64):
            raise Error(f"dtype: got {attrs['dtype']}, need int32 or int64")
        return attrs["dtype"]

    def run(x: Array, axis: int, keep_dims: bool, dtype: Any) -> Array:
        found = ref(x, axis=axis).astype(dtype.numpy)
        return np.expand_dims(found, axis) if keep_dims else found

    return Op(
        name=name, doc=doc, inputs=("x",),
        attrs={"axis": integer(-1), "keep_dims": flag(False), "dtype": element_type("int32")},
        shape=shape, dtype=index_dtype, kernel=name,
        canonical=_one_axis,
        kernel_attrs=lambda types, attrs: {"axis": attrs["axis"], "keep_dims": attrs["keep_dims"]},
        ref=run, cases=(Case(((3, 17),), {"axis": -1}), Case(((3, 4, 5),), {"axis": 1, "keep_dims": True})),
    )  # fmt: skip


def softmax(x: Array, axis: int) -> Array:
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    e = np.exp(x - top)
    return e / np.sum(e, axis=axis, keepdims=True)


def _log_softmax(x: Array, axis: int) -> Array:
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    return x - top - np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True))


def _axis_in_range(types: Any, attrs: Any) -> None:
    axis_index(attrs["axis"], types[0].rank)


def _one_axis(types: Any, attrs: Any) -> dict[str, Any]:
    return {**attrs, "axis": axis_index(attrs["axis"], types[0].rank)}


def _cumsum(x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    y = np.flip(x, axis) if reverse else x
    total = np.cumsum(y, axis=axis, dtype=x.dtype)
    total = total - y if exclusive else total
    return np.flip(total, axis) if reverse else total


def _trailing(x: Shape, axes: tuple[int, ...]) -> tuple[int, ...]:
    found = axis_indices(axes, len(x))
    if found != tuple(range(len(x) - len(found), len(x))) or not found:
        raise Error(f"axes: got {axes} for rank {len(x)}, need the last axes")
    return found


def _norm_shape(x: Shape, *params: Shape | None, axes: tuple[int, ...], **_: Any) -> Shape:
    found = _trailing(x, axes)
    need = tuple(x[a] for a in found)
    for p in params:
        if p is not None and p != need:
            raise Error(f"got a scale or shift of shape {p}, need {need}")
    return x


def _norm_attrs(types: Any, attrs: Any) -> dict[str, Any]:
    return {"axes": _trailing(types[0].shape, attrs["axes"]), "epsilon": attrs["epsilon"]}


def layer_norm(x: Array, gamma: Array | None, beta: Array | None, axes: tuple[int, ...], epsilon: float) -> Array:
    mean = np.mean(x, axis=axes, keepdims=True)
    y = (x - mean) / np.sqrt(np.mean(np.square(x - mean), axis=axes, keepdims=True) + epsilon)
    return (y if gamma is None else y * gamma) + (0 if beta is None else beta)


def rms_norm(x: Array, gamma: Array | None, axes: tuple[int, ...], epsilon: float) -> Array:
    y = x / np.sqrt(np.mean(np.square(x), axis=axes, keepdims=True) + epsilon)
    return y if gamma is None else y * gamma


def _per_channel(v: Array | None, rank: int, axis: int, default: float) -> Array:
    return default if v is None else v.reshape([-1 if i == axis else 1 for i in range(rank)])


def _channel_shape(x: Shape, *params: Shape | None, **attrs: Any) -> Shape:
    axis = attrs["axis"] if "axis" in attrs else (1 if attrs["layout"] == "nchw" else len(x) - 1)
    channels = x[axis_index(axis, len(x))]
    for p in params:
        if p is not None and p != (channels,):
            raise Error(f"got a per-channel input of shape {p}, need ({channels},)")
    return x


def _batch_norm(
    x: Array, mean: Array, variance: Array, gamma: Array | None, beta: Array | None, epsilon: float, axis: int
) -> Array:
    m, v = _per_channel(mean, x.ndim, axis % x.ndim, 0), _per_channel(variance, x.ndim, axis % x.ndim, 1)
    g, b = _per_channel(gamma, x.ndim, axis % x.ndim, 1), _per_channel(beta, x.ndim, axis % x.ndim, 0)
    return (x - m) / np.sqrt(v + epsilon) * g + b


def _instance_norm(x: Array, gamma: Array | None, beta: Array | None, epsilon: float, layout: str) -> Array:
    channel = 1 if layout == "nchw" else x.ndim - 1
    axes = tuple(i for i in range(1, x.ndim) if i != channel)
    mean = np.mean(x, axis=axes, keepdims=True)
    y = (x - mean) / np.sqrt(np.mean(np.square(x - mean), axis=axes, keepdims=True) + epsilon)
    return y * _per_channel(gamma, x.ndim, channel, 1) + _per_channel(beta, x.ndim, channel, 0)


def _local_response_norm(x: Array, alpha: float, beta: float, k: float, size: int, axis: int) -> Array:
    squares = np.moveaxis(np.square(x), axis, -1)
    before, after = (size - 1) // 2, size // 2
    channels = squares.shape[-1]
    total = np.stack([squares[..., max(0, c - before) : c + after + 1].sum(-1) for c in range(channels)], -1)
    return x / np.power(k + alpha / size * np.moveaxis(total, -1, axis), beta)


_EPSILON: dict[str, Attr] = {"epsilon": number(1e-5)}

OPS = (
    _reduce("reduce_sum", "The sum over axes.", np.sum, numeric, "ReduceSum"),
    _reduce("reduce_mean", "The mean over axes.", np.mean, floating, "ReduceMean"),
    _reduce("reduce_max", "The maximum over axes.", lambda x, **k: np.max(x, **k), numeric, "ReduceMax"),
    _reduce("reduce_min", "The minimum over axes.", lambda x, **k: np.min(x, **k), numeric, "ReduceMin"),
    _reduce("reduce_prod", "The product over axes.", np.prod, numeric, "ReduceProd"),
    _reduce("reduce_sum_square", "The sum of squares over axes.", lambda x, **k: np.sum(x * x, **k), floating,
            "ReduceSumSquare"),
    _reduce("reduce_l1_norm", "The sum of absolute values over axes.", lambda x, **k: np.sum(np.abs(x), **k), floating,
            "ReduceL1"),
    _reduce("reduce_l2_norm", "The square root of the sum of squares over axes.",
            lambda x, **k: np.sqrt(np.sum(x * x, **k)), floating, "ReduceL2"),
    _reduce("reduce_log_sum", "The logarithm of the sum over axes.", lambda x, **k: np.log(np.sum(x, **k)), floating,
            "ReduceLogSum", low=0.1),
    _reduce("reduce_log_sum_exp", "log(sum(e^x)) over axes.",
            lambda x, axis, keepdims: _log_sum_exp(x, axis, keepdims), floating, "ReduceLogSumExp"),
    _arg("reduce_argmax", "The index of the first maximum along an axis.", np.argmax),
    _arg("reduce_argmin", "The index of the first minimum along an axis.", np.argmin),
    Op(
        name="softmax", doc="e^x / sum(e^x) along an axis.", inputs=("x",), attrs={"axis": integer(-1)}, shape=same,
        dtype=floating, check=(_axis_in_range,), kernel="softmax", canonical=_one_axis, layout="axis", ref=softmax,
        cases=(Case(((3, 17),)), Case(((2, 5, 3),), {"axis": 1})),
    ),
    Op(
        name="log_softmax", doc="x - log(sum(e^x)) along an axis.", inputs=("x",), attrs={"axis": integer(-1)},
        shape=same, dtype=floating, check=(_axis_in_range,), kernel="log_softmax", canonical=_one_axis,
        layout="axis", ref=_log_softmax, cases=(Case(((3, 17),)), Case(((2, 5, 3),), {"axis": 1})),
    ),
    Op(
        name="cumsum", doc="The running sum along an axis.", inputs=("x",),
        attrs={"axis": integer(0), "exclusive": flag(False), "reverse": flag(False)}, shape=same, dtype=numeric,
        check=(_axis_in_range,), kernel="cumsum", canonical=_one_axis, layout="axis", ref=_cumsum,
        cases=(Case(((3, 17),), {"axis": 1}), Case(((4, 3),), {"exclusive": True, "reverse": True})),
    ),
    Op(
        name="layer_norm", doc="(x - mean) / sqrt(variance + epsilon) * gamma + beta over the last axes.",
        inputs=("x", "gamma?", "beta?"), attrs={"axes": integers((-1,)), **_EPSILON}, shape=_norm_shape, dtype=floating,
        check=(finite("epsilon"),), kernel="layer_norm", canonical=_norm_attrs, ref=layer_norm,
        cases=(Case(((2, 3, 17), (17,), (17,))), Case(((4, 3, 5),), {"axes": (-2, -1)})),
    ),
    Op(
        name="rms_norm", doc="x / sqrt(mean(x^2) + epsilon) * gamma over the last axes.", inputs=("x", "gamma?"),
        attrs={"axes": integers((-1,)), **_EPSILON}, shape=_norm_shape, dtype=floating, check=(finite("epsilon"),),
        kernel="rms_norm", canonical=_norm_attrs, ref=rms_norm, cases=(Case(((2, 3, 17), (17,))),),
    ),
    Op(
        name="batch_norm", doc="(x - mean) / sqrt(variance + epsilon) * gamma + beta, per channel of `axis`.",
        inputs=("x", "mean", "variance", "gamma?", "beta?"), attrs={**_EPSILON, "axis": integer(1)},
        shape=_channel_shape, dtype=floating, check=(finite("epsilon"), _axis_in_range), kernel="batch_norm",
        canonical=_one_axis, layout="axis", ref=_batch_norm,
        cases=(Case(((2, 3, 5, 4), (3,), (3,), (3,), (3,)), low=0.1), Case(((2, 6), (6,), (6,)), low=0.1)),
    ),
    Op(
        name="instance_norm", doc="Normalises each channel of each item over its spatial axes.",
        inputs=("x", "gamma?", "beta?"), attrs={**_EPSILON, "layout": text("nchw", ("nchw", "nhwc"))},
        shape=_channel_shape, dtype=floating, check=(finite("epsilon"),), kernel="instance_norm", layout="spatial",
        ref=_instance_norm, cases=(Case(((2, 3, 5, 4), (3,), (3,))),),
    ),
    Op(
        name="local_response_norm", doc="x / (k + alpha / size * sum of squares of `size` near channels)^beta.",
        inputs=("x",), attrs={"alpha": number(1e-4), "beta": number(0.75), "k": number(1.0), "size": integer(),
                              "axis": integer(1)},
        shape=same, dtype=floating, check=(_axis_in_range,), kernel="local_response_norm", canonical=_one_axis,
        layout="axis", ref=_local_response_norm, cases=(Case(((2, 7, 3, 4),), {"size": 3, "alpha": 0.5}),),
    ),
)  # fmt: skip

"""Normalisation over layers, batches, instances, groups, channels and vectors."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Value
from hexane.ops.attributes import Attr, finite, integer, integers, number, text
from hexane.ops.compose import Builder, cast, wide
from hexane.ops.dtype_rules import floating
from hexane.ops.gradients import norms as grads
from hexane.ops.records.reduce import in_range, mean
from hexane.ops.shape_rules import Shape, axis_index, axis_indices, one_axis, same
from hexane.ops.spec import Case, Op

Array = Any


def _trailing(x: Shape, axes: tuple[int, ...]) -> tuple[int, ...]:
    indices = axis_indices(axes, len(x))
    if indices != tuple(range(len(x) - len(indices), len(x))) or not indices:
        raise Error(f"axes: got {axes} for rank {len(x)}, need the last axes")
    return indices


def _norm_shape(x: Shape, *params: Shape | None, axes: tuple[int, ...], **_: Any) -> Shape:
    indices = _trailing(x, axes)
    need = tuple(x[a] for a in indices)
    for p in params:
        if p is not None and p != need:
            raise Error(f"got a scale or shift of shape {p}, need {need}")
    return x


def _norm_attrs(types: Any, attrs: Any) -> dict[str, Any]:
    return {"axes": _trailing(types[0].shape, attrs["axes"]), "epsilon": attrs["epsilon"]}


def _centred(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Returns x - mean, and the variance."""
    centred = x - mean(x, axes, True)
    return centred, mean(np.square(centred), axes, True)


def _normal(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    centred, variance = _centred(x, axes)
    return centred / np.sqrt(variance + epsilon)


def layer_norm(x: Array, gamma: Array | None, beta: Array | None, axes: tuple[int, ...], epsilon: float) -> Array:
    y = _normal(x, axes, epsilon)
    return (y if gamma is None else y * gamma) + (0 if beta is None else beta)


def rms_norm(x: Array, gamma: Array | None, axes: tuple[int, ...], epsilon: float) -> Array:
    y = x / np.sqrt(mean(np.square(x), axes, True) + epsilon)
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
    y = _normal(x, axes, epsilon)
    return y * _per_channel(gamma, x.ndim, channel, 1) + _per_channel(beta, x.ndim, channel, 0)


def _local_response_norm(x: Array, alpha: float, beta: float, k: float, size: int, axis: int) -> Array:
    squares = np.moveaxis(np.square(x), axis, -1)
    before, after = (size - 1) // 2, size // 2
    total = np.empty_like(squares)
    for c in range(squares.shape[-1]):
        total[..., c] = squares[..., max(0, c - before) : c + after + 1].sum(-1)
    return x / np.power(k + alpha / size * np.moveaxis(total, -1, axis), beta)


def _group_shape(x: Shape, gamma: Shape | None, beta: Shape | None, num_groups: int, epsilon: float) -> Shape:
    if len(x) < 3 or num_groups < 1 or x[1] % num_groups:
        raise Error(f"num_groups: got {num_groups} for the shape {x}, need a divisor of the channels")
    for p in (gamma, beta):
        if p not in (None, (x[1],)):
            raise Error(f"got a scale or shift of shape {p}, need ({x[1]},)")
    return x


def _expand_group_norm(
    b: Builder, x: Value, gamma: Value | None, beta: Value | None, num_groups: int, epsilon: float
) -> Value:
    channels, rest = x.shape[1], prod(x.shape[2:])
    y = b.reshape(x, shape=(x.shape[0], num_groups, channels // num_groups * rest))
    y = b.reshape(b.layer_norm(y, axes=(2,), epsilon=epsilon), shape=(x.shape[0], channels, rest))
    y = y if gamma is None else b.mul(y, b.reshape(gamma, shape=(channels, 1)))
    y = y if beta is None else b.add(y, b.reshape(beta, shape=(channels, 1)))
    return b.reshape(y, shape=x.shape)


def _group_norm(x: Array, gamma: Array | None, beta: Array | None, num_groups: int, epsilon: float) -> Array:
    axes = tuple(range(1, x.ndim))
    normal = [_normal(group, axes, epsilon) for group in np.split(x, num_groups, axis=1)]
    return np.concatenate(normal, 1) * _per_channel(gamma, x.ndim, 1, 1) + _per_channel(beta, x.ndim, 1, 0)


def _mean_variance_norm(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    centred, variance = _centred(x, axes)
    return centred / (np.sqrt(variance) + epsilon)


def _some_axes(types: Any, attrs: Any) -> dict[str, Any]:
    return {**attrs, "axes": axis_indices(attrs["axes"], types[0].rank)}


def _expand_l2_norm(b: Builder, x: Value, axes: tuple[int, ...], epsilon: float) -> Value:
    return b.mul(x, b.rsqrt(b.add(b.reduce_sum_square(x, axes=axes), epsilon)))


def _p_norm(types: Any, attrs: Any) -> None:
    if attrs["p"] < 1:
        raise Error(f"p: got {attrs['p']}, need a positive integer")


def _expand_lp_norm(b: Builder, x: Value, p: int, axis: int) -> Value:
    if p <= 2:
        norm = b.apply(f"reduce_l{p}_norm", x, axes=(axis,))
    else:
        norm = b.pow(b.reduce_sum(b.pow(b.abs(x), float(p)), axes=(axis,)), 1 / p)
    return b.select(b.equal(norm, 0.0), b.const(np.zeros((), x.dtype.numpy)), b.real_div(x, norm))


def _lp_norm(x: Array, p: int, axis: int) -> Array:
    norm = np.linalg.norm(x, p, axis, keepdims=True)
    return np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)


def _expand_layer_norm(
    b: Builder, x: Value, gamma: Value | None, beta: Value | None, axes: tuple[int, ...], epsilon: float
) -> Value:
    centred = b.sub(x, b.reduce_mean(x, axes=axes))
    y = b.real_div(centred, b.sqrt(b.add(b.reduce_mean(b.square(centred), axes=axes), epsilon)))
    y = y if gamma is None else b.mul(y, gamma)
    return y if beta is None else b.add(y, beta)


def _expand_rms_norm(b: Builder, x: Value, gamma: Value | None, axes: tuple[int, ...], epsilon: float) -> Value:
    y = b.real_div(x, b.sqrt(b.add(b.reduce_mean(b.square(x), axes=axes), epsilon)))
    return y if gamma is None else b.mul(y, gamma)


def expand_batch_norm(
    b: Builder,
    x: Value,
    mean: Value,
    variance: Value,
    gamma: Value | None,
    beta: Value | None,
    epsilon: float,
    axis: int,
    over_root: Callable[[Builder, Value, Value], Value] = lambda b, x, v: b.real_div(x, b.sqrt(v)),
) -> Value:
    """over_root: (b, x, v) -> x divided by the root of v."""

    def along(v: Any) -> Any:
        return b.reshape(v, shape=(-1, *(1 for _ in x.shape[axis + 1 :])))

    y = over_root(b, b.sub(x, along(mean)), b.add(along(variance), epsilon))
    y = y if gamma is None else b.mul(y, along(gamma))
    return y if beta is None else b.add(y, along(beta))


def _expand_instance_norm(
    b: Builder, x: Value, gamma: Value | None, beta: Value | None, epsilon: float, layout: str
) -> Value:
    last = layout == "nhwc"
    axes = tuple(range(1, len(x.shape) - 1)) if last else tuple(range(2, len(x.shape)))
    shape = (-1,) if last else (-1, *(1 for _ in axes))
    y = _expand_layer_norm(b, x, None, None, axes, epsilon)
    y = y if gamma is None else b.mul(y, b.reshape(gamma, shape=shape))
    return y if beta is None else b.add(y, b.reshape(beta, shape=shape))


def _expand_mean_variance_norm(b: Builder, x: Value, axes: tuple[int, ...], epsilon: float) -> Value:
    """Computed in fp32 or more, because fp16 cannot represent the epsilon."""
    x, kind = cast(b, x, wide(x)), x.dtype
    spread = b.sub(x, b.reduce_mean(x, axes=axes))
    deviation = b.sqrt(b.reduce_mean(b.square(spread), axes=axes))
    return cast(b, b.real_div(spread, b.add(deviation, epsilon)), kind)


_EPSILON: dict[str, Attr] = {"epsilon": number(1e-5)}

OPS = (
    Op(
        name="layer_norm", doc="(x - mean) / sqrt(variance + epsilon) * gamma + beta over the last axes; gamma and beta have their shape.",
        inputs=("x", "gamma?", "beta?"), attrs={"axes": integers((-1,)), **_EPSILON}, shape=_norm_shape, dtype=floating,
        check=(finite("epsilon"),), kernel="layer_norm", expand=_expand_layer_norm, canonical=_norm_attrs, lengths="axes", ref=layer_norm,
        cases=(Case(((2, 3, 17), (17,), (17,))), Case(((4, 3, 5),), {"axes": (-2, -1)})), grad=grads.layer_norm,
    ),
    Op(
        name="rms_norm", doc="x / sqrt(mean(x^2) + epsilon) * gamma over the last axes; gamma has their shape.", inputs=("x", "gamma?"),
        attrs={"axes": integers((-1,)), **_EPSILON}, shape=_norm_shape, dtype=floating, check=(finite("epsilon"),),
        kernel="rms_norm", expand=_expand_rms_norm, canonical=_norm_attrs, lengths="axes", ref=rms_norm, cases=(Case(((2, 3, 17), (17,))),), grad=grads.rms_norm,
    ),
    Op(
        name="batch_norm", doc="(x - mean) / sqrt(variance + epsilon) * gamma + beta; each operand but x has one number per channel of `axis`.",
        inputs=("x", "mean", "variance", "gamma?", "beta?"), attrs={**_EPSILON, "axis": integer(1)},
        shape=_channel_shape, dtype=floating, check=(finite("epsilon"), in_range), kernel="batch_norm",
        expand=expand_batch_norm, canonical=one_axis, layout="axis", ref=_batch_norm,
        cases=(Case(((2, 3, 5, 4), (3,), (3,), (3,), (3,)), low=0.1), Case(((2, 6), (6,), (6,)), low=0.1)),
    ),
    Op(
        name="instance_norm", doc="Normalises each channel of each item of x (N, C, spatial...) over its spatial axes; gamma and beta (C,).",
        inputs=("x", "gamma?", "beta?"), attrs={**_EPSILON, "layout": text("nchw", ("nchw", "nhwc"))},
        shape=_channel_shape, dtype=floating, check=(finite("epsilon"),), kernel="instance_norm",
        expand=_expand_instance_norm, layout="spatial",
        ref=_instance_norm, cases=(Case(((2, 3, 5, 4), (3,), (3,))),),
    ),
    Op(
        name="local_response_norm", doc="x / (k + alpha / size * sum of squares of the `size` nearest channels of `axis`)^beta.",
        inputs=("x",), attrs={"alpha": number(1e-4), "beta": number(0.75), "k": number(1.0), "size": integer(),
                              "axis": integer(1)},
        shape=same, dtype=floating, check=(in_range,), kernel="local_response_norm", canonical=one_axis,
        layout="axis", ref=_local_response_norm, cases=(Case(((2, 7, 3, 4),), {"size": 3, "alpha": 0.5}),), grad=grads.local_response_norm,
    ),
    Op(
        name="group_norm",
        doc="Normalises groups of channels of x (N, C, ...) over their channels and spatial axes: (x - mean) / sqrt(variance + "
            "epsilon) * gamma + beta, gamma and beta (C,).",
        inputs=("x", "gamma?", "beta?"), attrs={"num_groups": integer(), **_EPSILON}, shape=_group_shape, dtype=floating,
        check=(finite("epsilon"),), expand=_expand_group_norm, ref=_group_norm,
        cases=(Case(((2, 6, 5, 4), (6,), (6,)), {"num_groups": 3}), Case(((1, 4, 7),), {"num_groups": 2})),
    ),
    Op(
        name="l2_norm", doc="x / sqrt(sum(x^2) + epsilon) over axes.", inputs=("x",),
        attrs={"axes": integers((-1,)), "epsilon": number(1e-6)}, shape=same, dtype=floating, check=(finite("epsilon"),),
        canonical=_some_axes, expand=_expand_l2_norm,
        ref=lambda x, axes, epsilon: x / np.sqrt(np.sum(x * x, axis=axes, keepdims=True) + epsilon),
        cases=(Case(((2, 3, 17),)), Case(((2, 3, 4, 5),), {"axes": (-1, -2, -3), "epsilon": 0.1})),
    ),
    Op(
        name="lp_norm", doc="x / sum(|x|^p)^(1/p) along an axis; 0 where the sum is 0.", inputs=("x",),
        attrs={"p": integer(2), "axis": integer(-1)}, shape=same, dtype=floating, check=(in_range, _p_norm),
        canonical=one_axis, expand=_expand_lp_norm, ref=_lp_norm, onnx=("LpNormalization",),
        cases=(Case(((3, 17),)), Case(((2, 5, 3),), {"p": 1, "axis": 1}), Case(((4, 3),), {"p": 3, "axis": 0})),
    ),
    Op(
        name="mean_variance_norm", doc="(x - mean) / (sqrt(variance) + epsilon) over axes.", inputs=("x",),
        attrs={"axes": integers((0, 2, 3)), "epsilon": number(1e-9)}, shape=same, dtype=floating,
        check=(finite("epsilon"),), canonical=_some_axes, expand=_expand_mean_variance_norm,
        ref=_mean_variance_norm,
        onnx=("MeanVarianceNormalization",), cases=(Case(((2, 3, 4, 5),)), Case(((3, 4),), {"axes": (-1,)})),
    ),
)  # fmt: skip

"""Normalisation over layers, batches, instances, groups, channels and vectors."""

from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.ops.reduce import in_range, one_axis
from hexane.ops.spec import (
    Attr,
    Case,
    Op,
    Shape,
    axis_index,
    axis_indices,
    finite,
    floating,
    integer,
    integers,
    number,
    same,
    text,
)

Array = Any


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
        shape=_channel_shape, dtype=floating, check=(finite("epsilon"), in_range), kernel="batch_norm",
        canonical=one_axis, layout="axis", ref=_batch_norm,
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
        shape=same, dtype=floating, check=(in_range,), kernel="local_response_norm", canonical=one_axis,
        layout="axis", ref=_local_response_norm, cases=(Case(((2, 7, 3, 4),), {"size": 3, "alpha": 0.5}),),
    ),
)  # fmt: skip

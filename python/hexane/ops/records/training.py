"""Ops that networks have only in training: normalisation by the statistics of the batch."""

from math import prod
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Value
from hexane.ops.attributes import finite, integer, number
from hexane.ops.compose import Builder, cast, wide
from hexane.ops.dtype_rules import floating
from hexane.ops.gradients import norms as grads
from hexane.ops.records.reduce import in_range
from hexane.ops.shape_rules import Shape, axis_index, one_axis
from hexane.ops.spec import Case, Op

Array = Any


def _batch_norm_shape(x: Shape, *channels: Shape | None, axis: int, **_: Any) -> list[Shape]:
    extent = x[axis_index(axis, len(x))]
    for shape in channels:
        if shape not in (None, (extent,)):
            raise Error(f"got a per-channel input of shape {shape}, need ({extent},)")
    if prod(x) <= extent:
        raise Error(f"got {x}, one element for each channel, need at least two: one has no variance")
    return [x, (extent,), (extent,)]


def _share(types: Any, attrs: Any) -> None:
    if not 0 <= attrs["momentum"] <= 1:
        raise Error(f"momentum: got {attrs['momentum']}, need a number from 0 to 1: the share of the new statistics")


def _expand_batch_norm(
    b: Builder,
    x: Value,
    mean: Value,
    variance: Value,
    gamma: Value | None,
    beta: Value | None,
    epsilon: float,
    momentum: float,
    axis: int,
) -> list[Value]:
    """Computed in fp32 or more, because squares of fp16 overflow."""
    kind = wide(x)
    centred, own, own_variance, over = grads.by_batch(b, cast(b, x, kind), axis, epsilon)
    count = x.type.size // x.shape[axis]

    def along(v: Value) -> Value:
        return b.reshape(cast(b, v, kind), shape=own.shape)

    def moved(running: Value, new: Value, factor: float) -> Value:
        flat = b.reshape(b.mul(new, factor), shape=running.shape)
        return cast(b, b.add(b.mul(cast(b, running, kind), 1 - momentum), flat), running.dtype)

    y = b.mul(centred, over if gamma is None else b.mul(over, along(gamma)))
    y = y if beta is None else b.add(y, along(beta))
    unbiased = momentum * count / (count - 1)
    return [cast(b, y, x.dtype), moved(mean, own, momentum), moved(variance, own_variance, unbiased)]


def _batch_norm(
    x: Array,
    mean: Array,
    variance: Array,
    gamma: Array | None,
    beta: Array | None,
    epsilon: float,
    momentum: float,
    axis: int,
) -> list[Array]:
    lines = np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])
    scale, shift = 1 if gamma is None else gamma, 0 if beta is None else beta
    normal = (np.moveaxis(x, axis, -1) - lines.mean(0)) / np.sqrt(lines.var(0) + epsilon) * scale + shift
    moved = [old * (1 - momentum) + new * momentum
             for old, new in ((mean, lines.mean(0)), (variance, lines.var(0, ddof=1)))]  # fmt: skip
    return [np.moveaxis(normal, -1, axis), *moved]


OPS = (
    Op(
        name="batch_norm_training",
        doc="`batch_norm` with the mean and variance of x itself over all axes but `axis`, and the new "
            "running statistics: `momentum` times the batch's mean and unbiased variance, plus 1 - `momentum` times "
            "the old ones. hx.train.batch_norm has the params for it.",
        inputs=("x", "mean", "variance", "gamma?", "beta?"), outputs=("out", "mean", "variance"),
        attrs={"epsilon": number(1e-5), "momentum": number(0.1), "axis": integer(1)},
        shape=_batch_norm_shape, dtype=floating, check=(finite("epsilon"), in_range, _share), canonical=one_axis,
        expand=_expand_batch_norm, grad=grads.batch_norm_training, ref=_batch_norm,
        cases=(Case(((2, 3, 5, 4), (3,), (3,), (3,), (3,)), low=0.1), Case(((6, 5), (5,), (5,)), {"momentum": 0.5}, low=0.1),
               Case(((2, 3, 4), (4,), (4,), None, (4,)), {"axis": -1, "epsilon": 0.1})),
    ),
)  # fmt: skip

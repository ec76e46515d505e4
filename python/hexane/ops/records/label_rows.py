"""Ops of a cross-entropy and its gradient on this CPU, which need the softmax of a row only at its label."""

import numpy as np

from hexane.dtypes import FP32, INT32, INT64, DType
from hexane.errors import Error
from hexane.graph import Array
from hexane.ops.shape_rules import Shape
from hexane.ops.spec import Op

LOG_SOFTMAX_AT = "log_softmax_at"
CROSS_ENTROPY_GRADIENT = "cross_entropy_gradient"


def _check(x: Shape, *columns: Shape) -> None:
    if len(x) != 2 or any(column != (x[0], 1) for column in columns):
        raise Error(f"got {x} and {', '.join(map(str, columns))}, need (rows, columns) and (rows, 1)")


def _at_shape(x: Shape, at: Shape) -> Shape:
    _check(x, at)
    return at


def _gradient_shape(x: Shape, at: Shape, share: Shape) -> Shape:
    _check(x, at, share)
    return x


def _dtype(x: DType, at: DType, *share: DType) -> DType:
    if at not in (INT32, INT64) or {x, *share} != {FP32}:
        raise Error(f"got {x}, {at} and {', '.join(map(str, share))}, need fp32 and int32 or int64")
    return FP32


def _log_softmax_at(x: Array, at: Array) -> Array:
    shifted = x - x.max(axis=1, keepdims=True)
    return np.asarray(np.take_along_axis(shifted, at, 1) - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _cross_entropy_gradient(x: Array, at: Array, share: Array) -> Array:
    exps = np.exp(x - x.max(axis=1, keepdims=True))
    result = exps / exps.sum(axis=1, keepdims=True) * share
    rows = np.arange(len(x))
    result[rows, at[:, 0]] -= share[:, 0]
    return np.asarray(result)


OPS = (
    Op(
        name=LOG_SOFTMAX_AT, doc="log_softmax of rows (R, C) at the column `at` (R, 1) of each row: (R, 1).",
        inputs=("x", "at"), shape=_at_shape, dtype=_dtype, kernel=LOG_SOFTMAX_AT, level="kernel", ref=_log_softmax_at, cases=(),
    ),
    Op(
        name=CROSS_ENTROPY_GRADIENT,
        doc="softmax of rows (R, C), minus 1 at the column `at` (R, 1) of each row, times the row's share (R, 1).",
        inputs=("x", "at", "share"), shape=_gradient_shape, dtype=_dtype, kernel=CROSS_ENTROPY_GRADIENT, level="kernel", ref=_cross_entropy_gradient, cases=(),
    ),
)  # fmt: skip

"""Reductions, softmax and related ops, cumulative sums."""

import numpy as np

from hexane.dtypes import BOOL, DTYPES, INT64
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.onnx.handlers.movement import flatten_2d
from hexane.importers.onnx.node import Builder, OnnxNode, Result, axis_of
from hexane.importers.onnx.registry import onnx_op
from hexane.ops.compose import cast
from hexane.ops.valid_lengths import length_of

_REDUCTIONS = {
    "ReduceL1": "reduce_l1_norm",
    "ReduceL2": "reduce_l2_norm",
    "ReduceLogSum": "reduce_log_sum",
    "ReduceLogSumExp": "reduce_log_sum_exp",
    "ReduceMax": "reduce_max",
    "ReduceMean": "reduce_mean",
    "ReduceMin": "reduce_min",
    "ReduceProd": "reduce_prod",
    "ReduceSum": "reduce_sum",
    "ReduceSumSquare": "reduce_sum_square",
}
_KEPT_BY_NO_AXES = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceLogSumExp")


@onnx_op(*_REDUCTIONS, shape_inputs=(1,), valid_lengths=True)
def reduce(b: Builder, n: OnnxNode) -> Result:
    """Reduces axes. Before opset 18 (ReduceSum: 13) the axes are an attribute. An empty list means all axes, unless
    noop_with_empty_axes is set."""
    x = n.value(0)
    axes = n.attrs["axes"] if "axes" in n.attrs else n.ints(1) if n.has(1) else ()
    if n.attrs.get("noop_with_empty_axes", 0) and not axes:
        n.attrs.get("keepdims")  # only marks the attribute as read, because no axis is reduced
        if n.op not in _KEPT_BY_NO_AXES:
            raise Error("noop_with_empty_axes: its meaning differs between opsets here, need axes")
        return x
    if not x.shape:
        axes = ()
        x = b.reshape(x, shape=(1,))
    indices = tuple(axis_of(a, len(x.shape)) for a in axes) or tuple(range(len(x.shape)))
    options = {"axes": indices, "keep_dims": bool(n.attrs["keepdims"]) and bool(n.value(0).shape)}
    if x.type.size == 0:
        return _reduce_nothing(b, n, x, options)
    if x.dtype is BOOL and n.op in ("ReduceMax", "ReduceMin"):
        return cast(b, b.apply(_REDUCTIONS[n.op], cast(b, x, DTYPES["uint8"]), **options), BOOL)
    if x.dtype.kind in ("int", "uint") and n.op == "ReduceMean":  # integer means are truncated
        length = length_of(x)
        if length is not None and length.axis in indices:
            raise Error(
                f"got axes {indices} for a mean of integers of which only so many are valid along axis {length.axis},"
                " need others"
            )
        return _integer_mean(b, x, options)
    if x.dtype.kind in ("int", "uint") and n.op == "ReduceL1":
        return b.reduce_sum(b.abs(x) if x.dtype.kind == "int" else x, **options)
    if x.dtype.kind in ("int", "uint") and n.op == "ReduceSumSquare":
        return b.reduce_sum(b.mul(x, x), **options)
    return b.apply(_REDUCTIONS[n.op], x, **options)


def _integer_mean(b: Builder, x: Value, options: dict[str, object]) -> Value:
    """Returns the mean of integers, truncated. With 64 bits, quotients and remainders are summed separately, because
    the sum itself may overflow."""
    to, kind = x.dtype, x.dtype if x.dtype.bits == 64 else INT64
    x = cast(b, x, kind)
    total: Value = b.reduce_sum(x, **options)
    count = x.type.size // total.type.size
    if to.bits < 64:
        return cast(b, b.real_div(total, count), to)
    rest = b.reduce_sum(b.mod(x, count), **options)
    below = b.add(b.reduce_sum(b.floor_div(x, count), **options), b.floor_div(rest, count))
    up = b.logical_and(b.less(below, 0), b.greater(b.mod(rest, count), 0))
    return b.add(below, b.cast(up, dtype=kind))  # type: ignore[no-any-return]


def _reduce_nothing(b: Builder, n: OnnxNode, x: Value, options: dict[str, object]) -> Result:
    """Returns the neutral element for a reduction of no elements. Raises Error for a reduction without a neutral
    element, unless the result is empty, too."""
    shape = b.reduce_sum(b.broadcast_to(b.const(np.zeros((), np.float32)), shape=x.shape), **options).shape
    kind = x.dtype.numpy
    floating = x.dtype.kind == "float"
    neutral: float
    if not floating and n.op in ("ReduceMax", "ReduceMin") and x.dtype is not BOOL:
        neutral = np.iinfo(kind).min if n.op == "ReduceMax" else np.iinfo(kind).max
    elif x.dtype is BOOL and n.op in ("ReduceMax", "ReduceMin"):
        neutral = n.op == "ReduceMin"
    elif n.op in ("ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare"):
        neutral = 0
    elif n.op == "ReduceProd":
        neutral = 1
    elif floating and n.op in ("ReduceMax", "ReduceLogSum", "ReduceLogSumExp", "ReduceMin"):
        neutral = np.inf if n.op == "ReduceMin" else -np.inf
    elif 0 in shape:
        neutral = 0
    else:
        raise Error(f"got {x.type}, need at least one element to reduce")
    return b.broadcast_to(b.const(np.array(neutral, kind)), shape=shape)


@onnx_op("ArgMax", "ArgMin")
def arg(b: Builder, n: OnnxNode) -> Result:
    """Returns the index of an extreme. With select_last_index, the last of equal elements counts."""
    x = n.value(0)
    axis = axis_of(n.attrs["axis"], len(x.shape))
    last = bool(n.attrs.get("select_last_index", 0))
    source = b.reverse(x, axes=(axis,)) if last else x
    op = "reduce_argmax" if n.op == "ArgMax" else "reduce_argmin"
    index = b.apply(op, source, axis=axis, keep_dims=bool(n.attrs["keepdims"]), dtype=INT64)
    return b.sub(x.shape[axis] - 1, index) if last else index


@onnx_op("LogSoftmax", "Softmax", valid_lengths=True)
def softmax(b: Builder, n: OnnxNode) -> Result:
    """Applies softmax. Before opset 13, the axes from `axis` on are treated as one."""
    x, axis = n.value(0), n.attrs["axis"]
    op = "softmax" if n.op == "Softmax" else "log_softmax"
    if n.version >= 13:
        return b.apply(op, x, axis=axis)
    if axis < -len(x.shape) or axis > len(x.shape):
        raise Error(f"axis: got {axis}, need {-len(x.shape)}..{len(x.shape)}")
    axis += len(x.shape) if axis < 0 else 0
    if axis == len(x.shape) - 1:
        return b.apply(op, x, axis=axis)
    return b.reshape(b.apply(op, flatten_2d(b, x, axis), axis=1), shape=x.shape)


@onnx_op("Hardmax")
def hardmax(b: Builder, n: OnnxNode) -> Result:
    """Applies hardmax. Before opset 13, the axes from `axis` on are treated as one."""
    x = n.value(0)
    axis = axis_of(n.attrs["axis"], len(x.shape))
    if n.version >= 13:
        return b.hardmax(x, axis=axis)
    return b.reshape(b.hardmax(flatten_2d(b, x, axis), axis=1), shape=x.shape)


@onnx_op("CumProd", shape_inputs=(1,))
@onnx_op("CumSum", shape_inputs=(1,), valid_lengths=True)
def cumulative(b: Builder, n: OnnxNode) -> Result:
    options = {"exclusive": bool(n.attrs["exclusive"]), "reverse": bool(n.attrs["reverse"])}
    return b.apply(n.op.lower(), n.value(0), axis=n.integer(1), **options)

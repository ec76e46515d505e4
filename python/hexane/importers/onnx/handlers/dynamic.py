"""Ops whose result's extent depends on data, and the check of ops that cannot read these results."""

from collections.abc import Sequence

import numpy as np

from hexane.dtypes import BOOL, FP32
from hexane.errors import Error
from hexane.importers.onnx.node import Builder, Item, OnnxNode, Result, TensorList, axis_of, known
from hexane.importers.onnx.registry import onnx_op
from hexane.ops.compose import cast
from hexane.ops.length_rules import described
from hexane.ops.valid_lengths import length_of


def check_whole(inputs: Sequence[Item | None]) -> None:
    """Raises Error if an extent of an input, or of a tensor in an input sequence, depends on data."""
    for i, value in (
        (i, v) for i, item in enumerate(inputs) for v in (item if isinstance(item, TensorList) else [item])
    ):
        length = None if value is None else length_of(value)
        if value is not None and length is not None:
            raise Error(
                f"input {i}: got {described(value.type, length)}"
                f" (by {length.value.node.where}), need a shape that is known at import"
            )


@onnx_op("NonZero")
def non_zero(b: Builder, n: OnnxNode) -> Result:
    x = n.value(0)
    if (array := known(x)) is not None:
        return b.const(np.stack(np.nonzero(array)) if array.ndim else np.zeros((0, int(array != 0)), np.int64))
    return b.non_zero(x)[0]


@onnx_op("Compress")
def compress(b: Builder, n: OnnxNode) -> Result:
    """Returns the slices or elements at which a condition is true."""
    x, condition = n.value(0), n.value(1)
    if len(condition.shape) != 1 or condition.dtype is not BOOL:
        raise Error(f"got a condition {condition.type}, need a vector of bools")
    if "axis" not in n.attrs:
        x = b.reshape(x, shape=(x.type.size,))
    axis = axis_of(n.attrs.get("axis", 0), len(x.shape))
    if condition.type.size > x.shape[axis]:
        raise Error(f"got a condition of {condition.type.size} for an extent of {x.shape[axis]}, need at most as many")
    if (chosen := known(condition)) is not None:
        return b.gather(x, b.const(np.flatnonzero(chosen).astype(np.int64)), axis=axis)
    return b.gather(x, b.reshape(b.non_zero(condition)[0], shape=condition.shape), axis=axis)


@onnx_op("Unique")
def unique(b: Builder, n: OnnxNode) -> Result:
    """Returns unique slices along an axis, or without an axis unique elements."""
    x = n.value(0)
    axis = axis_of(n.attrs["axis"], len(x.shape)) if "axis" in n.attrs else 0
    if "axis" not in n.attrs:
        x = b.reshape(x, shape=(x.type.size,))
    *results, length = b.unique(x, axis=axis, sorted=bool(n.attrs["sorted"]))
    if length.node.data is None:
        return results
    count = int(length.node.data)
    valid = [axis, 0, None, 0]
    return [v if a is None else b.const(np.ascontiguousarray(v.node.data.take(range(count), a)))
            for v, a in zip(results, valid, strict=True)]  # fmt: skip


@onnx_op("NonMaxSuppression", shape_inputs=(2, 3, 4))
def non_max_suppression(b: Builder, n: OnnxNode) -> Result:
    """Selects boxes. Thresholds and limit must be constants. Without a limit, NonMaxSuppression selects no box."""
    score = float(n.scalar(4)) if n.has(4) else -np.inf
    selected, length = b.non_max_suppression(
        cast(b, n.value(0), FP32), cast(b, n.value(1), FP32), max_output=n.integer(2) if n.has(2) else 0,
        iou_threshold=float(n.scalar(3)) if n.has(3) else 0.0, score_threshold=score,
        center_point_box=n.attrs["center_point_box"],
    )  # fmt: skip
    if length.node.data is not None:
        return b.const(np.ascontiguousarray(selected.node.data[: int(length.node.data)]))
    return selected

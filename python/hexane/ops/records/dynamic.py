"""Ops whose result's extent depends on data.

The results have the largest possible shape, with zeros after the valid part. The last output is the length of the valid
part.
"""

from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import FP32, INT32, INT64, DType
from hexane.errors import Error
from hexane.ops.attributes import flag, integer, number
from hexane.ops.shape_rules import Shape, one_axis
from hexane.ops.spec import Case, Op

Array = Any


def _padded(array: Array, axis: int, capacity: int) -> Array:
    pads = [(0, capacity - n if i == axis else 0) for i, n in enumerate(array.shape)]
    return np.pad(array, pads)


def _non_zero(x: Array) -> list[Array]:
    places = np.stack(np.nonzero(x)) if x.ndim else np.zeros((0, int(x != 0)), np.int64)
    return [_padded(places, 1, x.size), np.array(places.shape[1])]


def _unique_shape(x: Shape, axis: int, sorted: bool) -> list[Shape]:
    return [x, (x[axis],), (x[axis],), (x[axis],), ()]


def _unique_dtype(x: DType, **_: Any) -> list[DType]:
    if x.bits % 8 or (x.bits == 8 and x.kind == "float"):
        raise Error(f"got the dtype {x}, need one of whole bytes, and floats of 16 bits or more")
    return [x, INT64, INT64, INT64, INT64]


def _unique(x: Array, axis: int, sorted: bool) -> list[Array]:
    """Compares elements by their rank, so that NaN equals NaN in slices too."""
    count = x.shape[axis]
    ranks = np.unique(x, return_inverse=True)[1].reshape(x.shape)
    rows = np.moveaxis(ranks, axis, 0).reshape(count, x.size // max(count, 1))
    _, first, inverse, counts = np.unique(rows, True, True, True, axis=0)
    if not sorted:
        order = np.argsort(first)
        inverse = np.argsort(order)[inverse]
        first, counts = first[order], counts[order]
    vectors = [_padded(first, 0, count), inverse.reshape(-1), _padded(counts, 0, count)]
    return [_padded(np.take(x, first, axis), axis, count), *vectors, np.array(first.size)]


def _suppression_shape(boxes: Shape, scores: Shape, kinds: Shape | None, max_output: int, **_: Any) -> list[Shape]:
    if len(boxes) != 3 or len(scores) != 3 or boxes[2] != 4 or (boxes[0], boxes[1]) != (scores[0], scores[2]):
        raise Error(
            f"got boxes {boxes} and scores {scores}, need (batches, boxes, 4) and (batches, classes, boxes) with equal"
            " batches and boxes"
        )
    if kinds is not None and kinds != boxes[:2]:
        raise Error(f"got kinds {kinds}, need {boxes[:2]}, one for each box")
    return [(boxes[0] * scores[1] * min(max(max_output, 0), boxes[1]), 3), ()]


def _suppression_dtype(boxes: DType, scores: DType, kinds: DType | None, **_: Any) -> list[DType]:
    if boxes is not FP32 or scores is not FP32:
        raise Error(f"got boxes of {boxes} and scores of {scores}, need fp32")
    if kinds not in (None, INT32):
        raise Error(f"got kinds of {kinds}, need int32")
    return [INT64, INT64]


def _corners(boxes: Array, center: bool) -> list[Array]:
    """Returns left, top, right, bottom and area, computed in fp32."""
    a, b, c, d = np.moveaxis(boxes.astype(np.float32), -1, 0)
    if center:
        left, top, right, bottom = a - c / 2, b - d / 2, a + c / 2, b + d / 2
    else:
        left, top, right, bottom = np.minimum(b, d), np.minimum(a, c), np.maximum(b, d), np.maximum(a, c)
    return [left, top, right, bottom, (right - left) * (bottom - top)]


def _overlaps(one: Array, others: Array, threshold: float) -> bool:
    """True if the IoU of a box with one of the others exceeds the threshold. Boxes without an area overlap nothing."""
    width = np.minimum(one[2], others[2]) - np.maximum(one[0], others[0])
    height = np.minimum(one[3], others[3]) - np.maximum(one[1], others[1])
    both = width * height
    either = one[4] + others[4] - both
    real = (width > 0) & (height > 0) & (both > 0) & (one[4] > 0) & (others[4] > 0) & (either > 0)
    return bool((real & (both / either > np.float32(threshold))).any())


def _suppression(
    boxes: Array, scores: Array, kinds: Array | None, max_output: int, iou_threshold: float, score_threshold: float,
    center_point_box: bool,
) -> list[Array]:  # fmt: skip
    kept = []
    most = min(max(max_output, 0), boxes.shape[1])
    for batch, kind in np.ndindex(scores.shape[:2]):
        sides = np.stack(_corners(boxes[batch], center_point_box))
        row = scores[batch, kind].astype(np.float32)
        chosen: list[int] = []
        for i in np.argsort(-row, kind="stable"):
            if len(chosen) == most:
                break
            if score_threshold > -np.inf and not row[i] > np.float32(score_threshold):
                continue
            rivals = chosen if kinds is None else [k for k in chosen if kinds[batch, k] == kinds[batch, i]]
            if not _overlaps(sides[:, i], sides[:, rivals], iou_threshold):
                chosen.append(int(i))
        kept += [(batch, kind, i) for i in chosen]
    capacity = scores.shape[0] * scores.shape[1] * most
    return [_padded(np.array(kept, np.int64).reshape(-1, 3), 0, capacity), np.array(len(kept))]


_BOXES = np.array(
    [[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [1, 0.9, 0, -0.1], [0, 10, 1, 11], [0, 10.1, 1, 11.1], [0, 100, 1, 101]]],
    np.float32,
)
_SCORES = np.array([[[0.9, 0.75, 0.6, 0.95, 0.5, 0.3], [0.1, 0.7, 0.7, 0.2, 0.6, 0.8]]], np.float32)

OPS = (
    Op(
        name="non_zero", doc="The coordinates of nonzero elements of x in row-major order, with one row for each axis, "
                             "and their number.",
        inputs=("x",), outputs=("indices", "length"), shape=lambda x: [(len(x), prod(x)), ()],
        dtype=lambda x: [INT64, INT64], kernel="non_zero", ref=_non_zero, ragged=lambda attrs: (1, None),
        cases=(Case(arrays=(np.array([[1, 0, 0], [5, 0, 3]], np.float32),)),
               Case(arrays=(np.array([[1, 0, -0.0], [np.nan, 0, 3]], np.float32),)), Case(((2, 3, 5),), dtypes=("bool",)), Case(((),)), Case(((0, 3),)), Case(((17,),), dtypes=("int8",))),
    ),
    Op(
        name="unique",
        doc="The distinct slices of x along an axis (NaN equals NaN), the index of the first slice equal to each, "
            "for each slice of x the index of its distinct slice, the count of each, and the number of distinct slices. "
            "Unless sorted, distinct slices have the order of their first occurrence.",
        inputs=("x",), outputs=("values", "first", "inverse", "counts", "length"),
        attrs={"axis": integer(0), "sorted": flag(True)}, canonical=one_axis, shape=_unique_shape,
        dtype=_unique_dtype, kernel="unique", ref=_unique,
        ragged=lambda attrs: (attrs["axis"], 0, None, 0, None),
        cases=(Case(arrays=(np.array([2, 1, 1, 3, 0, 0, 3], np.float32),)),
               Case(arrays=(np.array([2, 1, np.nan, 1, 3, -0.0, np.nan, 0, 3], np.float32),)),
               Case(arrays=(np.array([2, 1, 1, 3, 0, 3]),), attrs={"sorted": False}),
               Case(arrays=(np.array([[[1, 1], [0, 1], [2, 1], [0, 1]], [[1, 1], [0, 1], [2, 1], [0, 1]]], np.float32),),
                    attrs={"axis": 1}),
               Case(arrays=(np.array([[5, 3, 5], [2, 9, 2]], np.int8),), attrs={"axis": -1, "sorted": False}),
               Case(((3, 0),)), Case(((0,),))), no_grad="comparisons decide which elements are distinct",
    ),
    Op(
        name="non_max_suppression",
        doc="Rows (batch, class, box) of the selected boxes by falling score, at most max_output for each class, and "
            "their number. A box is dropped if its IoU with an earlier one exceeds iou_threshold, or if its score is "
            "no more than score_threshold. Boxes of different kinds overlap nothing. Boxes are (y, x, y, x) of two "
            "corners, or (x, y, width, height) about the center.",
        inputs=("boxes", "scores", "kinds?"), outputs=("selected", "length"),
        attrs={"max_output": integer(), "iou_threshold": number(0.0), "score_threshold": number(-np.inf),
               "center_point_box": flag(False)},
        shape=_suppression_shape, dtype=_suppression_dtype, kernel="non_max_suppression", ref=_suppression,
        ragged=lambda attrs: (0, None),
        cases=(Case(arrays=(_BOXES, _SCORES), attrs={"max_output": 3, "iou_threshold": 0.5}),
               Case(arrays=(_BOXES, _SCORES), attrs={"max_output": 9, "iou_threshold": 0.5, "score_threshold": 0.5}),
               Case(((2, 9, 4), (2, 3, 9)), {"max_output": 4, "iou_threshold": 0.1, "center_point_box": True}, low=0.1),
               Case(arrays=(_BOXES, _SCORES, np.array([[0, 1, 0, 1, 1, 2]], np.int32)),
                    attrs={"max_output": 9, "iou_threshold": 0.5}),
               Case(arrays=(_BOXES, _SCORES), attrs={"max_output": 0})),
    ),
)  # fmt: skip

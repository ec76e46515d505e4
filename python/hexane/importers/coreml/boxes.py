"""Non-maximum suppression by Core ML's definition, for ML programs, for layers and for models.

The score of a box is its highest score over the classes. A box is dropped if its score is below a threshold, or if its
IoU with a kept box of higher score exceeds another threshold. Suppression within classes compares only boxes of the
same class, which is the class of a box's highest score. Boxes with equal scores are ranked in the order of the input.
"""

from typing import Any, NamedTuple

import numpy as np

from hexane.dtypes import FP32, INT32
from hexane.errors import Error
from hexane.graph import Value
from hexane.ops.compose import Builder, cast
from hexane.ops.valid_lengths import whole

LEAST = np.float32(-np.inf)


class Limits(NamedTuple):
    """Limits for the selection of boxes. overlap: the highest IoU of two kept boxes, of one class if
    within_classes is True. least: the lowest score of a kept
    box. most: the highest number of kept boxes."""

    overlap: float
    least: float
    most: int
    within_classes: bool


def selected(b: Builder, boxes: Value, scores: Value, limits: Limits) -> tuple[Value, Value, Value]:
    """Returns the indices of the kept boxes by falling score, the number of kept boxes, and the best scores of all
    boxes.

    boxes: (n, 4): x and y of the center, width, height. scores: (n, classes). The number of indices is known only at
    run time."""
    count, classes = scores.shape
    best = b.reduce_max(cast(b, scores, FP32), axes=(1,), keep_dims=False)
    kinds = None
    if limits.within_classes and classes > 1:
        kinds = b.reshape(b.reduce_argmax(scores, axis=1, keep_dims=False, dtype=INT32), shape=(1, count))
    rows, length = b.several(
        "non_max_suppression", b.reshape(cast(b, boxes, FP32), shape=(1, count, 4)),
        b.reshape(best, shape=(1, 1, count)), kinds, max_output=limits.most, iou_threshold=float(limits.overlap),
        score_threshold=_below(limits.least), center_point_box=True,
    )  # fmt: skip
    indices = b.slice_by_index(rows, begin=(0, 2), end=(rows.shape[0], 3))
    return b.reshape(indices, shape=(rows.shape[0],)), length, best


def padded(b: Builder, boxes: Value, scores: Value, limits: Limits) -> tuple[Value, Value, Value, Value]:
    """Returns boxes (batch, most, 4), scores (batch, most, classes), indices (batch, most) and the number (batch) of
    kept boxes. The rows after the kept boxes are 0, and their indices -1. If no box is kept, the box of the highest
    score is returned.

    boxes: (batch, n, 4), scores: (batch, n, classes). Raises Error if boxes or scores have other shapes."""
    if len(boxes.shape) != 3 or len(scores.shape) != 3 or boxes.shape != (*scores.shape[:2], 4) or not scores.type.size:
        got = f"boxes {list(boxes.shape)} and scores {list(scores.shape)}"
        raise Error(f"got {got}, need (batch, n, 4) and (batch, n, classes)")
    if limits.most < 1:
        raise Error(f"got {limits.most} boxes at most, need 1 or more")
    results = [_padded(b, _image(b, boxes, i), _image(b, scores, i), limits) for i in range(boxes.shape[0])]
    if len(results) == 1:
        first, second, third, fourth = results[0]
        return first, second, third, fourth
    first, second, third, fourth = (b.concat(*parts, axis=0) for parts in zip(*results, strict=True))
    return first, second, third, fourth


def _image(b: Builder, x: Value, i: int) -> Value:
    return b.reshape(b.slice_by_index(x, begin=(i, 0, 0), end=(i + 1, *x.shape[1:])), shape=x.shape[1:])


def _padded(b: Builder, boxes: Value, scores: Value, limits: Limits) -> tuple[Value, ...]:
    picks, length, best = selected(b, boxes, scores, limits)
    picks = whole(picks, b.sources)
    places = b.const(np.arange(picks.shape[0]))
    top = cast(b, b.reduce_argmax(best, axis=0, keep_dims=True, dtype=INT32), picks.dtype)
    picks = b.select(b.logical_and(b.equal(length, 0), b.equal(places, 0)), top, picks)
    number = b.maximum(length, 1)
    valid, unused = b.less(places, number), limits.most - picks.shape[0]

    def rows(x: Value, fill: Any) -> Value:
        mask = b.reshape(valid, shape=(picks.shape[0], *[1] * (len(x.shape) - 1)))
        x = b.select(mask, x, b.const(np.array(fill, x.dtype.numpy)))
        if unused:
            x = b.pad(x, begin=[0] * len(x.shape), end=[unused] + [0] * (len(x.shape) - 1), value=float(fill))
        return b.reshape(x, shape=(1, *x.shape))

    indices = rows(cast(b, picks, INT32), -1)
    number = b.reshape(cast(b, number, INT32), shape=(1,))
    return rows(b.gather(boxes, picks, axis=0), 0), rows(b.gather(scores, picks, axis=0), 0), indices, number


def _below(threshold: float) -> float:
    """Returns the fp32 number before the threshold, so that x > _below(t) is true if x >= t."""
    return float(np.nextafter(np.float32(threshold), LEAST))

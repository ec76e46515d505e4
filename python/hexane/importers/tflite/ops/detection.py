"""Non-maximum suppression, and the custom op that SSD detectors end with.

LiteRT drops a box if its overlap reaches the threshold (V4 and V5), or exceeds it (the SSD op). Of boxes with equal
scores, Hexane ranks the first one higher. In LiteRT's V4, a heap decides the order of equal scores.
"""

from typing import Any

import numpy as np

from hexane.dtypes import FP32, FP64, INT32
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.coreml.known import known_array
from hexane.importers.tflite.flex import numbers
from hexane.importers.tflite.ops.functions import dequantised
from hexane.importers.tflite.registry import Context, reads
from hexane.ops.compose import Builder, cast
from hexane.ops.valid_lengths import whole

LEAST = np.float32(-np.inf)
DEFAULT_FOR_EACH_CLASS = 100


@reads("NON_MAX_SUPPRESSION_V4")
def non_max_suppression_v4(c: Context) -> tuple[Value, Value]:
    indices, length = _selected(c)
    return indices, length


@reads("NON_MAX_SUPPRESSION_V5")
def non_max_suppression_v5(c: Context) -> tuple[Value, Value, Value]:
    """Selects boxes. Raises Error for soft suppression, which lowers scores."""
    if float(c.known(5).reshape(())) > 0:
        raise Error("got a soft suppression (soft_nms_sigma above 0), need 0")
    b = c.b
    indices, length = _selected(c)
    valid = b.less(b.const(np.arange(indices.shape[0], dtype=np.int32)), length)
    return indices, b.select(valid, b.gather(c.x(1), indices, axis=0), b.const(np.float32(0))), length


def _selected(c: Context) -> tuple[Value, Value]:
    """Returns the indices of the selected boxes, padded with 0, and their number."""
    b, boxes, scores = c.b, c.x(0), c.x(1)
    if len(boxes.shape) != 2 or boxes.shape[1] != 4 or scores.shape != boxes.shape[:1]:
        raise Error(f"got boxes {list(boxes.shape)} and scores {list(scores.shape)}, need (n, 4) and (n)")
    most, overlap, least = (known_array(c.x(i)).reshape(()) for i in (2, 3, 4))
    capacity = int(most)
    if capacity < 0:
        raise Error(f"got {capacity} boxes at most, need 0 or more")
    of_image = b.reshape(boxes, shape=(1, *boxes.shape)), b.reshape(scores, shape=(1, 1, *scores.shape))
    rows, length = b.several(
        "non_max_suppression", *of_image,
        max_output=capacity if overlap > 0 else min(capacity, 1), iou_threshold=_below(overlap),
        score_threshold=float(np.float32(least)),
    )  # fmt: skip
    found = whole(rows, b.sources)
    indices = cast(b, b.reshape(b.slice_by_index(found, begin=(0, 2), end=(found.shape[0], 3)), shape=(-1,)), INT32)
    if indices.shape[0] < capacity:
        indices = b.pad(indices, begin=(0,), end=(capacity - indices.shape[0],))
    return indices, cast(b, length, INT32)


def _below(threshold: Any) -> float:
    """Returns the fp32 number before the threshold, so that x > _below(t) is true if x >= t."""
    return float(np.nextafter(np.float32(threshold), LEAST))


@reads("TFLite_Detection_PostProcess")
def detection_post_process(c: Context) -> tuple[Value, Value, Value, Value]:
    """Returns boxes (1, n, 4), classes (1, n), scores (1, n) and their number (1), where n = max_detections times
    max_classes_per_detection. Rows after the detections, and rows of missing classes, are 0.

    Anchors and encodings are (y, x, height, width). Fast suppression uses only the best class of a box. Regular
    suppression handles each class separately.
    """
    b, options = c.b, numbers(c.op.custom)
    if c.x(0).dtype is not c.x(2).dtype:  # LiteRT reads the anchors' bytes in the dtype of the encodings
        raise Error(f"got encodings of {c.x(0).dtype} and anchors of {c.x(2).dtype}, need one type")
    encodings, scores = (dequantised(c, i) for i in (0, 1))
    if len(encodings.shape) != 3 or encodings.shape[0] != 1 or encodings.shape[2] < 4 or len(scores.shape) != 3:
        raise Error(f"got boxes {list(encodings.shape)} and scores {list(scores.shape)}, need (1, n, 4) and (1, n, c)")
    count, columns, classes = encodings.shape[1], scores.shape[2], int(_number(options, "num_classes"))
    if scores.shape[:2] != (1, count) or not 0 < classes <= columns <= classes + 1:
        raise Error(f"got scores {list(scores.shape)} for {count} boxes of {classes} classes, need (1, {count}, c)")
    boxes = _decoded(b, encodings, dequantised(c, 2), options)
    scores = b.slice_by_index(scores, begin=(0, 0, columns - classes), end=scores.shape)
    scores = b.reshape(scores, shape=(count, classes))
    if options.get("use_regular_nms", False):
        return _regular(b, boxes, scores, options)
    return _fast(b, boxes, scores, options)


def _decoded(b: Builder, encodings: Value, anchors: Value, options: dict[str, Any]) -> Value:
    """Returns boxes (n, 4), as y and x of two corners, computed in doubles as in LiteRT."""
    count = encodings.shape[1]
    if anchors.shape != (count, 4):
        raise Error(f"got anchors {list(anchors.shape)}, need ({count}, 4)")
    e = cast(b, b.reshape(encodings, shape=(count, encodings.shape[2])), FP64)
    a = cast(b, anchors, FP64)

    def part(x: Value, begin: int) -> Value:
        return b.slice_by_index(x, begin=(0, begin), end=(count, begin + 2))

    places = np.array([_number(options, "y_scale"), _number(options, "x_scale")])
    sizes = np.array([_number(options, "h_scale"), _number(options, "w_scale")])
    if not (places.all() and sizes.all()):
        raise Error("got a scale of 0, need others")
    center = cast(b, b.add(b.mul(b.real_div(part(e, 0), b.const(places)), part(a, 2)), part(a, 0)), FP32)
    half = cast(b, b.mul(b.exp(b.real_div(part(e, 2), b.const(sizes))), part(a, 2)), FP32)
    half = b.mul(half, b.const(np.float32(0.5)))
    return b.concat(b.sub(center, half), b.add(center, half), axis=1)


def _suppressed(b: Builder, boxes: Value, scores: Value, options: dict[str, Any], most: int) -> tuple[Value, Value]:
    """Returns (batch, class, box) of the selected boxes, padded with 0, and their number. scores: (classes, n)."""
    rows, length = b.several(
        "non_max_suppression", b.reshape(boxes, shape=(1, *boxes.shape)), b.reshape(scores, shape=(1, *scores.shape)),
        max_output=most, iou_threshold=_number(options, "nms_iou_threshold"),
        score_threshold=_below(_number(options, "nms_score_threshold")),
    )  # fmt: skip
    return whole(rows, b.sources), length


def _column(b: Builder, rows: Value, i: int) -> Value:
    return b.reshape(b.slice_by_index(rows, begin=(0, i), end=(rows.shape[0], i + 1)), shape=(rows.shape[0],))


def _fast(b: Builder, boxes: Value, scores: Value, options: dict[str, Any]) -> tuple[Value, Value, Value, Value]:
    (count, classes), most = scores.shape, int(_number(options, "max_detections"))
    wide = _of_detection(options, most)
    each = min(wide, classes)
    best, kinds = b.several("topk", scores, k=each, axis=1)
    first = b.reshape(b.slice_by_index(best, begin=(0, 0), end=(count, 1)), shape=(1, count))
    rows, length = _suppressed(b, boxes, first, options, most)
    chosen = _column(b, rows, 2)
    each_time = b.tile(b.reshape(chosen, shape=(chosen.shape[0], 1)), reps=(1, each))
    kinds, best = b.gather(kinds, chosen, axis=0), b.gather(best, chosen, axis=0)
    return _results(b, b.gather(boxes, each_time, axis=0), kinds, best, length, (most, wide))


def _regular(b: Builder, boxes: Value, scores: Value, options: dict[str, Any]) -> tuple[Value, Value, Value, Value]:
    """Returns the best detections of all classes. Of equal scores, the lower class ranks higher."""
    most = int(_number(options, "max_detections"))
    places_in_all = most * _of_detection(options, most)
    of_class = int(options.get("detections_per_class", DEFAULT_FOR_EACH_CLASS))
    rows, length = _suppressed(b, boxes, b.transpose(scores, perm=(1, 0)), options, of_class)
    kinds, chosen = _column(b, rows, 1), _column(b, rows, 2)
    found = b.gather(b.reshape(scores, shape=(scores.type.size,)), b.add(b.mul(chosen, scores.shape[1]), kinds), axis=0)
    valid = b.less(b.const(np.arange(rows.shape[0])), length)
    best, places = b.several("topk", b.select(valid, found, b.const(LEAST)), k=min(most, rows.shape[0]), axis=0)
    boxes, kinds = b.gather(boxes, b.gather(chosen, places, axis=0), axis=0), b.gather(kinds, places, axis=0)
    return _results(b, boxes, kinds, best, b.minimum(length, most), (places_in_all, 1))


def _of_detection(options: dict[str, Any], most: int) -> int:
    """Returns the number of classes in a detection. Raises Error if there are no detections or no classes."""
    wide = int(_number(options, "max_classes_per_detection"))
    if wide < 1 or most < 1:
        raise Error(f"got {most} detections of {wide} classes, need 1 or more")
    return wide


def _results(
    b: Builder, boxes: Value, kinds: Value, scores: Value, length: Value, capacity: tuple[int, int]
) -> tuple[Value, Value, Value, Value]:
    """Returns the results, padded to the capacity. capacity: the highest number of detections, and of classes in
    each."""
    most, wide = capacity
    found = scores.shape[0]
    each = scores.type.size // max(found, 1)
    mask = b.less(b.const(np.arange(found)), length)

    def row(x: Value, shape: tuple[int, ...]) -> Value:
        x = cast(b, b.reshape(x, shape=(found, each, *shape)), FP32)
        x = b.select(b.reshape(mask, shape=(found, 1, *[1] * len(shape))), x, b.const(np.float32(0)))
        if (most, wide) != (found, each):
            x = b.pad(x, begin=[0] * (2 + len(shape)), end=[most - found, wide - each] + [0] * len(shape))
        return b.reshape(x, shape=(1, most * wide, *shape))

    number = cast(b, b.reshape(length, shape=(1,)), FP32)
    return row(boxes, (4,)), row(kinds, ()), row(scores, ()), number


def _number(options: dict[str, Any], name: str) -> float:
    value = options.get(name)
    if not isinstance(value, (int, float)) or not np.isfinite(value):
        raise Error(f"got {value} for {name!r}, need a number")
    return float(value)

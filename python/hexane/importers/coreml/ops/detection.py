"""Non-maximum suppression."""

from typing import Any

import numpy as np

from hexane.graph import Value
from hexane.importers.coreml.boxes import Limits, padded
from hexane.importers.coreml.registry import Context, reads

WITHOUT_THRESHOLD = 17  # from iOS 17 on, the op has no score threshold, and the last axis counts boxes


@reads(
    "non_maximum_suppression boxes scores iou_threshold:float score_threshold:float? max_boxes:int"
    " per_class_suppression:bool=false"
)
def non_maximum_suppression(
    c: Context, _: Any, /, boxes: Value, scores: Value, iou_threshold: float, score_threshold: float | None,
    max_boxes: int, per_class_suppression: bool,
) -> tuple[Value, ...]:  # fmt: skip
    least = -np.inf if score_threshold is None else score_threshold
    limits = Limits(iou_threshold, least, max_boxes, per_class_suppression)
    if c.opset < WITHOUT_THRESHOLD:
        return padded(c.b, boxes, scores, limits)
    boxes, scores = (c.b.transpose(x, perm=(0, 2, 1)) if len(x.shape) == 3 else x for x in (boxes, scores))
    kept, their_scores, indices, _ = padded(c.b, boxes, scores, limits)
    return c.b.transpose(kept, perm=(0, 2, 1)), c.b.transpose(their_scores, perm=(0, 2, 1)), indices

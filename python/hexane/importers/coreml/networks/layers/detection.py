"""Non-maximum suppression. Indices and counts are floats in the file."""

from typing import Any

from hexane.dtypes import FP32
from hexane.graph import Value
from hexane.importers.coreml.boxes import Limits, padded
from hexane.importers.coreml.known import known_array
from hexane.importers.coreml.networks.registry import LayerContext, reads
from hexane.ops.compose import cast


@reads("NonMaximumSuppression")
def non_maximum_suppression(
    n: LayerContext, p: Any, boxes: Value, scores: Value, overlap: Value | None = None, least: Value | None = None,
    most: Value | None = None,
) -> tuple[Value, ...]:  # fmt: skip
    """Keeps the best boxes. The optional inputs replace the thresholds and the limit of the file."""
    limits = Limits(
        p.iouThreshold if overlap is None else _number(overlap), p.scoreThreshold if least is None else _number(least),
        int(p.maxBoxes if most is None else _number(most)), p.perClassSuppression,
    )  # fmt: skip
    kept, their_scores, indices, number = padded(n.b, boxes, scores, limits)
    return kept, their_scores, cast(n.b, indices, FP32), cast(n.b, number, FP32)


def _number(x: Value) -> float:
    return float(known_array(x).reshape(()))

"""A Core ML model that only performs non-maximum suppression (`nonMaximumSuppression`), as the last model of a
detector's pipeline.

The model reads the confidences (n, classes) and coordinates (n, 4) of all boxes and returns the rows of the kept boxes,
by Apple's `NonMaximumSuppression.proto`. If an output has a fixed number of rows, the rows after the last box are
zeros.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.importers.coreml.boxes import Limits, selected
from hexane.importers.coreml.description import Feature
from hexane.importers.coreml.known import known_array
from hexane.importers.coreml.program import Block, Declared, Operation, Program
from hexane.importers.coreml.translate import Translator
from hexane.ops.compose import Builder
from hexane.ops.fold import Folder
from hexane.ops.valid_lengths import whole

OPSET = 12  # the first iOS version with nonMaximumSuppression models
OP = "nonMaximumSuppression"


def read_suppression(spec: Any) -> Program:
    """Returns the model as a program of one operation."""
    nms = spec.nonMaximumSuppression
    inputs = tuple((port.name, Declared(None)) for port in spec.description.input)
    names = (nms.confidenceOutputFeatureName, nms.coordinatesOutputFeatureName)
    given = {"x": (nms.confidenceInputFeatureName, nms.coordinatesInputFeatureName)}
    results = tuple((name, Declared(None)) for name in names)
    outputs = tuple(port.name for port in spec.description.output)
    return Program("main", OPSET, Block(inputs, (Operation(OP, given, results, OP),), outputs))


def with_thresholds(features: Mapping[str, Feature], ports: Sequence[Any], nms: Any) -> dict[str, Feature]:
    """Makes threshold inputs optional, with the model's own thresholds as defaults. A threshold of 0 counts as no
    default, unless the input's description says that it is optional."""
    own, optional = thresholds_of(nms), {port.name for port in ports if port.type.isOptional}
    return {
        name: replace(feature, default=own[name]) if name in own and (own[name] or name in optional) else feature
        for name, feature in features.items()
    }


def thresholds_of(nms: Any) -> dict[str, float]:
    """Returns the model's own thresholds, by the names of the inputs that replace them."""
    both = {
        nms.iouThresholdInputFeatureName: nms.iouThreshold,
        nms.confidenceThresholdInputFeatureName: nms.confidenceThreshold,
    }
    return {name: value for name, value in both.items() if name}


def suppression_labels(nms: Any) -> tuple[str, ...]:
    return tuple(nms.stringClassLabels.vector) or tuple(map(str, nms.int64ClassLabels.vector))


class SuppressionTranslator(Translator):
    def __init__(self, program: Program, features: Mapping[str, Feature], spec: Any) -> None:
        super().__init__(program, features)
        self.nms, self.spec = spec.nonMaximumSuppression, spec

    def inputs(
        self,
        shapes: Mapping[str, Sequence[int]],
        values: Mapping[str, Array],
        given: Mapping[str, Value] = MappingProxyType({}),
    ) -> list[Value]:
        """Reads the inputs. A pipeline may pass thresholds that this model's description does not list."""
        self.values.update({name: given[name] for name in thresholds_of(self.nms) if name in given})
        return super().inputs(shapes, values, given)

    def _operation(self, operation: Operation) -> None:
        b: Builder = Folder(operation.label)
        scores, boxes = (self.item(str(name)) for name in operation.inputs["x"])
        if len(scores.shape) != 2 or boxes.shape != (scores.shape[0], 4) or not scores.type.size:
            got = f"confidences {list(scores.shape)} and coordinates {list(boxes.shape)}"
            raise Error(f"got {got}, need (n, classes) and (n, 4)")
        fewest, most = self._rows(scores.shape[0])
        overlap = self._threshold(self.nms.iouThresholdInputFeatureName, self.nms.iouThreshold)
        least = self._threshold(self.nms.confidenceThresholdInputFeatureName, self.nms.confidenceThreshold)
        limits = Limits(overlap, least, min(most, scores.shape[0]), self.nms.pickTop.perClass)
        picks, length, _ = selected(b, boxes, scores, limits)
        if length.node.data is not None:
            picks = b.slice_by_index(picks, begin=(0,), end=(int(length.node.data),))
        for (name, _), x in zip(operation.results, (scores, boxes), strict=True):
            rows = b.gather(x, picks, axis=0)
            self.values[name] = _fixed(b, rows, fewest) if fewest else rows

    def _threshold(self, name: str, own: float) -> float:
        given = self.values.get(name) if name else None
        return own if given is None else float(known_array(given).reshape(()))

    def _rows(self, count: int) -> tuple[int, int]:
        """Returns the lowest and the highest number of boxes in the outputs. Raises Error if the number is variable and
        its lowest is above 0, or if no box is allowed."""
        both = [_extent(port.type.multiArrayType) for port in self.spec.description.output]
        fewest = max((low for low, _ in both), default=0)
        most = min((high for _, high in both if high is not None), default=max(count, fewest))
        if most < 1 or (fewest and fewest != most):
            raise Error(f"got outputs of {fewest} to {most} boxes, need a fixed number, or any from 0 on")
        return fewest, most


def _extent(array: Any) -> tuple[int, int | None]:
    """Returns the lowest and the highest number of rows of an output; None for no limit."""
    if array.shapeRange.sizeRanges:
        first = array.shapeRange.sizeRanges[0]
        return int(first.lowerBound), None if first.upperBound < 0 else int(first.upperBound)
    listed = [shape.shape for shape in array.enumeratedShapes.shapes] or [array.shape]
    if len(listed) > 1:
        raise Error(f"got an output of {len(listed)} listed shapes, need one")
    return (int(listed[0][0]), int(listed[0][0])) if len(listed[0]) == 2 else (0, None)


def _fixed(b: Builder, x: Value, rows: int) -> Value:
    """Returns x padded to this many rows, with zeros after the valid rows."""
    x = whole(x, b.sources)
    if x.shape[0] < rows:
        x = b.pad(x, begin=[0, 0], end=[rows - x.shape[0], 0])
    return x

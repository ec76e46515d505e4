"""Classifiers: the probabilities are replaced by two outputs, a label and the probabilities by label."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hexane.dtypes import FP32
from hexane.emit.coreml.values import NUMBER_OF, fill_text
from hexane.errors import Error
from hexane.graph import Graph, Port
from hexane.importers.coreml.program import STRING
from hexane.ops import OPS, apply

LABEL = "classLabel"


def classified(graph: Graph, labels: Sequence[str]) -> Port:
    """Returns the output with a number for each label. Raises Error for no or several such outputs."""
    candidates = [p for p in graph.outputs if p.value.dtype.kind == "float" and p.value.type.size == len(labels)]
    if len(candidates) != 1:
        shapes = ", ".join(f"{p.name} {p.value.type}" for p in graph.outputs)
        count = f"{len(candidates)} outputs" if candidates else "no output"
        raise Error(f"[emit] labels: got {len(labels)} labels and {count} with as many numbers ({shapes}), need one")
    return candidates[0]


def with_probabilities(graph: Graph, labels: Sequence[str]) -> Graph:
    """return p=%1 : fp16[1, 3]  ->  return p=cast(%1) : fp32[1, 3]"""
    port = classified(graph, labels)
    if port.value.dtype is FP32:
        return graph
    cast = port._replace(value=apply(OPS["cast"], [port.value], {"dtype": FP32}, port.value.node.sources)[0])
    return replace(graph, outputs=tuple(cast if p == port else p for p in graph.outputs))


def add_classify(block: Any, probabilities: str, labels: Sequence[str], label: str) -> None:
    """Adds the op `classify`, whose results replace the probabilities, at the end of a block."""
    operation = block.operations.add(type="classify")
    operation.inputs["probabilities"].arguments.add(name=probabilities)
    classes = operation.inputs["classes"].arguments.add().value
    classes.type.listType.type.tensorType.dataType = STRING
    classes.type.listType.length.constant.size = len(labels)
    for text in labels:
        fill_text(classes.immediateValue.list.values.add(), text)
    fill_text(operation.attributes["name"], "classify")
    operation.outputs.add(name=label).type.tensorType.dataType = STRING
    kind = operation.outputs.add(name=f"{label}_probs").type.dictionaryType
    kind.keyType.tensorType.dataType = STRING
    kind.valueType.tensorType.dataType = NUMBER_OF["fp64"]
    kept = [name for name in block.outputs if name != probabilities]
    del block.outputs[:]
    block.outputs.extend([label, f"{label}_probs", *kept])


def describe_classes(description: Any, label: str) -> None:
    description.output.add(name=label).type.stringType.SetInParent()
    description.output.add(name=f"{label}_probs").type.dictionaryType.stringKeyType.SetInParent()
    description.predictedFeatureName, description.predictedProbabilitiesName = label, f"{label}_probs"

"""A pipeline of Core ML models as one graph: a name that a model computes is an input of the models after it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from hexane.errors import Error
from hexane.graph import Array, Graph, Port, Value
from hexane.graph.names import check_name
from hexane.importers.coreml.description import Feature
from hexane.importers.coreml.program import Block, Declared, Program
from hexane.importers.coreml.suppression import with_thresholds
from hexane.importers.coreml.translate import Translator, port_value, raise_problems, require_shapes
from hexane.importers.signature import SpecialisationNeeded
from hexane.ops.valid_lengths import with_lengths


class Stage(NamedTuple):
    """A model of a pipeline."""

    name: str
    spec: Any
    program: Program
    features: Mapping[str, Feature]
    translator: Translator


def read_pipeline(spec: Any, programs: Sequence[Program]) -> Program:
    """The ports of a pipeline. It has no operations of its own."""
    inputs = tuple((port.name, Declared(None)) for port in spec.description.input)
    outputs = tuple(port.name for port in spec.description.output)
    return Program("main", max(program.opset for program in programs), Block(inputs, (), outputs))


def pipeline_features(
    features: Mapping[str, Feature], ports: Sequence[Any], stages: Sequence[tuple[Any, Mapping[str, Feature]]]
) -> dict[str, Feature]:
    """Thresholds may be left out. Arrays may have a sequence and a batch in front where the first model that reads them
    takes these. stages: their messages and inputs."""
    merged = dict(features)
    for spec, inputs in reversed(stages):
        if spec.HasField("nonMaximumSuppression"):
            merged = with_thresholds(merged, ports, spec.nonMaximumSuppression)
        for name in merged.keys() & inputs.keys():
            merged[name] = replace(merged[name], leads=inputs[name].leads)
    return merged


class PipelineTranslator:
    def __init__(self, program: Program, features: Mapping[str, Feature], stages: Sequence[Stage]) -> None:
        self.program, self.features, self.stages = program, features, stages

    def graph(self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> Graph:
        """As `Translator.graph`. Errors name the model of the pipeline."""
        require_shapes(self.features, shapes, values)
        known = {name: port_value(name, feature, shapes, values) for name, feature in self.features.items()}
        inputs = tuple(value for value in known.values() if value.node.op == "input")
        updates: tuple[Value, ...] = ()
        for stage in self.stages:
            try:
                self._read(stage, known)
                raise_problems(stage.translator.needed, stage.translator.problems)
                known |= stage.translator.outputs()
            except SpecialisationNeeded:
                raise
            except Error as error:
                raise type(error)(f"{error}, in {stage.name}") from None
            updates += stage.translator.updates()
        ports = []
        for name in self.program.block.outputs:
            if name in known:
                check_name("output", name)
                ports.append(Port(name, known[name]))
            elif not any(name in stage.program.block.outputs for stage in self.stages):
                raise Error(f"[coreml] got the output {name!r}, need one that a model of the pipeline computes")
        if not ports:
            raise Error("[coreml] got a pipeline without outputs that are tensors, need at least one")
        return with_lengths(Graph(inputs, tuple(ports), name=self.program.name, updates=updates))

    def _read(self, stage: Stage, known: Mapping[str, Value]) -> None:
        """One model, for the values of the models before it."""
        for name, kind in stage.program.block.inputs:
            feature = stage.features.get(name)
            if kind.is_state or (feature is not None and feature.default is not None and name not in known):
                continue
            if name not in known:
                raise Error(f"[coreml] got no value for {name!r}, need an input of the pipeline, or a model before")
            if feature is not None and feature.dims:
                feature.given(known[name].shape)
            color = self.features[name].color if name in self.features else ""
            if feature is not None and feature.color != color:
                raise Error(f"[coreml] input {name!r}: got {color or 'no image'}, need {feature.color or 'an array'}")
        stage.translator.inputs({}, {}, known)
        stage.translator.block(stage.program.block)

"""A pipeline of Core ML models as one graph. A model's input reads the output of that name of an earlier model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from hexane.errors import Error
from hexane.graph import Array, Graph, Port, Value
from hexane.graph.names import check_name
from hexane.importers.coreml.description import Feature
from hexane.importers.coreml.package import pipeline_of, stages_of
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
    translator: "Translator | PipelineTranslator"


def read_pipeline(spec: Any, programs: Sequence[Program]) -> Program:
    """Returns the pipeline as a program that has ports and no operations."""
    inputs = tuple((port.name, Declared(None)) for port in spec.description.input)
    outputs = tuple(port.name for port in spec.description.output)
    return Program("main", max(program.opset for program in programs), Block(inputs, (), outputs))


def pipeline_features(
    features: Mapping[str, Feature], ports: Sequence[Any], stages: Sequence[tuple[Any, Mapping[str, Feature]]]
) -> dict[str, Feature]:
    """Returns the features of a pipeline's inputs. Thresholds are optional. Arrays may have leading sequence and batch
    axes if the first model that reads them allows these axes. stages: the models' messages and inputs."""
    merged = dict(features)
    for spec, inputs in reversed(stages):
        for nms in _suppressions(spec):
            merged = with_thresholds(merged, ports, nms)
        for name in merged.keys() & inputs.keys():
            merged[name] = replace(merged[name], leads=inputs[name].leads)
    return merged


def _suppressions(spec: Any) -> Iterator[Any]:
    """Yields the non-maximum suppressions of a model, also in a pipeline of pipelines."""
    if spec.HasField("nonMaximumSuppression"):
        yield spec.nonMaximumSuppression
    if pipeline_of(spec) is not None:
        for model in reversed(stages_of(spec).values()):
            yield from _suppressions(model)


class PipelineTranslator:
    """Translates a pipeline, which may be a model of another pipeline. known: the values of inputs and model outputs so
    far, by name. `needed` and `problems` are empty for every pipeline, because its models raise their own errors."""

    needed: Mapping[str, None] = MappingProxyType({})
    problems: Mapping[str, list[str]] = MappingProxyType({})

    def __init__(self, program: Program, features: Mapping[str, Feature], stages: Sequence[Stage]) -> None:
        self.program, self.features, self.stages = program, features, stages
        self.known: dict[str, Value] = {}

    def graph(self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> Graph:
        """Like `Translator.graph`. Error messages name the model of the pipeline."""
        self.inputs(shapes, values)
        inputs = tuple(value for value in self.known.values() if value.node.op == "input")
        self.block(self.program.block)
        known = self.known
        ports = []
        for name in self.program.block.outputs:
            if name in known:
                check_name("output", name)
                ports.append(Port(name, known[name]))
            elif not any(name in stage.program.block.outputs for stage in self.stages):
                raise Error(f"[coreml] got the output {name!r}, need one that a model of the pipeline computes")
        if not ports:
            raise Error("[coreml] got a pipeline without outputs that are tensors, need at least one")
        return with_lengths(Graph(inputs, tuple(ports), name=self.program.name, updates=self.updates()))

    def inputs(
        self,
        shapes: Mapping[str, Sequence[int]],
        values: Mapping[str, Array],
        given: Mapping[str, Value] = MappingProxyType({}),
    ) -> None:
        """Like `Translator.inputs`."""
        require_shapes({n: f for n, f in self.features.items() if n not in given}, shapes, values)
        self.known = {
            name: given[name] if name in given else port_value(name, feature, shapes, values)
            for name, feature in self.features.items()
        }

    def block(self, _: Block) -> None:
        """Translates the models in order."""
        for stage in self.stages:
            try:
                self._read(stage, self.known)
                raise_problems(stage.translator.needed, stage.translator.problems)
                self.known |= stage.translator.outputs()
            except SpecialisationNeeded:
                raise
            except Error as error:
                raise type(error)(f"{error}, in {stage.name}") from None

    def outputs(self) -> dict[str, Value]:
        """Returns the pipeline's outputs that are tensors."""
        return {name: self.known[name] for name in self.program.block.outputs if name in self.known}

    def updates(self) -> tuple[Value, ...]:
        return tuple(value for stage in self.stages for value in stage.translator.updates())

    def _read(self, stage: Stage, known: Mapping[str, Value]) -> None:
        """Translates one model on the values of earlier models."""
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

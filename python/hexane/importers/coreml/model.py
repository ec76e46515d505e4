"""An open Core ML model: its functions, their inputs and outputs, and its author's notes."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.importers.coreml.description import Feature, by_name
from hexane.importers.coreml.networks.translate import (
    NetworkTranslator,
    network_encodings,
    network_features,
    network_labels,
    read_network,
)
from hexane.importers.coreml.package import Package, kind_of, network_of, open_package
from hexane.importers.coreml.pipeline import PipelineTranslator, Stage, pipeline_features, read_pipeline
from hexane.importers.coreml.program import Constant, Program, every_operation, read_function
from hexane.importers.coreml.suppression import (
    SuppressionTranslator,
    read_suppression,
    suppression_labels,
    with_thresholds,
)
from hexane.importers.coreml.text import read_text
from hexane.importers.coreml.transforms import TransformTranslator, read_transform, transform_labels
from hexane.importers.coreml.translate import Translator
from hexane.importers.deciding import deciding_inputs
from hexane.importers.signature import Input, Signature

SYSTEMS = {
    11: "iOS 11, macOS 10.13", 12: "iOS 12, macOS 10.14", 13: "iOS 13, macOS 10.15", 14: "iOS 14, macOS 11",
    15: "iOS 15, macOS 12", 16: "iOS 16, macOS 13", 17: "iOS 17, macOS 14", 18: "iOS 18, macOS 15",
    26: "iOS 26, macOS 26",
}  # fmt: skip
LEAST_WEIGHT = 10  # elements; smaller constants are stored in the program, not in the weight file
ENCODINGS = {
    "constexpr_affine_dequantize": "scaled", "constexpr_blockwise_shift_scale": "blocks of",
    "constexpr_lut_to_dense": "palette of", "constexpr_lut_to_sparse": "palette of",
    "constexpr_sparse_to_dense": "sparse",
    "constexpr_sparse_blockwise_shift_scale": "sparse, scaled", "constexpr_cast": "cast",
}  # fmt: skip
SOURCE = "com.github.apple.coremltools."


@dataclass(frozen=True)
class CoreMLModel:
    """An open model. functions: the names of functions, the default one first."""

    package: Package

    @cached_property
    def functions(self) -> tuple[str, ...]:
        if self.package.text:
            usual = self.package.usual or "main"
            return tuple(sorted(self._texts, key=lambda name: (name != usual, name)))
        if not self.package.is_program:
            return ("main",)
        names = list(self.package.spec.mlProgram.functions)
        usual = self.package.spec.description.defaultFunctionName or "main"
        return tuple(sorted(names, key=lambda name: (name != usual, name)))

    @cached_property
    def _texts(self) -> Mapping[str, Program]:
        return read_text(self.package)

    def program(self, name: str) -> Program:
        """Returns a function. Raises Error if the model has no function of this name."""
        if name not in self.functions:
            need = ", ".join(self.functions)
            raise Error(f"[coreml] {self.package.path}: got the function {name!r}, need one of {need}")
        if self.package.text:
            return self._texts[name]
        if name not in self._programs:
            self._programs[name] = self._read_program(name)
        return self._programs[name]

    def _read_program(self, name: str) -> Program:
        spec = self.package.spec
        if self.package.is_pipeline:
            return read_pipeline(spec, [stage.program(main) for main, stage in self._mains()])
        if self.package.is_suppression:
            return read_suppression(spec)
        if self.package.is_transform:
            return read_transform(spec)
        if self.package.is_network:
            return read_network(spec)
        return read_function(name, spec.mlProgram.functions[name], self.package.weights)

    @cached_property
    def stages(self) -> "dict[str, CoreMLModel]":
        """Returns the models of a pipeline by name; an empty dict for other models."""
        return {name: CoreMLModel(part) for name, part in self.package.stages.items()}

    @cached_property
    def _programs(self) -> dict[str, Program]:
        """The functions read so far, by name."""
        return {}

    def description(self, name: str) -> Any:
        """Returns the description of a function: its own if the model has several functions, else the model's."""
        if self.package.spec is None:
            return None
        described = self.package.spec.description
        return next((f for f in described.functions if f.name == name), described)

    def features(self, name: str, program: Program) -> dict[str, Feature]:
        described = self.description(name)
        features = {} if described is None else by_name(described.input, dict(program.block.inputs))
        if self.package.is_network:
            return network_features(features, network_of(self.package.spec))
        if self.package.is_suppression:
            return with_thresholds(features, described.input, self.package.spec.nonMaximumSuppression)
        if self.package.is_pipeline:
            stages = [(stage.package.spec, stage.features(main, stage.program(main))) for main, stage in self._mains()]
            return pipeline_features(features, described.input, stages)
        return features

    def _mains(self) -> "list[tuple[str, CoreMLModel]]":
        """Returns the default function of each model of a pipeline."""
        return [(stage.functions[0], stage) for stage in self.stages.values()]

    def labels(self, name: str) -> tuple[str, ...]:
        """The classes of a classifier, in the order of its probabilities."""
        if self.package.is_network:
            return network_labels(network_of(self.package.spec))
        if self.package.is_suppression:
            return suppression_labels(self.package.spec.nonMaximumSuppression)
        if self.package.is_transform:
            return transform_labels(self.package.spec)
        if self.package.is_pipeline:
            return next((labels for main, stage in reversed(self._mains()) if (labels := stage.labels(main))), ())
        for operation in self.program(name).block.operations:
            if operation.op == "classify":
                (given,) = operation.inputs.get("classes", ([],))
                return tuple(str(v) for v in getattr(given, "value", ()) or ())
        return ()

    def signature(self, name: str) -> Signature:
        program = self.program(name)
        features = self.features(name, program)
        deciding = self._deciding(program, features)
        inputs: list[Input] = []
        optional: list[Input] = []
        for port, kind in program.block.inputs:
            if kind.is_state:
                continue
            described = features.get(port) or Feature.of(port, kind)
            entry = Input(port, described.dtype, described.names(), port in deciding, described.usual_shape())
            (inputs if described.default is None else optional).append(entry)
        return Signature(tuple(inputs), program.block.outputs, tuple(optional))

    def _deciding(self, program: Program, features: Mapping[str, Feature]) -> set[str]:
        inputs = {port: (feature.fixed_shape(), feature.dtype) for port, feature in features.items()}
        return deciding_inputs(lambda shapes, values: self._translator(program, features).graph(shapes, values), inputs)

    def _translator(self, program: Program, features: Mapping[str, Feature]) -> Translator | PipelineTranslator:
        if self.package.is_pipeline:
            return PipelineTranslator(program, features, [self._stage(name) for name in self.stages])
        return self._of_one(program, features)

    def _of_one(self, program: Program, features: Mapping[str, Feature]) -> Translator:
        """Returns the translator of a model that is not a pipeline."""
        if self.package.is_network:
            return NetworkTranslator(program, features, self.package.spec)
        if self.package.is_suppression:
            return SuppressionTranslator(program, features, self.package.spec)
        if self.package.is_transform:
            return TransformTranslator(program, features, self.package.spec)
        return Translator(program, features)

    def _stage(self, name: str) -> Stage:
        model = self.stages[name]
        main = model.functions[0]
        program = model.program(main)
        features = model.features(main, program)
        return Stage(name, model.package.spec, program, features, model._translator(program, features))

    def graph(
        self, name: str, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array] = MappingProxyType({})
    ) -> Graph:
        """Returns the graph of a function for given shapes of its inputs, and for values of the inputs that decide
        shapes.

        Raises SpecialisationNeeded if a shape or a value is missing, Error if a shape does not fit, and
        UnsupportedError that lists all kinds of unsupported ops."""
        program = self.program(name)
        known = {port for port, kind in program.block.inputs if not kind.is_state}
        if unknown := set(shapes) - known:
            raise Error(f"[coreml] got a shape for {min(unknown)!r}, need inputs of {', '.join(sorted(known))}")
        return self._translator(program, self.features(name, program)).graph(shapes, values)

    def encodings(self, function: str | None = None) -> list[tuple[str, int, int]]:
        """Returns how weights are stored: the name of each encoding, the number of tensors and their bytes. A tensor
        that several ops or functions read counts once. function: counts the weights of this function only."""
        if self.package.is_network:
            return network_encodings(network_of(self.package.spec))
        if self.package.is_suppression or self.package.is_transform:
            return []
        totals: dict[str, tuple[int, int]] = {}
        for stage in self.stages.values():
            for name, count, size in stage.encodings():
                before = totals.get(name, (0, 0))
                totals[name] = before[0] + count, before[1] + size
        counted = set[tuple[str, int]]()
        for name in self.functions if function is None else (function,):
            for operation in every_operation(self.program(name).block):
                encoding = ENCODINGS.get(operation.op, operation.op)
                for given in (g for args in operation.inputs.values() for g in args if isinstance(g, Constant)):
                    if (
                        not isinstance(given.value, np.ndarray)
                        or given.dtype is None
                        or given.value.size < LEAST_WEIGHT
                        or given.stored in counted
                    ):
                        continue
                    if given.stored is not None:
                        counted.add(given.stored)
                    key = str(given.dtype) if operation.op == "const" else f"{encoding} {given.dtype}"
                    count, size = totals.get(key, (0, 0))
                    totals[key] = count + 1, size + -(-given.value.size * given.dtype.bits // 8)
        return [(name, count, size) for name, (count, size) in sorted(totals.items())]

    def kinds(self) -> list[dict[str, str]]:
        """Returns the models of a pipeline by name and kind, for reports."""
        return [{"name": name, "kind": kind_of(stage.package.spec)} for name, stage in self.stages.items()]

    def facts(self) -> dict[str, str]:
        """Returns the author's and the converter's notes, for reports."""
        spec = self.package.spec
        if spec is None:
            return {}
        facts = {"specification": str(spec.specificationVersion)}
        meta = spec.description.metadata
        for name in ("shortDescription", "author", "license", "versionString"):
            if text := getattr(meta, name):
                facts[name] = text
        facts |= {
            key.removeprefix(SOURCE): value for key, value in sorted(meta.userDefined.items()) if key.startswith(SOURCE)
        }
        return facts


def open_model(path: str | os.PathLike[str]) -> CoreMLModel:
    """Opens a model. Raises Error for a damaged file, and UnsupportedError for a kind of model that Hexane does not
    read."""
    return CoreMLModel(open_package(Path(path)))

"""Core ML packages: the description of a model, and its folder."""

import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hexane
from hexane import _core
from hexane.emit.coreml.forms import in_coreml_ops
from hexane.emit.coreml.images import Image
from hexane.emit.coreml.indices import SINCE, with_positive_indices
from hexane.emit.coreml.labels import LABEL, add_classify, classified, describe_classes
from hexane.emit.coreml.listed_shapes import describe_shapes, forget_open_shapes, join, varied_input
from hexane.emit.coreml.prepare import prepared
from hexane.emit.coreml.program import (
    SPARSE,
    FunctionWriter,
    for_system,
    least_system_of,
    newer_than,
    sparse_weights,
)
from hexane.emit.coreml.systems import OPSETS
from hexane.emit.coreml.values import WEIGHTS, Weights
from hexane.emit.parent import check_parent
from hexane.errors import Error
from hexane.graph import Graph, Value
from hexane.importers.coreml.description import DTYPES_OF
from hexane.importers.coreml.schema import messages

FOLDER = "com.apple.CoreML"
MODEL = f"{FOLDER}/model.mlmodel"
_NUMBER_OF = {name: number for number, name in DTYPES_OF.items()}


@dataclass(frozen=True, slots=True)
class PackageContents:
    """A model before it is saved. spec: the Model message. weights: the weight file, or None. system: the iOS version
    for which it is written. renamed: new names of ports whose names Core ML refuses. graphs: the graph of each
    function."""

    spec: Any
    weights: _core.WeightFile | None
    system: int
    renamed: Mapping[str, str]
    graphs: Mapping[str, Graph]


MOST_NAMED = 3  # ops that an error names


def write_model(
    graphs: Mapping[str, Graph],
    *,
    compute: str = "fp16",
    system: int | None = None,
    masks: bool = False,
    images: Mapping[str, Image] | None = None,
    labels: Sequence[str] = (),
    listed: Sequence[Graph] = (),
) -> PackageContents:
    """Returns a model with functions, given by name. compute: fp16, or fp32 for the graphs' float dtypes. system: the
    iOS version, 15 to 18; None: the oldest that has all ops. masks: require an iOS version that stores sparse weights
    with masks; else they are stored with masks if the version does. images: image inputs, for all functions that have
    them. labels: the classes of the only function. listed: the only function for other shapes of one input, which the
    package then also supports.

    Raises Error that lists all ops that Core ML lacks.
    """
    if labels and len(graphs) > 1:
        raise Error("[emit] labels: got several functions, need one: Core ML's classifiers have one")
    if listed and len(graphs) > 1:
        raise Error("[emit] --input-shape: got several functions and several shapes, need one of the two")
    varied = varied_input([*graphs.values(), *listed]) if listed else ""
    check_images(graphs, images or {})
    by_function = {
        name: prepared(graph, compute, _of_inputs(graph, images or {}), labels) for name, graph in graphs.items()
    }
    variants = [prepared(graph, compute, _of_inputs(graph, images or {}), labels) for graph in listed]
    if system is not None:
        by_function = {name: in_coreml_ops(for_system(graph, system)) for name, graph in by_function.items()}
        variants = [in_coreml_ops(for_system(graph, system)) for graph in variants]
    for name, graph in by_function.items():
        if not graph.inputs:
            raise Error(f"[emit] function {name!r}: got no inputs, need at least one for Core ML")
        if not graph.outputs:
            raise Error(f"[emit] function {name!r}: got no outputs, need at least one")
    least = max(map(least_system_of, (*by_function.values(), *variants)))
    least = max(least, 18) if len(by_function) > 1 else least
    is_sparse = masks and any(map(sparse_weights, by_function.values()))
    least = max(least, SPARSE) if is_sparse else least
    year = least if system is None else system
    if year < least:
        newer = [text for graph in (*by_function.values(), *variants) for text in newer_than(graph, year)]
        newer += [f"sparse weights need iOS{SPARSE}"] * is_sparse
        newer += ["several functions need iOS18"] * (len(by_function) > 1) or ["ports in fp16 need iOS16"] * (not newer)
        more = f", and {len(newer) - MOST_NAMED} more" if len(newer) > MOST_NAMED else ""
        raise Error(f"[emit] opset: got iOS{year}, need iOS{least} or newer: {', '.join(newer[:MOST_NAMED])}{more}")
    if year >= SINCE:
        by_function = {name: with_positive_indices(graph) for name, graph in by_function.items()}
        variants = [with_positive_indices(graph) for graph in variants]
    spec, weights, renamed = messages()["Model"](), Weights(), dict[str, str]()
    spec.specificationVersion = OPSETS[year][1]
    spec.mlProgram.version = 1
    described = spec.description
    described.metadata.userDefined["hexane.version"] = hexane.__version__
    for name, graph in by_function.items():
        writer = FunctionWriter(graph, year, weights)
        writer.write(spec.mlProgram.functions[name])
        renamed |= {
            old: new
            for old, new in (*writer.inputs.items(), *writer.states.items(), *writer.outputs.items())
            if old != new
        }
        part = described.functions.add(name=name) if len(by_function) > 1 else described
        for value in graph.inputs:
            port = str(value.node.attrs["name"])
            image = (images or {}).get(port)
            _describe(part.input.add(), writer.inputs[port], value, image)
        probabilities = classified(graph, labels).name if labels else ""
        if labels:
            label = writer.names.give(LABEL)
            add_classify(writer.block, writer.outputs[probabilities], labels, label)
            describe_classes(part, label)
        for node in graph.nodes:
            if node.op == "state":
                state = str(node.attrs["name"])
                _describe_array(part.state.add(name=writer.states[state]).type.stateType.arrayType, node.values[0])
        for given in graph.outputs:
            if given.name != probabilities:
                _describe(part.output.add(), writer.outputs[given.name], given.value)
    if len(by_function) > 1:
        described.defaultFunctionName = next(iter(by_function))
    if not listed:
        return PackageContents(spec, weights.settle(), year, renamed, by_function)
    others = [_variant(graph, year, weights, labels) for graph in variants]
    file = weights.settle()
    (name,) = by_function
    join(spec.mlProgram.functions[name], others)
    shapes = [next(v.shape for v in g.inputs if v.node.attrs["name"] == varied) for g in (*graphs.values(), *listed)]
    describe_shapes(described, renamed.get(varied, varied), shapes)
    forget_open_shapes(described, spec.mlProgram.functions[name])
    return PackageContents(spec, file, year, renamed, by_function)


def _variant(graph: Graph, year: int, weights: Weights, labels: Sequence[str]) -> Any:
    """Returns the function for another shape, which shares the weights of the first shape's function."""
    function, writer = messages()["Function"](), FunctionWriter(graph, year, weights)
    writer.write(function)
    if labels:
        add_classify(writer.block, writer.outputs[classified(graph, labels).name], labels, writer.names.give(LABEL))
    return function


def _of_inputs(graph: Graph, images: Mapping[str, Image]) -> dict[str, Image]:
    return {name: image for name, image in images.items() if name in graph.input_names()}


def check_images(graphs: Mapping[str, Graph], images: Mapping[str, Image]) -> None:
    """Raises Error for an image that no function has as an input."""
    known = list(dict.fromkeys(name for graph in graphs.values() for name in graph.input_names()))
    for name in images:
        if name not in known:
            raise Error(f"[emit] image {name!r}: got no such input, need one of {', '.join(known)}")


def _describe(feature: Any, name: str, value: Value, image: Image | None = None) -> None:
    feature.name = name
    if image is not None:
        kind = feature.type.imageType
        kind.height, kind.width, kind.colorSpace = *value.shape[2:], image.color_space
        return
    _describe_array(feature.type.multiArrayType, value)


def _describe_array(array: Any, value: Value) -> None:
    array.shape.extend(value.shape)
    array.dataType = _NUMBER_OF[value.dtype.name]


def save_model(written: PackageContents, folder: str | os.PathLike[str]) -> int:
    """Writes the package to a temporary folder next to its path, and then moves it to its path. An existing package is
    replaced only by a complete one. Files are not synced to the disk. Returns the bytes of the files.

    Raises Error if the path exists and is no package, and if its folder does not exist.
    """
    path = Path(folder)
    if path.exists() and not (path.is_dir() and (path / "Manifest.json").is_file()):
        raise Error(f"[emit] {path}: got a path that exists and is no package, need another name")
    check_parent(path)
    fresh = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}"
    try:
        size = _fill(written, fresh)
        if path.exists():
            _core.exchange_folders(str(fresh), str(path))
        else:
            fresh.rename(path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return size


def _fill(written: PackageContents, folder: Path) -> int:
    inside = folder / "Data" / FOLDER
    inside.mkdir(parents=True)
    spec = written.spec.SerializeToString()
    _core.save_file(str(folder / "Data" / MODEL), spec, False)
    ids = {"model.mlmodel": str(uuid.uuid4()).upper()}
    if written.weights is not None:
        ids["weights"] = str(uuid.uuid4()).upper()
        (inside / WEIGHTS).parent.mkdir()
        _core.save_file(str(inside / WEIGHTS), written.weights, False)
    said = {"model.mlmodel": "CoreML Model Specification", "weights": "CoreML Model Weights"}
    items = {
        ids[name]: {"author": FOLDER, "description": said[name], "name": name, "path": f"{FOLDER}/{name}"}
        for name in ids
    }
    manifest = {
        "fileFormatVersion": "1.0.0", "itemInfoEntries": items, "rootModelIdentifier": ids["model.mlmodel"],
    }  # fmt: skip
    listed = json.dumps(manifest, indent=4).encode()
    _core.save_file(str(folder / "Manifest.json"), listed, False)
    return len(listed) + len(spec) + (0 if written.weights is None else len(written.weights))


def system_of(text: str) -> int:
    """Returns 15 for "iOS15". Raises Error for an unknown iOS version."""
    names = {f"ios{year}": year for year in OPSETS}
    if text.lower() not in names:
        raise Error(f"[emit] opset: got {text!r}, need one of {', '.join(f'iOS{year}' for year in OPSETS)}")
    return names[text.lower()]

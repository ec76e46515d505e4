"""Prints what `hexane info` shows of a Core ML model."""

from pathlib import Path
from typing import Any

from hexane.graph.decisions import counted
from hexane.graph.printer import size_text
from hexane.importers.coreml.description import declared_text
from hexane.importers.coreml.model import SYSTEMS, CoreMLModel, open_model


def package_record(path: Path, function: str | None) -> dict[str, Any]:
    """Returns the facts of a model. function: the ports and weights are those of this function only."""
    model = open_model(path)
    return {
        "functions": {name: _function(model, name) for name in ([function] if function else model.functions)},
        "coreml": {
            **model.facts(),
            **({"models": model.kinds()} if model.package.is_pipeline else {}),
            "weights_of": function,
            "weights": [
                {"encoding": name, "tensors": count, "bytes": size} for name, count, size in model.encodings(function)
            ],
        },
    }


def _function(model: CoreMLModel, name: str) -> dict[str, Any]:
    program = model.program(name)
    features = model.features(name, program)
    inputs = []
    for port, kind in program.block.inputs:
        if kind.is_state:
            continue
        feature = features.get(port)
        inputs.append({"name": port, "type": str(kind) if feature is None else feature.text()})
    description = model.description(name)
    declared = {} if description is None else {one.name: declared_text(one) for one in description.output}
    outputs = [
        {"name": port} | ({"type": declared[port]} if declared.get(port) else {}) for port in program.block.outputs
    ]
    return {
        "system": SYSTEMS.get(program.opset, ""),
        "inputs": inputs,
        "states": [{"name": port, "type": str(kind)} for port, kind in program.block.inputs if kind.is_state],
        "outputs": outputs,
        "labels": list(model.labels(name)),
    }


def print_package(record: dict[str, Any]) -> None:
    facts = record["coreml"]
    for key, words in (
        ("shortDescription", ""),
        ("author", "by "),
        ("license", "license "),
        ("versionString", "version "),
    ):
        if key in facts:
            print(f"{words}{facts[key]}")
    versions = ", ".join(f"{key} {facts[key]}" for key in ("source", "version") if key in facts)
    print(
        f"version {facts['specification']} of Core ML's specification"
        if "specification" in facts
        else "a compiled model"
    )
    if models := facts.get("models"):
        listed = "; ".join(f"{model['name']}, {model['kind']}" for model in models)
        print(f"a pipeline of {len(models)} models: {listed}")
    if versions:
        print(f"written by coremltools: {versions}")
    of = f" of function {facts['weights_of']}," if facts["weights_of"] else ""
    for encoding in facts["weights"]:
        tensors = counted(encoding["tensors"], "tensor")
        print(f"weights{of} {encoding['encoding']}: {tensors}, {size_text(encoding['bytes'])}")
    for name, function in record["functions"].items():
        print(f"function {name} ({function['system']})" if function["system"] else f"function {name}")
        for kind in ("inputs", "states", "outputs"):
            for port in function[kind]:
                print(f"  {kind[:-1]:8}{port['name']}  {port.get('type', '(the file gives no type)')}")
        if labels := function["labels"]:
            print(f"  labels  {len(labels)}: {', '.join(labels[:8])}{', ..' if len(labels) > 8 else ''}")
    print()

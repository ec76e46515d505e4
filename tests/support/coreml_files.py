"""Core ML packages written by hand: the protobuf of a small program, and the folder around it."""

import json
from pathlib import Path
from typing import Any

from hexane.importers.coreml.schema import messages


def package(folder: Path, spec: Any, path: str = "com.apple.CoreML/model.mlmodel") -> Path:
    made = folder / "net.mlpackage"
    (made / "Data" / "com.apple.CoreML").mkdir(parents=True)
    (made / "Data" / "com.apple.CoreML" / "model.mlmodel").write_bytes(spec)
    manifest = {
        "fileFormatVersion": "1.0.0",
        "itemInfoEntries": {"A": {"author": "com.apple.CoreML", "name": "model.mlmodel", "path": path}},
        "rootModelIdentifier": "A",
    }
    (made / "Manifest.json").write_text(json.dumps(manifest))
    return made


def relu_spec() -> Any:
    """relu of two numbers."""
    spec = messages()["Model"](specificationVersion=6)
    function = spec.mlProgram.functions["main"]
    function.opset = "CoreML5"
    block = function.block_specializations["CoreML5"]
    for port in (function.inputs.add(name="x"),):
        _two(port.type.tensorType)
    operation = block.operations.add(type="relu")
    operation.inputs["x"].arguments.add(name="x")
    _two(operation.outputs.add(name="y").type.tensorType)
    block.outputs.append("y")
    return spec


def _two(tensor: Any) -> None:
    tensor.dataType, tensor.rank = 11, 1
    tensor.dimensions.add().constant.size = 2

"""Small .tflite files and what TFLite's own reference kernels make of them, through the package ai-edge-litert."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import pytest

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
schema: Any = pytest.importorskip("ai_edge_litert.schema_py_generated", reason="ai-edge-litert is not installed")

DTYPES = {"int8": 9, "int16": 7, "int32": 2, "float32": 0}  # of schema.TensorType
PADDINGS = {"same": 0, "valid": 1}
ACTIVATIONS = {"": 0, "relu": 1, "relu6": 3}


@dataclass
class TfliteFile:
    """One subgraph. Tensors and ops are added in order; each method that adds a tensor gives its index."""

    tensors: list[Any] = field(default_factory=list)
    buffers: list[Any] = field(default_factory=lambda: [schema.BufferT()])  # the first is empty
    operators: list[Any] = field(default_factory=list)
    codes: list[tuple[int, int]] = field(default_factory=list)  # of builtin operators, with their versions
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def tensor(
        self,
        shape: Sequence[int],
        dtype: str = "int8",
        scales: Any = (),
        zero: int = 0,
        axis: int = 0,
        data: Any = None,
    ) -> int:
        """scales: one, or one for each index of an axis; data: of a constant."""
        made = schema.TensorT()
        made.name, made.shape, made.type, made.buffer = f"t{len(self.tensors)}", list(shape), DTYPES[dtype], 0
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = np.ascontiguousarray(data, np.dtype(dtype)).view(np.uint8).reshape(-1)
            self.buffers.append(buffer)
            made.buffer = len(self.buffers) - 1
        if len(scales := np.atleast_1d(np.float32(scales))):
            grid = schema.QuantizationParametersT()
            grid.scale, grid.zeroPoint = scales, np.full(len(scales), zero, np.int64)
            grid.quantizedDimension = axis
            made.quantization = grid
        self.tensors.append(made)
        return len(self.tensors) - 1

    def op(self, name: str, inputs: Sequence[int], outputs: Sequence[int], version: int = 2, **options: Any) -> None:
        """A builtin operator: "CONV_2D" with the options of Conv2DOptions, which are attributes of that name."""
        code = getattr(schema.BuiltinOperator, name), version
        if code not in self.codes:
            self.codes.append(code)
        made = schema.OperatorT()
        made.opcodeIndex, made.inputs, made.outputs = self.codes.index(code), list(inputs), list(outputs)
        kind = options.pop("kind")
        made.builtinOptionsType = getattr(schema.BuiltinOptions, kind)
        made.builtinOptions = getattr(schema, f"{kind}T")()
        for option, value in options.items():
            assert hasattr(made.builtinOptions, option), f"{kind} has no {option}"
            setattr(made.builtinOptions, option, value)
        self.operators.append(made)

    def tobytes(self) -> bytes:
        model, graph = schema.ModelT(), schema.SubGraphT()
        graph.tensors, graph.operators = self.tensors, self.operators
        graph.inputs, graph.outputs = self.inputs, self.outputs
        model.version, model.subgraphs, model.buffers, model.operatorCodes = 3, [graph], self.buffers, []
        for code, version in self.codes:
            row = schema.OperatorCodeT()
            row.builtinCode, row.deprecatedBuiltinCode, row.version = code, min(code, 127), version
            model.operatorCodes.append(row)
        builder = flatbuffers.Builder(1024)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def run(self, feeds: Mapping[int, Any]) -> list[Any]:
        """The outputs by the reference kernels, which compute one element after the other."""
        made = litert.Interpreter(
            model_content=self.tobytes(), experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF
        )
        made.allocate_tensors()
        for i, array in feeds.items():
            made.set_tensor(made.get_input_details()[self.inputs.index(i)]["index"], array)
        made.invoke()
        return [made.get_tensor(port["index"]) for port in made.get_output_details()]

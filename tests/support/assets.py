"""Small Core AI assets: functions of a few operations, written with the project's writer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hexane.emit.coreai.asset import ELEMENT_OF, AssetWriter
from hexane.emit.coreai.bytecode import Written, WrittenBody, WrittenValue
from hexane.graph import Array


class Function:
    """Builds one function: `f.op("primitive.exp", x)` adds an operation with one result of the type of x."""

    def __init__(self, writer: AssetWriter | None = None, name: str = "main") -> None:
        self.writer, self.name = writer or AssetWriter(), name
        self.arguments: dict[str, WrittenValue] = {}
        self.operations: list[Written] = []

    def input(self, name: str, shape: Sequence[int | None], element: str = "f32") -> WrittenValue:
        self.arguments[name] = WrittenValue(self.writer.tensor(shape, element))
        return self.arguments[name]

    def state(self, name: str, shape: Sequence[int], element: str = "f32") -> WrittenValue:
        self.arguments[name] = WrittenValue(self.writer.handle(self.writer.tensor(shape, element)))
        return self.arguments[name]

    def value(self, shape: Sequence[int | None], element: str = "f32") -> WrittenValue:
        return WrittenValue(self.writer.tensor(shape, element))

    def const(self, array: Any, element: str | None = None) -> WrittenValue:
        numbers = np.asarray(array)
        made = self.writer.constant(numbers, element or ELEMENT_OF_NUMPY[numbers.dtype.name])
        self.operations.append(made)
        return made.results[0]

    def op(self, name: str, *operands: WrittenValue, result: WrittenValue | None = None, **more: Any) -> WrittenValue:
        made = result or WrittenValue(operands[0].type)
        self.operations.append(Written(f"{name}_v1", operands, (made,), **more))
        return made

    def body(self, *arguments: WrittenValue) -> WrittenBody:
        return WrittenBody(arguments)

    def finish(self, results: Mapping[str, WrittenValue], **more: Any) -> AssetWriter:
        self.writer.function(self.name, self.arguments, results, self.operations, **more)
        return self.writer


ELEMENT_OF_NUMPY = {np.dtype(name.replace("fp", "float")).name: element for name, element in ELEMENT_OF.items()
                    if name in ("bool", "fp16", "fp32", "fp64", "int8", "int16", "int32", "int64",
                                "uint8", "uint16", "uint32", "uint64")}  # fmt: skip


def perceptron(rng: np.random.Generator) -> tuple[bytes, dict[str, Array], Array]:
    """An asset with weights in blobs, inputs for it, and its result in NumPy."""
    f = Function()
    x = f.input("x", (4, 24))
    weight, bias = rng.standard_normal((24, 10)).astype(np.float32), rng.standard_normal(10).astype(np.float32)
    y = f.op("primitive.batch_matmul", x, f.const(weight), result=f.value((4, 10)))
    z = f.op("broadcasting_add", y, f.const(bias))
    program = f.finish({"y": f.op("primitive.tanh", z)}).bytes()
    feed = rng.standard_normal((4, 24)).astype(np.float32)
    return program, {"x": feed}, np.tanh(feed @ weight + bias)

"""Small Core AI assets: functions of a few operations, written with the project's writer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hexane.emit.coreai.asset import ELEMENT_OF, AssetWriter
from hexane.emit.coreai.bytecode import (
    OperationRecord,
    WrittenBody,
    WrittenValue,
    aligned_section,
    flagged,
    number,
    resource_sections,
    section,
    strings_of,
)
from hexane.graph import Array
from hexane.importers.coreai import read_asset

FOLDER = "/home/author/secret"


class Function:
    """Builds one function: `f.op("primitive.exp", x)` adds an operation with one result of the type of x."""

    def __init__(self, writer: AssetWriter | None = None, name: str = "main") -> None:
        self.writer, self.name = writer or AssetWriter(), name
        self.arguments: dict[str, WrittenValue] = {}
        self.operations: list[OperationRecord] = []

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
        self.operations.append(OperationRecord(f"{name}_v1", operands, (made,), **more))
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


def with_locations() -> bytes:
    """Operations that say where they come from: a file, a line and a module."""
    writer = AssetWriter()
    t = writer.tables
    file = t.attribute(30, number(t.string(f"{FOLDER}/model.py")), number(t.string("")), number(t.string("")))
    source = t.attribute(31, number(file), *[number(n) for n in (41, 0, 41, 0)])
    stack = writer.array((writer.text("Linear$1"), writer.text("Model$1")))
    entry = t.attribute(33, number(stack))
    named = t.attribute(35, number(t.string("call_stack")), number(entry))
    location = t.attribute(40, number(source), number(writer.unit), number(0), number(1), number(named))
    f = Function(writer)
    x = f.input("x", (2, 3))
    weight = f.const(np.arange(600, dtype=np.float32).reshape(3, 200))
    y = f.op("primitive.batch_matmul", x, weight, result=f.value((2, 200)), location=location)
    return f.finish({"y": f.op("primitive.tanh", y)}).bytes()


def as_the_first_converters(data: bytes) -> bytes:
    """The same file with its locations in a dialect of that name: the group of attributes is cut in two."""
    asset = read_asset(data, "f")
    old = asset.bytecode
    strings = [*old.strings, "builtin"]
    dialects = number(2) + flagged(old.strings.index("aicode"), True) + section(7, number(2))
    dialects += flagged(len(strings) - 1, False) + number(len(old.ops)) + number(0) + number(len(old.ops))
    dialects += b"".join(flagged(old.strings.index(name), True) for _, name in old.ops)
    kinds = [bytes(entry.data)[:1] == number(40) for _, entry in old.attributes]
    sizes = number(len(old.attributes)) + number(len(old.types))
    for is_location, (_, entry) in zip(kinds, old.attributes, strict=True):
        sizes += number(int(is_location)) + number(1) + flagged(len(entry.data), not is_location)
    sizes += number(0) + number(len(old.types)) + b"".join(flagged(len(e.data), True) for _, e in old.types)
    out = b"ML\xefR" + number(6) + b"old\0"
    for kind, found in old.sections.items():
        changed = {0: strings_of(strings), 1: dialects, 3: sizes}
        if kind == 5:
            continue
        if kind == 6:
            described, blobs = resource_sections([(old.strings.index(b.key), bytes(b.data)) for b in old.blobs], 0)
            out += section(6, described)
            out += aligned_section(5, blobs, 16, len(out))
            continue
        out += section(kind, changed.get(kind, bytes(found.data)))
    return out

"""Writes .tflite files: a FlatBuffer of tables by `hexane.importers.tflite.schema`. LiteRT reads them in the tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
from flatbuffers import flexbuffers

from hexane.importers.tflite.schema import OPERATORS, TABLES, TYPES, UNIONS

TYPE_OF = {
    "float32": "FLOAT32", "float16": "FLOAT16", "int8": "INT8", "uint8": "UINT8", "int16": "INT16", "int32": "INT32",
    "int64": "INT64", "bool": "BOOL",
}  # fmt: skip
CODES = {name: code for code, (name, _) in enumerate(OPERATORS)}
PREPEND = {
    "bool": "Bool", "int8": "Int8", "uint8": "Uint8", "int16": "Int16", "uint16": "Uint16", "int32": "Int32",
    "uint32": "Uint32", "int64": "Int64", "uint64": "Uint64", "float32": "Float32",
}  # fmt: skip


def write_table(b: Any, kind: str, values: Mapping[str, Any]) -> int:
    """values: by the names of the fields; a union is a pair, its table and its values."""
    places: list[tuple[int, str, Any]] = []
    for f in TABLES[kind]:
        if f.name not in values or values[f.name] is None:
            continue
        value = values[f.name]
        if f.type == "union":
            table, inner = value
            places.append((f.number - 1, "uint8", UNIONS[f.name].index(table)))
            places.append((f.number, "offset", write_table(b, table, inner) if table in TABLES else _empty(b)))
        elif f.type == "string":
            places.append((f.number, "offset", b.CreateString(value)))
        elif f.type.startswith("["):
            places.append((f.number, "offset", _vector(b, f.type[1:-1], value)))
        elif f.type in TABLES:
            places.append((f.number, "offset", write_table(b, f.type, value)))
        else:
            places.append((f.number, f.type, value))
    b.StartObject(max((f.number for f in TABLES[kind]), default=-1) + 1)
    for number, scalar, value in places:
        if scalar == "offset":
            b.PrependUOffsetTRelativeSlot(number, value, 0)
        else:
            getattr(b, f"Prepend{PREPEND[scalar]}")(value)
            b.Slot(number)
    return int(b.EndObject())


def _empty(b: Any) -> int:
    b.StartObject(0)
    return int(b.EndObject())


def _vector(b: Any, kind: str, value: Any) -> int:
    if kind in TABLES:
        offsets = [write_table(b, kind, v) for v in value]
        b.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            b.PrependUOffsetTRelative(offset)
        return int(b.EndVector())
    return int(b.CreateNumpyVector(np.asarray(value, np.uint8 if kind == "bool" else kind)))


@dataclass
class TfliteModel:
    """Subgraphs are added in order; `tensor` gives the index of the tensor in the newest."""

    buffers: list[Any] = field(default_factory=lambda: [{}])
    codes: list[Any] = field(default_factory=list)
    subgraphs: list[Any] = field(default_factory=list)
    signatures: list[Any] = field(default_factory=list)

    def subgraph(self) -> None:
        self.subgraphs.append({"tensors": [], "inputs": [], "outputs": [], "operators": [], "name": "g"})

    @property
    def graph(self) -> Any:
        if not self.subgraphs:
            self.subgraph()
        return self.subgraphs[-1]

    def tensor(
        self, shape: Sequence[int], kind: str = "float32", data: Any = None, scales: Any = None, zero: int = 0,
        axis: int = 0, **more: Any,
    ) -> int:  # fmt: skip
        tensors = self.graph["tensors"]
        made = {
            "shape": list(shape),
            "type": TYPES.index(TYPE_OF.get(kind, kind)),
            "name": f"t{len(tensors)}",
            "buffer": 0,
        }
        if data is not None:
            raw = data if isinstance(data, bytes) else np.ascontiguousarray(data, kind).tobytes()
            self.buffers.append({"data": np.frombuffer(raw, np.uint8)})
            made["buffer"] = len(self.buffers) - 1
        if scales is not None:
            found = np.atleast_1d(np.float32(scales))
            grid = {"scale": found, "zero_point": np.full(found.size, zero), "quantized_dimension": axis}
            made["quantization"] = grid
        tensors.append({**made, **more})
        return len(tensors) - 1

    def op(self, name: str, inputs: Sequence[int], outputs: Sequence[int], **options: Any) -> None:
        """A builtin operator with options by the names of the schema, or a custom one with a map of options."""
        builtin = name in CODES
        code = CODES.get(name, 32)
        row = {"deprecated_builtin_code": min(code, 127), "builtin_code": code, "version": 1}
        self.codes.append(row if builtin else {**row, "custom_code": name})
        made: dict[str, Any] = {"opcode_index": len(self.codes) - 1, "inputs": list(inputs), "outputs": list(outputs)}
        if not builtin and options:
            made["custom_options"] = np.frombuffer(flexbuffers.Dumps(options), np.uint8)
        if builtin and (table := OPERATORS[code][1]):
            made["builtin_options"] = (table, options)
        self.graph["operators"].append(made)

    def tobytes(self) -> bytes:
        b = flatbuffers.Builder(1024)
        model = {"version": 3, "operator_codes": self.codes, "subgraphs": self.subgraphs, "buffers": self.buffers,
                 "signature_defs": self.signatures}  # fmt: skip
        b.Finish(write_table(b, "Model", model), b"TFL3")
        return bytes(b.Output())

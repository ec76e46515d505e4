"""Builds the types, attributes and functions of an asset, and writes its folder."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hexane import _core
from hexane.emit.coreai.bytecode import (
    OperationRecord,
    Tables,
    WrittenBody,
    WrittenValue,
    number,
    signed,
    write_bytecode,
)
from hexane.emit.parent import check_parent
from hexane.graph import Array, TensorType
from hexane.importers.coreai.asset import ASSET, FUNCTION, HASH, METADATA, OUTPUT, PROGRAM
from hexane.importers.coreai.attributes import DYNAMIC, ELEMENTS
from hexane.importers.coreai.numbers import BITS, packed

KIND_OF = {name: kind for kind, name in ELEMENTS.items()}
LARGEST_INLINE = 256  # most bytes of a constant that is stored as an attribute
SPARSE_ENCODING, BITMASK, PLACE_BITS = 21, 0, 1  # the kind of attribute, its scheme, and the mask bits of an element
OLDEST_VERSION = 20250707  # the date of the oldest ops
ELEMENT_OF = {
    "bool": "bool", "fp64": "f64", "fp32": "f32", "fp16": "f16", "bf16": "bf16",
    "int64": "si64", "int32": "si32", "int16": "si16", "int8": "si8", "int4": "si4",
    "uint64": "ui64", "uint32": "ui32", "uint16": "ui16", "uint8": "ui8", "uint4": "ui4", "uint2": "ui2",
    "uint1": "ui1", "uint6": "ui6", "uint3": "ui3",
}  # fmt: skip


class AssetWriter:
    """Builds a file's tables, and its functions in the order of their calls."""

    def __init__(self, version: int = OLDEST_VERSION) -> None:
        self.tables, self.version = Tables(), version
        self.functions: list[OperationRecord] = []
        t = self.tables
        file = t.attribute(30, *[number(t.string(text)) for text in ("-", "", "")])
        source = t.attribute(31, number(file), *[number(0)] * 4)
        self.unit = t.attribute(46)
        self.location = t.attribute(40, number(source), number(self.unit), number(0), number(0))

    # ---- types ----

    def tensor(self, shape: Sequence[int | None], element: str) -> int:
        extents = [signed(DYNAMIC if d is None else d) for d in shape]
        return self.tables.type(2, number(len(extents)), *extents, number(self.tables.type(KIND_OF[element])))

    def sparse_tensor(self, kind: TensorType, numbers: int) -> int:
        """Returns the type of a sparse tensor with this many stored numbers and a mask of their places."""
        encoding = self.tables.attribute(
            SPARSE_ENCODING, number(BITMASK), number(PLACE_BITS), number(PLACE_BITS), b"\1", number(numbers)
        )
        extents = [signed(d) for d in kind.shape]
        element = self.tables.type(KIND_OF[ELEMENT_OF[kind.dtype.name]])
        return self.tables.type(3, number(len(extents)), *extents, number(element), number(encoding))

    def handle(self, tensor: int) -> int:
        return self.tables.type(31, number(tensor))

    def token(self) -> int:
        return self.tables.type(32)

    # ---- attributes ----

    def text(self, text: str) -> int:
        return self.tables.attribute(1, number(self.tables.string(text)))

    def integer(self, value: int, width: int = 32) -> int:
        bits = value & ((1 << width) - 1)
        return self.tables.attribute(2, number(width), b"\1", bytes((bits,)) if width <= 8 else signed(bits))

    def flag(self, value: bool) -> int:
        return self.integer(int(value), 1)

    def array(self, items: Iterable[int]) -> int:
        indices = list(items)
        return self.tables.attribute(5, number(len(indices)), *map(number, indices))

    def named(self, name: str, *values: int) -> int:
        return self.tables.attribute(9, number(self.tables.string(name)), number(len(values)), *map(number, values))

    def setting(self, kind: int, value: int) -> int:
        """Returns an attribute with one of a few values, such as a padding mode."""
        return self.tables.attribute(kind, number(value))

    # ---- operations ----

    def constant(self, array: Array, element: str) -> OperationRecord:
        """Returns a constant of numbers in row order. Numbers of less than a byte are packed. If all numbers are equal,
        only one is stored, except for booleans, and for packed numbers that are not 0."""
        data, is_packed = packed(array, element), element in BITS
        first = np.ascontiguousarray(array).tobytes()[: array.itemsize]
        if array.size > 1 and element != "bool" and _are_all(array, first) and not (is_packed and any(first)):
            one = packed(array.reshape(-1)[:1], element)
            value = self.tables.attribute(6, b"\1", number(len(one)), one)
        elif len(data) <= LARGEST_INLINE and not is_packed:
            value = self.tables.attribute(6, b"\0", number(len(data)), data)
        else:
            key = f"resource_{hashlib.sha256(data).hexdigest()[:16]}"
            value = self.tables.attribute(7, number(self.tables.resource(key, data)))
        result = WrittenValue(self.tensor(array.shape, element))
        return OperationRecord("primitive.constant_v1", results=(result,), properties=(value,))

    def function(
        self,
        name: str,
        arguments: Mapping[str, WrittenValue],
        results: Mapping[str, WrittenValue],
        operations: list[OperationRecord],
        private: bool = False,
        composite: int | None = None,
    ) -> None:
        t = self.tables
        types = [[v.type for v in side.values()] for side in (results, arguments)]
        kind = t.type(30, *[number(n) for side in types for n in (len(side), *side)])
        end = OperationRecord(OUTPUT, operands=tuple(results.values()))
        body = WrittenBody(tuple(arguments.values()), [*operations, end])
        no = self.flag(False)
        properties = (
            self._ports(arguments), composite, no, t.attribute(4, number(kind)), self.flag(private), self.text(name),
            no, self.array(()), self._ports(results),
        )  # fmt: skip
        self.functions.append(
            OperationRecord(FUNCTION, properties=properties, optional=frozenset((1,)), bodies=(body,), isolated=True)
        )

    def _ports(self, ports: Mapping[str, WrittenValue]) -> int:
        return self.array(self.array((self.named("aicode.name", self.text(name)),)) for name in ports)

    def bytes(self) -> bytes:
        """Returns the program of the asset."""
        version = self.integer(self.version)
        asset = OperationRecord(
            ASSET, properties=(None, version), optional=frozenset((0, 1)),
            bodies=(WrittenBody((), self.functions),), isolated=True,
        )  # fmt: skip
        return write_bytecode(WrittenBody((), [asset]), self.tables, self.location)


def _are_all(array: Array, first: bytes) -> bool:
    rows = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, array.itemsize)
    return bool((rows == np.frombuffer(first, np.uint8)).all())


def save_asset(folder: str | os.PathLike[str], program: bytes, metadata: Mapping[str, Any]) -> None:
    """Writes the folder of an asset: the program, its hash and its metadata, each file atomically. Raises Error if the
    folder around it does not exist."""
    path = Path(folder)
    check_parent(path)
    path.mkdir(exist_ok=True)
    _core.save_file(str(path / PROGRAM), program)
    _core.save_file(str(path / HASH), hashlib.sha256(program).digest())
    _core.save_file(str(path / METADATA), json.dumps(dict(metadata), indent=1).encode())

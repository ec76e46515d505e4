"""Reads the tables of a TFLite file by the schema. Files are untrusted. The total number of bytes read is limited
to a multiple of the file's size."""

from typing import Any

import numpy as np

from hexane.containers.flat_buffer import FlatBuffer
from hexane.errors import Error
from hexane.importers.tflite.schema import TABLES, UNIONS, Field

Table = dict[str, Any]
SIZES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "float32": 4, "int64": 8,
    "uint64": 8,
}  # fmt: skip
MOST_DEPTH = 16  # most levels of nested tables.
ROOM = 8  # Limit of bytes read, as a multiple of the file's size, because tables may be shared.


class Reader(FlatBuffer):
    """Reads tables as dictionaries. Vectors of scalars become arrays, which are views of the file."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data, "tflite")
        self.room = ROOM * len(data)

    def root(self) -> Table:
        if len(self.data) < 8 or self.data[4:8] != b"TFL3":
            raise Error(f"[tflite] got the identifier {self.data[4:8]!r}, need b'TFL3'")
        return self.table(self.reference(0, "model"), "Model")

    def table(self, at: int, kind: str, depth: int = 0) -> Table:
        """Returns a table. Raises Error, with the byte, if an offset leads out of the file."""
        if depth > MOST_DEPTH:
            raise self.fail(at, f"{kind}: got tables in tables, more than {MOST_DEPTH} deep")
        self.take(at, 4 + 2 * len(TABLES[kind]), kind)
        found: Table = {}
        for field in TABLES[kind]:
            place = self.field(at, field.number, f"{kind}.{field.name}", SIZES.get(field.type, 4))
            found[field.name] = self.value(place, field, found, f"{kind}.{field.name}", depth)
        return found

    def take(self, at: int, size: int, what: str) -> None:
        self.room -= size
        if self.room < 0:
            raise self.fail(at, f"{what}: got more tables than a file of {len(self.data)} bytes has room for")

    def value(self, at: int | None, field: Field, table: Table, what: str, depth: int) -> Any:
        kind = field.type
        if kind in SIZES:
            return field.default if at is None else self.scalar(at, kind, what)
        if kind == "union":
            names, number = UNIONS[field.name], table[f"{field.name}_type"]
            name = names[number] if number < len(names) else f"type {number}"
            table[f"{field.name}_table"] = name
            return self.table(self.reference(at, what), name, depth + 1) if at is not None and name in TABLES else None
        if kind.startswith("["):
            return self.vector(at, kind[1:-1], what, depth)
        if at is None:
            return "" if kind == "string" else None
        to = self.reference(at, what)
        return self.words(to, what) if kind == "string" else self.table(to, kind, depth + 1)

    def scalar(self, at: int, kind: str, what: str) -> Any:
        self.check(at, SIZES[kind], what)
        return np.frombuffer(self.data, f"<{np.dtype(kind).str[1:]}", 1, at)[0].item()

    def vector(self, at: int | None, kind: str, what: str, depth: int) -> Any:
        if kind in SIZES:
            if at is None:
                return np.zeros(0, kind)
            to = self.reference(at, what)
            count = self.number(to, 4, what)
            self.check(to + 4, count * SIZES[kind], what)
            if kind != "uint8":
                self.take(to, count * SIZES[kind], what)
            kind = "uint8" if kind == "bool" else kind
            return np.frombuffer(self.data, f"<{np.dtype(kind).str[1:]}", count, to + 4)
        places = list(self.references(at, what))
        return [self.words(p, what) if kind == "string" else self.table(p, kind, depth + 1) for p in places]

    def words(self, at: int, what: str) -> str:
        """Returns a string of any length. Bytes that are not UTF-8 are replaced."""
        size = self.number(at, 4, what)
        self.check(at + 4, size, what)
        self.take(at, size, what)
        return bytes(self.data[at + 4 : at + 4 + size]).decode(errors="replace")

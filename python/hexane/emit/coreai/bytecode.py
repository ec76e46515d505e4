"""Writes MLIR bytecode, version 6: the tables of strings, types and attributes, and the tree of operations.

The counterpart of importers/coreai/bytecode.py, which names the source of each field's format.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hexane.importers.coreai.bytecode import (
    DIALECT,
    DIALECT_VERSION,
    DIALECT_VERSIONS,
    DIALECTS,
    ENTRIES,
    IR,
    MAGIC,
    OFFSETS,
    PADDING,
    PROPERTIES,
    RESOURCE_OFFSETS,
    RESOURCES,
    STRINGS,
    VERSION,
)

PRODUCER = b"MLIR22.0.0git"
ALIGNMENT = 16  # alignment of resources in the file
ALIGNED = 0x80


def number(value: int) -> bytes:
    """Encodes a number of up to 64 bits in the fewest bytes. The trailing zeros of the first byte are the number of
    further bytes."""
    for follow in range(8):
        if value < 1 << 7 * (follow + 1):
            return ((value << 1 | 1) << follow).to_bytes(follow + 1, "little")
    return b"\0" + value.to_bytes(8, "little")


def signed(value: int) -> bytes:
    """Encodes a signed number. The lowest bit is its sign."""
    return number((value << 1 if value >= 0 else (-value << 1) - 1) & ((1 << 64) - 1))


def flagged(value: int, flag: bool) -> bytes:
    return number(value << 1 | flag)


def section(kind: int, data: bytes) -> bytes:
    return bytes((kind,)) + number(len(data)) + data


def aligned_section(kind: int, data: bytes, alignment: int, offset: int) -> bytes:
    """Returns a section that starts at this offset of the file, with contents at a multiple of the alignment."""
    head = bytes((kind | ALIGNED,)) + number(len(data)) + number(alignment)
    return head + bytes((PADDING,)) * (-(offset + len(head)) % alignment) + data


@dataclass(slots=True)
class OperationRecord:
    """An operation to write. properties: the index of each attribute, in alphabetical order of names; None for an
    omitted optional one. optional: the indices of optional properties. bodies: with their arguments' types and
    operations."""

    name: str
    operands: Sequence["WrittenValue"] = ()
    results: Sequence["WrittenValue"] = ()
    properties: Sequence[int | None] | None = None
    optional: frozenset[int] = frozenset()
    bodies: Sequence["WrittenBody"] = ()
    isolated: bool = False
    location: int | None = None


@dataclass(eq=False, slots=True)
class WrittenValue:
    """A value. type: the index of its type."""

    type: int


@dataclass(slots=True)
class WrittenBody:
    arguments: Sequence[WrittenValue] = ()
    operations: list[OperationRecord] = field(default_factory=list)


class Tables:
    """The distinct strings, types, attributes and resources of a file, with the indices by which entries refer to
    them."""

    def __init__(self) -> None:
        self.strings: dict[str, int] = {}
        self.types: dict[bytes, int] = {}
        self.attributes: dict[bytes, int] = {}
        self.names: dict[str, int] = {}
        self.properties: dict[bytes, int] = {}
        self.resources: dict[str, bytes] = {}

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def type(self, kind: int, *fields: bytes) -> int:
        return self.types.setdefault(number(kind) + b"".join(fields), len(self.types))

    def attribute(self, kind: int, *fields: bytes) -> int:
        return self.attributes.setdefault(number(kind) + b"".join(fields), len(self.attributes))

    def resource(self, key: str, data: bytes) -> int:
        """Adds a blob, and returns its index in the list of resources."""
        self.string(key)
        self.resources.setdefault(key, data)
        return list(self.resources).index(key)

    def name(self, operation: str) -> int:
        self.string(operation)
        return self.names.setdefault(operation, len(self.names))

    def property(self, operation: OperationRecord) -> int:
        assert operation.properties is not None
        encoded = b"".join(
            (number(0) if index is None else flagged(index, True)) if i in operation.optional else number(index or 0)
            for i, index in enumerate(operation.properties)
        )
        return self.properties.setdefault(encoded, len(self.properties))


def write_bytecode(root: WrittenBody, tables: Tables, location: int) -> bytes:
    """Returns the file's bytes. location: the attribute for operations without a location of their own."""
    tables.string(DIALECT)
    ir = _Ir(tables, location).block(root, {})
    out = MAGIC + number(VERSION) + PRODUCER + b"\0"
    version = section(DIALECT_VERSIONS, number(DIALECT_VERSION))
    names = b"".join(flagged(tables.strings[name], True) for name in tables.names)
    out += section(
        DIALECTS,
        number(1) + flagged(tables.strings[DIALECT], True) + version
        + number(len(tables.names)) + number(0) + number(len(tables.names)) + names,
    )  # fmt: skip
    entries = (tables.attributes, tables.types)
    sizes = b"".join(_group(table) for table in entries)
    out += section(OFFSETS, number(len(tables.attributes)) + number(len(tables.types)) + sizes)
    out += section(ENTRIES, b"".join(entry for table in entries for entry in table))
    out += section(IR, ir)
    out += _resources(tables, len(out))
    out += section(STRINGS, strings_of(list(tables.strings)))
    return out + section(PROPERTIES, number(len(tables.properties)) + b"".join(map(_sized, tables.properties)))


def _group(table: Iterable[bytes]) -> bytes:
    sizes = [flagged(len(entry), True) for entry in table]
    return number(0) + number(len(sizes)) + b"".join(sizes) if sizes else b""


def _sized(data: bytes) -> bytes:
    return number(len(data)) + data


def strings_of(strings: Sequence[str]) -> bytes:
    """Returns the contents of the strings section."""
    encoded = [text.encode() + b"\0" for text in strings]
    return number(len(encoded)) + b"".join(number(len(text)) for text in reversed(encoded)) + b"".join(encoded)


def _resources(tables: Tables, offset: int) -> bytes:
    blobs = [(tables.strings[key], data) for key, data in tables.resources.items()]
    described, data = resource_sections(blobs, 0)
    head = section(RESOURCE_OFFSETS, described)
    return head + aligned_section(RESOURCES, data, ALIGNMENT, offset + len(head))


def resource_sections(blobs: Sequence[tuple[int, bytes]], dialect: int) -> tuple[bytes, bytes]:
    """Returns the contents of two sections: the sizes of the resources, and the resources with their data at multiples
    of 16 bytes. blobs: for each the string index of its key, and its data."""
    parts, rows, at = [], b"", 0
    for key, blob in blobs:
        head = number(ALIGNMENT) + number(len(blob))
        head += bytes((PADDING,)) * (-(at + len(head)) % ALIGNMENT)
        rows += number(key) + number(len(head) + len(blob)) + b"\0"
        parts += [head, blob]
        at += len(head) + len(blob)
    group = number(dialect) + number(len(blobs)) + rows if blobs else b""
    return number(0) + group, b"".join(parts)


class _Ir:
    def __init__(self, tables: Tables, location: int) -> None:
        self.tables, self.location = tables, location

    def block(self, body: WrittenBody, values: dict[WrittenValue, int]) -> bytes:
        out = flagged(len(body.operations), bool(body.arguments))
        if body.arguments:
            out += number(len(body.arguments))
            for argument in body.arguments:
                values[argument] = len(values)
                out += flagged(argument.type, True) + number(self.location)
            out += b"\0"
        return out + b"".join([self.operation(operation, values) for operation in body.operations])

    def operation(self, o: OperationRecord, values: dict[WrittenValue, int]) -> bytes:
        mask = (0x40 if o.properties is not None else 0) | (0x02 if o.results else 0)
        mask |= (0x04 if o.operands else 0) | (0x10 if o.bodies else 0)
        out = number(self.tables.name(o.name)) + bytes((mask,))
        out += number(self.location if o.location is None else o.location)
        if o.properties is not None:
            out += number(self.tables.property(o))
        if o.results:
            out += number(len(o.results)) + b"".join(number(v.type) for v in o.results)
        if o.operands:
            out += number(len(o.operands)) + b"".join(number(values[v]) for v in o.operands)
        for result in o.results:
            values[result] = len(values)
        if o.bodies:
            out += flagged(len(o.bodies), o.isolated) + b"".join(self.region(body, o, values) for body in o.bodies)
        return out

    def region(self, body: WrittenBody, o: OperationRecord, values: dict[WrittenValue, int]) -> bytes:
        known: dict[WrittenValue, int] = {} if o.isolated else dict(values)
        before = len(known)
        inner = self.block(body, known)
        data = number(1) + number(len(known) - before) + inner if body.operations or body.arguments else number(0)
        return section(IR, data) if o.isolated else data

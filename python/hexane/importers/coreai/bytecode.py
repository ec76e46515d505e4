"""The container format of MLIR bytecode, version 6: its sections and their tables.

Source: assets that Apple's converter wrote, read byte by byte and compared with the output of Apple's reader.
"""

from dataclasses import dataclass
from functools import cached_property

from hexane.importers.coreai.cursor import Cursor, decoded

MAGIC = b"ML\xefR"
VERSION = 6  # version of the bytecode format
DIALECT, DIALECT_VERSION = "aicode", 2
STRINGS, DIALECTS, ENTRIES, OFFSETS, IR, RESOURCES, RESOURCE_OFFSETS, DIALECT_VERSIONS, PROPERTIES = range(9)
NAMES = (
    "strings", "dialects", "attributes and types", "their sizes", "operations", "resources", "sizes of resources",
    "dialect versions", "properties",
)  # fmt: skip
NEEDED = (STRINGS, DIALECTS, ENTRIES, OFFSETS, IR)
PADDING = 0xCB


@dataclass(frozen=True, slots=True)
class Section:
    data: memoryview
    base: int  # offset in the file


@dataclass(frozen=True, slots=True)
class Blob:
    """A resource: a constant too large for an attribute. offset: in the file."""

    key: str
    data: memoryview
    offset: int


class Bytecode:
    """The tables of a file. Raises Error, with the offset, if a table exceeds the file or refers to a missing entry.

    ops: the dialect and the name of each kind of operation. attributes, types: the dialect and the bytes of each entry.
    blobs: the resources. producer: the program that wrote the file.
    """

    def __init__(self, data: bytes | memoryview, file: str) -> None:
        self.data, self.file = data, file
        whole = Cursor(memoryview(data), 0, file)
        if bytes(whole.data[:4]) != MAGIC:
            whole.fail(f"got the first bytes {bytes(whole.data[:4])!r}, need those of MLIR bytecode, {MAGIC!r}")
        whole.at = 4
        if (version := whole.number()) != VERSION:
            whole.fail(f"got bytecode of version {version}, need {VERSION}", 4)
        self.producer = whole.text()
        self.sections = self._sections(whole)
        self.strings = self._strings()
        self.dialects: list[str] = []
        self.versions: list[int | None] = []
        self.ops: list[tuple[str, str]] = []
        self._dialects()
        self.attributes: list[tuple[str, Section]] = []
        self.types: list[tuple[str, Section]] = []
        self._entries()
        if DIALECT in self.dialects:
            dialect = self.versions[self.dialects.index(DIALECT)]
            if dialect is None or dialect > DIALECT_VERSION:
                whole.fail(f"got the dialect {DIALECT} of version {dialect}, need {DIALECT_VERSION} at most", 0)

    def cursor(self, section: Section) -> Cursor:
        return Cursor(section.data, section.base, self.file)

    def _sections(self, whole: Cursor) -> dict[int, Section]:
        sections: dict[int, Section] = {}
        while not whole.is_at_end:
            start = whole.at
            kind, section = read_section(whole)
            if kind >= len(NAMES):
                whole.fail(f"got a section of kind {kind}, need one of 0 to {len(NAMES) - 1}", start)
            if kind in sections:
                whole.fail(f"got the section of {NAMES[kind]} twice", start)
            sections[kind] = section
        for kind in NEEDED:
            if kind not in sections:
                whole.fail(f"got no section of {NAMES[kind]}")
        return sections

    def _strings(self) -> list[str]:
        cursor = self.cursor(self.sections[STRINGS])
        sizes = [cursor.number() for _ in range(cursor.count("strings"))]
        strings = []
        for size in reversed(sizes):
            start, raw = cursor.at, bytes(cursor.take(size))
            if not raw or raw[-1] != 0:
                cursor.fail("got a string that does not end with NUL", start)
            strings.append(decoded(raw[:-1], cursor, start))
        return strings

    def string(self, cursor: Cursor) -> str:
        return self.strings[cursor.index(len(self.strings), "string")]

    def _dialects(self) -> None:
        cursor = self.cursor(self.sections[DIALECTS])
        for _ in range(cursor.count("dialects")):
            start, (name, has_version) = cursor.at, cursor.flagged()
            if name >= len(self.strings):
                cursor.fail(f"got the string {name}, need one below {len(self.strings)}", start)
            self.dialects.append(self.strings[name])
            self.versions.append(self.cursor(read_section(cursor)[1]).number() if has_version else None)
        total = cursor.count("names of operations")
        while not cursor.is_at_end:
            dialect = self.dialects[cursor.index(len(self.dialects), "dialect")]
            for _ in range(cursor.count("names of operations")):
                start, (name, _registered) = cursor.at, cursor.flagged()
                if name >= len(self.strings):
                    cursor.fail(f"got the string {name}, need one below {len(self.strings)}", start)
                self.ops.append((dialect, self.strings[name]))
        if len(self.ops) != total:
            cursor.fail(f"got {len(self.ops)} names of operations, need the {total} that were announced")

    def _entries(self) -> None:
        sizes, entries = self.cursor(self.sections[OFFSETS]), self.cursor(self.sections[ENTRIES])
        wanted = sizes.count("attributes"), sizes.count("types")
        for table, total in zip((self.attributes, self.types), wanted, strict=True):
            while len(table) < total:
                dialect = self.dialects[sizes.index(len(self.dialects), "dialect")]
                count = sizes.count("entries")
                if not 0 < count <= total - len(table):
                    sizes.fail(f"got a group of {count} entries, need 1 to {total - len(table)}")
                for _ in range(count):
                    size, _custom = sizes.flagged()
                    base = entries.base + entries.at
                    table.append((dialect, Section(entries.take(size), base)))

    @cached_property
    def blobs(self) -> list[Blob]:
        if RESOURCE_OFFSETS not in self.sections or RESOURCES not in self.sections:
            return []
        sizes, data = self.cursor(self.sections[RESOURCE_OFFSETS]), self.cursor(self.sections[RESOURCES])
        blobs: list[Blob] = []
        if outside := sizes.number():
            sizes.fail(f"got {outside} resources outside of the dialects, need none", 0)
        while not sizes.is_at_end:
            sizes.index(len(self.dialects), "dialect")
            for _ in range(sizes.count("resources")):
                key, size, kind = self.string(sizes), sizes.number(), sizes.byte()
                if kind:
                    sizes.fail(f"got a resource of kind {kind}, need a blob (0)")
                start = data.at
                inner = Cursor(data.take(size), data.base + start, self.file)
                alignment = inner.number()
                length = inner.number()
                _skip_padding(inner, alignment)
                offset = inner.base + inner.at
                blobs.append(Blob(key, inner.take(length), offset))
                if not inner.is_at_end:
                    inner.fail(f"got {size - inner.at} bytes behind a resource, need none")
        return blobs

    @cached_property
    def properties(self) -> list[Section]:
        """Returns the bytes of each entry of the properties section."""
        if PROPERTIES not in self.sections:
            return []
        cursor = self.cursor(self.sections[PROPERTIES])
        sections = []
        for _ in range(cursor.count("properties")):
            size = cursor.number()
            base = cursor.base + cursor.at
            sections.append(Section(cursor.take(size), base))
        return sections


def read_section(cursor: Cursor) -> tuple[int, Section]:
    """Returns the kind and the contents of the section at the cursor."""
    kind = cursor.byte()
    size = cursor.number()
    if kind & 0x80:
        _skip_padding(cursor, cursor.number())
    base = cursor.base + cursor.at
    return kind & 0x7F, Section(cursor.take(size), base)


def _skip_padding(cursor: Cursor, alignment: int) -> None:
    """Skips the padding up to the next multiple of the alignment in the file."""
    if alignment == 0 or alignment & (alignment - 1):
        cursor.fail(f"got an alignment of {alignment}, need a power of two")
    while (cursor.base + cursor.at) % alignment:
        if (byte := cursor.byte()) != PADDING:
            cursor.fail(f"got the padding 0x{byte:02x}, need 0x{PADDING:02x}", cursor.at - 1)

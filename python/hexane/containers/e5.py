"""A program of Core ML's runtime (.e5): a FlatBuffer, of which the engine's programs are one kind of operation.

    root: [names of symbols], [(key, value) of the build], [sections], version of the format

Source: the ANE guide (chapter 23): the fields and their order, seven pairs, version 4. A FlatBuffer says where its
fields are but not what they are, so a file of another order is refused where the order shows, by the byte. What is
inside a section is not published.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hexane.containers.file_bytes import FileBytes

VERSION = 4


@dataclass(frozen=True, slots=True)
class E5:
    """What an .e5 file has. sections: the offset of each in the file."""

    version: int
    symbols: tuple[str, ...]
    build: tuple[tuple[str, str], ...]
    sections: tuple[int, ...]


def read_e5(data: bytes) -> E5:
    """What the file has. Raises Error, which names the byte, for what is no such file, and for what leads out of it."""
    file = _FlatBuffer(data, "e5")
    root = file.reference(0, "root")
    symbols, build, sections, version = (file.field(root, slot, "root") for slot in range(4))
    if version is None:
        raise file.fail(root, "root: got no fourth field, need the version of the format")
    number = file.number(version, 4, "version of the format")
    if number != VERSION:
        raise file.fail(version, f"version of the format: got {number}, need {VERSION}")
    pairs = tuple(file.pair(table) for table in file.references(build, "build information"))
    names = tuple(file.string(at, "name of a symbol") for at in file.references(symbols, "names of symbols"))
    tables = tuple(file.references(sections, "sections"))
    for table in tables:
        file.vtable(table, "section")
    return E5(number, names, pairs, tables)


class _FlatBuffer(FileBytes):
    """Tables, strings and vectors by the rules of FlatBuffers."""

    def reference(self, at: int, what: str) -> int:
        """Where the offset at this place leads, which is always forward."""
        to = at + self.number(at, 4, what)
        if to == at or to + 4 > len(self.data):
            raise self.fail(at, f"{what}: got an offset to byte {to}, need one inside a file of {len(self.data)} bytes")
        return to

    def vtable(self, table: int, what: str) -> tuple[int, int, int]:
        """Where the table's offsets of fields are, their bytes, and the bytes of the table."""
        at = table - self.number(table, 4, what, signed=True)
        size, table_bytes = self.number(at, 2, f"{what}: vtable"), self.number(at + 2, 2, f"{what}: vtable")
        if size < 4 or size % 2 or table_bytes < 4:
            raise self.fail(
                at, f"{what}: got a vtable of {size} bytes for {table_bytes}, need 4 or more, an even number"
            )
        self.check(at, size, f"{what}: vtable")
        self.check(table, table_bytes, what)
        return at, size, table_bytes

    def field(self, table: int, slot: int, what: str) -> int | None:
        """Where a field of a table is, all of whose fields have four bytes or more; None where it is absent."""
        at, size, table_bytes = self.vtable(table, what)
        entry = 4 + 2 * slot
        offset = self.number(at + entry, 2, what) if entry < size else 0
        if not offset:
            return None
        if offset < 4 or offset + 4 > table_bytes:
            raise self.fail(
                at + entry, f"{what}: got field {slot} at {offset}, need it in a table of {table_bytes} bytes"
            )
        return table + offset

    def references(self, field: int | None, what: str) -> Iterator[int]:
        """What the elements of a vector of tables or strings are at; none for an absent field."""
        if field is None:
            return
        vector = self.reference(field, what)
        count = self.number(vector, 4, what)
        self.check(vector + 4, 4 * count, what)
        for i in range(count):
            yield self.reference(vector + 4 + 4 * i, what)

    def string(self, at: int, what: str) -> str:
        size = self.number(at, 4, what)
        text = self.text(at + 4, size, what)
        if self.number(at + 4 + size, 1, what):
            raise self.fail(at + 4 + size, f"{what}: got no zero byte behind it, need one")
        return text

    def pair(self, table: int) -> tuple[str, str]:
        """A key and its value."""
        fields = [self.field(table, slot, "build information") for slot in range(2)]
        if fields[0] is None:
            raise self.fail(table, "build information: got a value without a key, need both")
        key, value = (
            "" if field is None else self.string(self.reference(field, "build information"), "build information")
            for field in fields
        )
        return key, value

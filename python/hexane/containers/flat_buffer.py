"""FlatBuffer files: tables, vectors and strings at offsets, with every offset checked."""

from collections.abc import Iterator

from hexane.containers.file_bytes import FileBytes


class FlatBuffer(FileBytes):
    """Tables, strings and vectors by the rules of FlatBuffers."""

    def reference(self, at: int, what: str) -> int:
        """The target of the offset stored at `at`. Offsets always lead forward."""
        to = at + self.number(at, 4, what)
        if to == at or to + 4 > len(self.data):
            raise self.fail(at, f"{what}: got an offset to byte {to}, need one inside a file of {len(self.data)} bytes")
        return to

    def vtable(self, table: int, what: str) -> tuple[int, int, int]:
        """The offset of the table's vtable, the size of the vtable in bytes, and the size of the table."""
        at = table - self.number(table, 4, what, signed=True)
        size, table_bytes = self.number(at, 2, f"{what}: vtable"), self.number(at + 2, 2, f"{what}: vtable")
        if size < 4 or size % 2 or table_bytes < 4:
            raise self.fail(
                at, f"{what}: got a vtable of {size} bytes for {table_bytes}, need 4 or more, an even number"
            )
        self.check(at, size, f"{what}: vtable")
        self.check(table, table_bytes, what)
        return at, size, table_bytes

    def field(self, table: int, slot: int, what: str, field_bytes: int = 4) -> int | None:
        """The offset of a table's field; None for an absent field."""
        at, size, table_bytes = self.vtable(table, what)
        entry = 4 + 2 * slot
        offset = self.number(at + entry, 2, what) if entry < size else 0
        if not offset:
            return None
        if offset < 4 or offset + field_bytes > table_bytes:
            raise self.fail(
                at + entry, f"{what}: got field {slot} at {offset}, need it in a table of {table_bytes} bytes"
            )
        return table + offset

    def references(self, field: int | None, what: str) -> Iterator[int]:
        """The offsets of the elements in a vector of tables or strings. Yields nothing for an absent field."""
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

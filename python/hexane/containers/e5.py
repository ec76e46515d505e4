"""A program of Core ML's runtime (.e5), which is a FlatBuffer. Some of its operations run engine programs.

  root: [names of symbols], [(key, value) of the build], [sections], version of the format

Source: the ANE guide (chapter 23): the fields and their order, seven pairs of build information, version 4. A
FlatBuffer tells the offsets of fields but not their meaning. So a file whose fields have another order is refused only
if a field does not have the expected form. The contents of sections are not published.
"""

from dataclasses import dataclass

from hexane.containers.flat_buffer import FlatBuffer

VERSION = 4


@dataclass(frozen=True, slots=True)
class E5:
    """The contents of an .e5 file. sections: the offset of each in the file."""

    version: int
    symbols: tuple[str, ...]
    build: tuple[tuple[str, str], ...]
    sections: tuple[int, ...]


def read_e5(data: bytes) -> E5:
    """The file's contents. Raises Error, with the offset in the file, for another format, and for a reference that
    leaves the file."""
    file = _File(data, "e5")
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


class _File(FlatBuffer):
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

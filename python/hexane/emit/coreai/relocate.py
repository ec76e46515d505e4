"""Rewrites the source locations of an asset's operations: for files that today's systems refuse, and for authors who
keep their paths private. Numbers, names and the order of operations are unchanged."""

from collections.abc import Iterable, Mapping

from hexane.emit.coreai.bytecode import aligned_section, flagged, number, resource_sections, section, strings_of
from hexane.importers.coreai.asset import ASSET, FUNCTION, FUNCTION_PROPERTIES, Asset
from hexane.importers.coreai.attributes import Attributes
from hexane.importers.coreai.bytecode import (
    DIALECT,
    ENTRIES,
    MAGIC,
    OFFSETS,
    RESOURCE_OFFSETS,
    RESOURCES,
    STRINGS,
    VERSION,
    Bytecode,
    Section,
)
from hexane.importers.coreai.cursor import Cursor
from hexane.importers.coreai.operations import walk

FILE, SOURCE, LOCATION, UNIT = 30, 31, 40, 46
LOCATIONS = frozenset((FILE, SOURCE, 32, 33, 34, 35, 36, LOCATION))  # kinds of source locations


def repaired(asset: Asset) -> bytes:
    """Returns the program for today's systems, with attributes of another dialect replaced by the minimal location."""
    return _relocated(asset, strips=False)


def stripped(asset: Asset) -> bytes:
    """Returns the program without its author's files, lines and modules."""
    return _relocated(asset, strips=True)


def _relocated(asset: Asset, strips: bool) -> bytes:
    old = asset.bytecode
    strings = list(old.strings)
    place = {text: _place(strings, text) for text in ("-", "")}
    # The minimal location: a file, a line of the file, no scope, and a location of these three parts.
    first = len(old.attributes)
    least = number(LOCATION) + number(first + 1) + number(first + 2) + number(0) + number(0)
    appended = [
        number(FILE) + number(place["-"]) + number(place[""]) * 2,
        number(SOURCE) + number(first) + number(0) * 4,
        number(UNIT),
    ]
    entries = []
    for dialect, entry in old.attributes:
        kind = Cursor(entry.data, entry.base, old.file).number() if len(entry.data) else -1
        if dialect != DIALECT or (strips and kind == LOCATION):
            entries.append(least)
        elif strips and kind in (FILE, SOURCE):
            entries.append(appended[kind - FILE])
        else:
            entries.append(bytes(entry.data))
    if strips:
        used = _used(asset)
        strings = [text if i in used or text in ("-", "") else "" for i, text in enumerate(strings)]
    return _written(old, strings, [*entries, *appended])


def _place(strings: list[str], text: str) -> int:
    if text not in strings:
        strings.append(text)
    return strings.index(text)


def _written(old: Bytecode, strings: list[str], attributes: list[bytes]) -> bytes:
    """Returns the file with these strings and attributes, and its other sections unchanged."""
    aicode = old.dialects.index(DIALECT)
    types = [bytes(entry.data) for _, entry in old.types]
    sizes = number(len(attributes)) + number(len(types))
    for table in (attributes, types):
        sizes += number(aicode) + number(len(table)) + b"".join(flagged(len(e), True) for e in table) if table else b""
    changed = {STRINGS: strings_of(strings), OFFSETS: sizes, ENTRIES: b"".join((*attributes, *types))}
    out = MAGIC + number(VERSION) + old.producer.encode() + b"\0"
    for kind, held in old.sections.items():
        if kind == RESOURCES:
            continue
        if kind == RESOURCE_OFFSETS:
            blobs = [(old.strings.index(blob.key), bytes(blob.data)) for blob in old.blobs]
            described, data = resource_sections(blobs, aicode)
            out += section(RESOURCE_OFFSETS, described)
            out += aligned_section(RESOURCES, data, 16, len(out))
            continue
        out += section(kind, changed.get(kind, bytes(held.data)))
    return out


# ---- strings that are used outside locations ----


class _Traced(Attributes):
    """Attributes that record the strings they read."""

    def __init__(self, bytecode: Bytecode) -> None:
        super().__init__(bytecode)
        self.strings: set[int] = set()

    def _text(self, c: Cursor) -> str:
        start = c.at
        self.strings.add(c.number())
        c.at = start
        return super()._text(c)


def _used(asset: Asset) -> set[int]:
    """Returns the indices of strings that are names of operations or resources, or that types, dictionaries or
    properties use."""
    old = asset.bytecode
    names = {name for pair in old.ops for name in (*pair, f"{pair[0]}.{pair[1]}")} | {*old.dialects}
    names |= {blob.key for blob in old.blobs}
    used = {i for i, text in enumerate(old.strings) if text in names}
    traced = _Traced(old)
    entry = Cursor(memoryview(b""), 0, old.file)
    for i in range(len(old.types)):
        traced.type_at(i, entry)
    for operation in walk(asset.root):
        if operation.dictionary is not None:
            traced.at(operation.dictionary, entry)
        if operation.properties is not None:
            for i in _indices(old, old.properties[operation.properties], OPTIONAL.get(operation.name)):
                traced.at(i, entry)
    return used | traced.strings


OPTIONAL: Mapping[str, tuple[bool, ...]] = {
    ASSET: (True, True),
    FUNCTION: tuple(name.endswith("?") for name in FUNCTION_PROPERTIES),
}


def _indices(old: Bytecode, properties: Section, optional: tuple[bool, ...] | None) -> Iterable[int]:
    cursor, place = old.cursor(properties), 0
    while not cursor.is_at_end:
        value = cursor.number()
        if optional is not None and place < len(optional) and optional[place]:
            if value & 1:
                yield value >> 1
        elif value < len(old.attributes):
            yield value
        place += 1

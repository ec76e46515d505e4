"""The fields of task descriptors: bits of registers, under the names in published tables."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from hexane.errors import Error
from hexane.targets.descriptors import descriptors
from hexane.targets.fact import Place, check_source, convert, error
from hexane.targets.tables import table

FILE = "shared/descriptor_fields.toml"
HEADER = "header"
BYTES = 4  # bytes of a word
BITS = 8 * BYTES


@dataclass(frozen=True, slots=True)
class Field:
    """A field: `bits` bits of a register, of which `bit` is the lowest. word: the index in its block. offset: of the
    word in a descriptor, in bytes; None if no source places the block. note: for a disputed field, the evidence against
    it."""

    version: int
    block: str
    name: str
    word: int
    bit: int
    bits: int
    offset: int | None
    source: str
    status: str
    note: str = ""

    @property
    def path(self) -> str:
        """ "common.ConvCfg.Kw"."""
        return f"{self.block}.{self.name}"

    @property
    def most(self) -> int:
        """The greatest value."""
        return (1 << self.bits) - 1


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """A block of a descriptor. `header`: the word in front of its words; None for the descriptor's own header."""

    block: str
    offset: int
    words: int
    header: int | None


@cache
def descriptor_blocks(version: int) -> tuple[BlockPlace, ...]:
    """The places of a version's blocks in its descriptors, in order. Empty if no source gives the places."""
    rows = [b for d in descriptors() if d.generation == version for b in d.blocks if b.header is not None]
    if not rows:
        return ()
    header = int(table("descriptor_fields")["header_words"][str(version)])
    places, at = [BlockPlace(HEADER, 0, header, None)], BYTES * header
    for row in rows:
        words = row.bytes // 4 + 1  # a stream's header has the count of its words minus 1
        places.append(BlockPlace(row.block, at + 4, words, row.header))
        at += 4 + 4 * words
    return tuple(places)


def descriptor_bytes(version: int) -> int:
    """The size of a descriptor; 0 if no source gives it."""
    blocks = descriptor_blocks(version)
    return blocks[-1].offset + 4 * blocks[-1].words if blocks else 0


@cache
def descriptor_fields(version: int) -> tuple[Field, ...]:
    """The fields of a version, by block, word and bit. Raises Error for a version without a published table, and for a
    broken file."""
    given = table("descriptor_fields")
    if str(version) not in given:
        known = " and ".join(sorted(set(given) - {"header_words", "sources", "unplaced"}))
        raise Error(f"[descriptors] version {version}: got no published table of its fields, need version {known}")
    place = Place(FILE, "", "")
    offsets = {b.block: b.offset for b in descriptor_blocks(version)}
    sources = given["sources"][str(version)]
    fields = []
    for block, by_status in given[str(version)].items():
        for status, rows in by_status.items():
            path = f"{version}.{block}.{status}"
            if status not in sources:
                raise error(place, path, status, f"a status with a source: {', '.join(sources)}")
            source, _ = check_source(place, f"sources.{version}", {"source": sources[status], "status": status})
            for row in rows:
                fields += _fields(place, path, version, block, row, offsets.get(block), source, status)
    return tuple(sorted(fields, key=lambda f: (list(given[str(version)]).index(f.block), f.word, f.bit)))


def unplaced_names(version: int) -> tuple[str, ...]:
    """Fields that a published printout names, but no table places."""
    return tuple(table("descriptor_fields")["unplaced"].get(str(version), ()))


def _fields(
    place: Place, path: str, version: int, block: str, row: Any, offset: int | None, source: str, status: str
) -> list[Field]:
    need = 5 if status == "disputed" else 4
    if not isinstance(row, list) or len(row) != need:
        raise error(place, path, row, f"a list of {need}: register.field, word, bit, bits")
    kinds = (str, int, int, int, str)[:need]
    values = [convert(place, path, value, kind) for value, kind in zip(row, kinds, strict=True)]
    name, word, bit, bits, note = (*values, "")[:5]
    if not (bit >= 0 and bits > 0 and bit + bits <= BITS and word >= 0):
        raise error(place, path, row, "bits inside a word of 32")
    repeated = re.search(r"\[(\d+)\]", name)
    count = int(repeated[1]) if repeated else 1
    return [
        Field(
            version=version,
            block=block,
            name=name.replace(repeated[0], f"[{i}]") if repeated else name,
            word=word + i,
            bit=bit,
            bits=bits,
            offset=None if offset is None else offset + 4 * (word + i),
            source=source,
            status=status,
            note=note,
        )
        for i in range(count)
    ]

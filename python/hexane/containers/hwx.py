"""A program of the engine as the compiler's last stage writes it (.hwx): a Mach-O file of 64 bits with a magic of its
own.

    mach_header_64 | load commands: segments with their sections, symbols, .. | task descriptors (__text) | weights (__KERN_0, ..) | ..

Sources: the ANE guide (chapter 23 and appendix C) for magic, processor and sections; Mach-O itself for the layout.
"""  # noqa: E501

from dataclasses import dataclass

from hexane.containers.file_bytes import FileBytes
from hexane.targets.query import chip_names, load_chip

MAGIC = 0xBEEFFACE
CPU_TYPE = 0x80
_SEGMENT, _SYMBOLS = 0x19, 0x2
_COMMANDS = {0x2: "symbols", 0x4: "thread", 0x5: "unix thread", 0x19: "segment", 0x1B: "uuid"}
_HEADER_BYTES, _SEGMENT_BYTES, _SECTION_BYTES, _SYMBOL_BYTES = 32, 72, 80, 16
_NO_BYTES = 1  # In the low byte of a section's flags: the section has no bytes in the file.
_STAB = 0x20  # The kind of a symbol whose name describes a shape.


@dataclass(frozen=True, slots=True)
class Section:
    """Part of a segment. offset: of its bytes in the file; None if the file has no bytes for it."""

    name: str
    address: int
    bytes: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class Segment:
    """A range of the engine's address space, and the bytes of the file that are loaded there (0: a window without
    contents)."""

    name: str
    address: int
    address_bytes: int
    offset: int
    bytes: int
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol of the program. kind: the byte with the symbol's kind."""

    name: str
    kind: int
    value: int


@dataclass(frozen=True, slots=True)
class Hwx:
    """The contents of an .hwx file. commands: the kind and the number of bytes of each load command, in order."""

    cpu_subtype: int
    file_type: int
    flags: int
    commands: tuple[tuple[str, int], ...]
    segments: tuple[Segment, ...]
    symbols: tuple[Symbol, ...]

    @property
    def chips(self) -> tuple[str, ...]:
        """The targets that have the file's `cpu_subtype`. Targets without a known product are left out if others
        remain."""
        every = [name for name in chip_names(all=True) if load_chip(name).cpu_subtype == self.cpu_subtype]
        return tuple(name for name in every if load_chip(name).known) or tuple(every)

    @property
    def text_bytes(self) -> int:
        """Bytes of task descriptors."""
        return sum(s.bytes for segment in self.segments for s in segment.sections if s.name.lower() == "__text")

    @property
    def weight_bytes(self) -> int:
        """Bytes of the sections __KERN_0, __KERN_1, .."""
        return sum(s.bytes for segment in self.segments for s in segment.sections if _is_kernel(segment, s))

    @property
    def shapes(self) -> tuple[str, ...]:
        """The names of symbols that describe shapes and strides, unchanged."""
        return tuple(symbol.name for symbol in self.symbols if symbol.kind == _STAB)


def read_hwx(data: bytes) -> Hwx:
    """The file's contents. Raises Error, with the byte, for another format, and for a reference that leaves the
    file."""
    file = FileBytes(data, "hwx")
    magic = file.number(0, 4, "magic")
    if magic != MAGIC:
        raise file.fail(0, f"magic: got {magic:#x}, need {MAGIC:#x}")
    cpu_type, cpu_subtype, file_type, count, size, flags = (
        file.number(offset, 4, "header") for offset in range(4, 28, 4)
    )
    if cpu_type != CPU_TYPE:
        raise file.fail(4, f"cputype: got {cpu_type:#x}, need {CPU_TYPE:#x}")
    file.check(_HEADER_BYTES, size, "load commands")
    if count * 8 > size:
        raise file.fail(16, f"ncmds: got {count} load commands in {size} bytes, need 8 bytes for each at least")
    at, end = _HEADER_BYTES, _HEADER_BYTES + size
    commands: list[tuple[str, int]] = []
    segments: list[Segment] = []
    symbols: tuple[Symbol, ...] | None = None
    for index in range(count):
        where = f"load command {index}"
        kind, length = file.number(at, 4, where), file.number(at + 4, 4, where)
        if length < 8 or at + length > end:
            raise file.fail(at + 4, f"{where}: got {length} bytes, need 8 at least and an end before byte {end}")
        if kind == _SEGMENT:
            segments.append(_segment(file, at, length))
        elif kind == _SYMBOLS:
            if symbols is not None:
                raise file.fail(at, f"{where}: got a second table of symbols, need one")
            symbols = _symbols(file, at, length)
        commands.append((_COMMANDS.get(kind, f"{kind:#x}"), length))
        at += length
    return Hwx(cpu_subtype, file_type, flags, tuple(commands), tuple(segments), symbols or ())


def _segment(file: FileBytes, at: int, length: int) -> Segment:
    if length < _SEGMENT_BYTES:
        raise file.fail(at + 4, f"segment: got {length} bytes, need {_SEGMENT_BYTES} at least")
    name = file.padded(at + 8, 16, "segment name")
    where = f"segment {name}"
    address, address_bytes, offset, size = (file.number(at + 24 + 8 * i, 8, where) for i in range(4))
    count = file.number(at + 64, 4, where)
    if _SEGMENT_BYTES + count * _SECTION_BYTES > length:
        raise file.fail(at + 64, f"{where}: got {count} sections in {length} bytes, need {_SECTION_BYTES} for each")
    file.check(offset, size, where)
    segment = Segment(name, address, address_bytes, offset, size, ())
    first = at + _SEGMENT_BYTES
    sections = tuple(_section(file, first + i * _SECTION_BYTES, segment) for i in range(count))
    return Segment(name, address, address_bytes, offset, size, sections)


def _section(file: FileBytes, at: int, segment: Segment) -> Section:
    name = file.padded(at, 16, "section name")
    where = f"section {segment.name},{name}"
    address, size = file.number(at + 32, 8, where), file.number(at + 40, 8, where)
    if address < segment.address or address + size > segment.address + segment.address_bytes:
        need = f"{segment.address:#x} to {segment.address + segment.address_bytes:#x}"
        raise file.fail(
            at + 32, f"{where}: got the addresses {address:#x} to {address + size:#x}, need some of {need}, its segment"
        )
    if not segment.bytes or file.number(at + 64, 4, where) & 0xFF == _NO_BYTES:
        return Section(name, address, size, None)
    offset = file.number(at + 48, 4, where)
    if size and (offset < segment.offset or offset + size > segment.offset + segment.bytes):
        need = f"{segment.offset} to {segment.offset + segment.bytes}"
        raise file.fail(
            at + 48, f"{where}: got the bytes {offset} to {offset + size}, need some of {need}, its segment"
        )
    return Section(name, address, size, offset)


def _symbols(file: FileBytes, at: int, length: int) -> tuple[Symbol, ...]:
    if length < 24:
        raise file.fail(at + 4, f"symbols: got {length} bytes, need 24")
    first, count, names, names_bytes = (file.number(at + 8 + 4 * i, 4, "symbols") for i in range(4))
    file.check(first, count * _SYMBOL_BYTES, "symbols")
    file.check(names, names_bytes, "names of symbols")
    result = []
    for index in range(count):
        entry = first + index * _SYMBOL_BYTES
        where = f"symbol {index}"
        name = file.ended(names + file.number(entry, 4, where), names + names_bytes, where)
        result.append(Symbol(name, file.number(entry + 4, 1, where), file.number(entry + 8, 8, where)))
    return tuple(result)


def _is_kernel(segment: Segment, section: Section) -> bool:
    return any(name.upper().startswith("__KERN_") for name in (segment.name, section.name))

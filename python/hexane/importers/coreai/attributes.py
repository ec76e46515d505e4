"""The types and attributes of the dialect `aicode`, each decoded at its first use.

Source: assets that Apple's converter wrote. Apple's reader gives the same values for all these assets.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hexane.importers.coreai.bytecode import DIALECT, Bytecode, Section
from hexane.importers.coreai.cursor import Cursor

DEEPEST = 32  # levels of nested attributes
MOST_AXES = 64
DYNAMIC = -(1 << 63)  # the extent of an axis of unknown size
ELEMENTS = {
    4: "bool", 5: "f64", 6: "f32", 7: "f16", 8: "bf16", 9: "f8E5M2", 10: "f8E4M3FN",
    11: "complex<f64>", 12: "complex<f32>", 13: "complex<f16>", 14: "complex<bf16>", 15: "complex<f8E5M2>",
    16: "complex<f8E4M3FN>",
    17: "si64", 18: "si32", 19: "si16", 20: "si8", 21: "si4", 22: "si2",
    23: "ui64", 24: "ui32", 25: "ui16", 26: "ui8", 27: "ui4", 28: "ui2", 29: "ui1", 36: "ui6", 37: "ui3",
    38: "tf32", 46: "f4E2M1FN", 47: "f8E8M0FN",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scalar:
    """The type of a scalar: the name of its dtype."""

    element: str

    def __str__(self) -> str:
        return self.element


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor type. shape: an extent is None if only known at run time. encoding: how the numbers are stored, if not
    densely; for a port, its layout in memory."""

    shape: tuple[int | None, ...]
    element: str
    encoding: Any = None

    def __str__(self) -> str:
        return f"{self.element}[{', '.join('?' if d is None else str(d) for d in self.shape)}]"


@dataclass(frozen=True, slots=True)
class Handle:
    """The type of a state: a tensor that lives between calls."""

    of: Tensor

    def __str__(self) -> str:
        return f"state of {self.of}"


@dataclass(frozen=True, slots=True)
class Function:
    operands: tuple[Any, ...]
    results: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Image:
    """The type of an image port. fourcc: the system's four-letter code of the pixel format."""

    fourcc: str
    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.fourcc} image of {self.height}x{self.width}"


@dataclass(frozen=True, slots=True)
class Other:
    """A type or an attribute of which only the kind is decoded."""

    kind: int
    what: str = ""

    def __str__(self) -> str:
        return self.what or f"kind {self.kind}"


@dataclass(frozen=True, slots=True)
class Named:
    """A named list of values, such as the name and the description of a composite."""

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Dense:
    """The numbers of a constant. splat: one number stands for all elements. offset: in the file."""

    data: memoryview
    splat: bool
    offset: int


@dataclass(frozen=True, slots=True)
class Resource:
    """A constant whose numbers are the blob of this index."""

    index: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """The path of names to a function."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line of the model's source code."""

    file: str
    directory: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Location:
    """The origin of an operation. metadata: the converter's notes, by name."""

    source: SourceLocation | None
    metadata: tuple[Named, ...]
    fused: tuple[Any, ...] = ()


TOKEN, UNIT = Other(32, "token"), Other(46, "unit")


class Attributes:
    """The types and attributes of a file, by index."""

    def __init__(self, bytecode: Bytecode) -> None:
        self.bytecode = bytecode
        self._known: dict[int, Any] = {}
        self._known_types: dict[int, Any] = {}
        self._depth = 0

    def attribute(self, cursor: Cursor) -> Any:
        return self.at(cursor.index(len(self.bytecode.attributes), "attribute"), cursor)

    def type(self, cursor: Cursor) -> Any:
        return self.type_at(cursor.index(len(self.bytecode.types), "type"), cursor)

    def at(self, number: int, cursor: Cursor) -> Any:
        return self._entry(number, self.bytecode.attributes, self._known, self._attribute, cursor)

    def type_at(self, number: int, cursor: Cursor) -> Any:
        return self._entry(number, self.bytecode.types, self._known_types, self._type, cursor)

    def _entry(
        self,
        number: int,
        table: list[tuple[str, Section]],
        known: dict[int, Any],
        read: Callable[[Cursor], Any],
        cursor: Cursor,
    ) -> Any:
        if number in known:
            return known[number]
        dialect, section = table[number]
        if dialect != DIALECT:
            known[number] = Other(-1, f"an entry of the dialect {dialect}")
            return known[number]
        if self._depth >= DEEPEST:
            cursor.fail(f"got attributes in attributes, more than {DEEPEST} deep")
        self._depth += 1
        try:
            known[number] = read(self.bytecode.cursor(section))
        finally:
            self._depth -= 1
        return known[number]

    # ---- types ----

    def _type(self, c: Cursor) -> Any:
        kind = c.number()
        if kind in ELEMENTS:
            return Scalar(ELEMENTS[kind])
        match kind:
            case 2 | 3:
                shape = self._shape(c)
                element = self.type(c)
                if not isinstance(element, Scalar):
                    c.fail(f"got elements of {element}, need a type of numbers")
                return Tensor(shape, element.element, self.attribute(c) if kind == 3 else None)
            case 30:
                results = self._types(c)
                return Function(self._types(c), results)
            case 31:
                inner = self.type(c)
                if not isinstance(inner, Tensor):
                    c.fail(f"got a handle of {inner}, need one of a tensor")
                return Handle(inner)
            case 32:
                return TOKEN
            case 39 | 40:
                code = self.attribute(c)
                return Image(str(code), c.number(), c.number())
        return Other(kind)

    def _types(self, c: Cursor) -> tuple[Any, ...]:
        return tuple([self.type(c) for _ in range(c.count("types"))])

    def _shape(self, c: Cursor) -> tuple[int | None, ...]:
        rank = c.count("axes")
        if rank > MOST_AXES:
            c.fail(f"got {rank} axes, need {MOST_AXES} at most")
        shape = []
        for _ in range(rank):
            start, extent = c.at, c.signed()
            if extent < 0 and extent != DYNAMIC:
                c.fail(f"got an axis of {extent}, need 0 or more", start)
            shape.append(None if extent == DYNAMIC else extent)
        return tuple(shape)

    # ---- attributes ----

    def _attribute(self, c: Cursor) -> Any:
        kind = c.number()
        read = _READERS.get(kind)
        return Other(kind) if read is None else read(self, c)

    def _several(self, c: Cursor) -> tuple[Any, ...]:
        return tuple([self.attribute(c) for _ in range(c.count("attributes"))])

    def _text(self, c: Cursor) -> str:
        return self.bytecode.string(c)

    def _integer(self, c: Cursor) -> int:
        width, unsigned = c.number(), c.byte()
        bits = self._bits(c, width)
        return bits - (1 << width) if not unsigned and width and bits >> (width - 1) & 1 else bits

    def _bits(self, c: Cursor, width: int) -> int:
        if width <= 8:
            return c.byte() & ((1 << width) - 1)
        if width > 64:
            words = [c.signed() & ((1 << 64) - 1) for _ in range(c.count("words"))]
            return sum(word << (64 * i) for i, word in enumerate(words)) & ((1 << min(width, 1 << 12)) - 1)
        return c.signed() & ((1 << width) - 1)

    def _float(self, c: Cursor) -> tuple[int, int]:
        """Returns the width in bits of a float, and its bits as an integer."""
        width = c.number()
        return width, self._bits(c, width)

    def _named(self, c: Cursor) -> Named:
        return Named(self._text(c), self._several(c))

    def _dense(self, c: Cursor) -> Dense:
        splat = bool(c.byte())
        data = c.take(c.number())
        return Dense(data, splat, c.base + c.at - len(data))

    def _resource(self, c: Cursor) -> Resource:
        return Resource(c.index(len(self.bytecode.blobs), "resource"))

    def _symbol(self, c: Cursor) -> Symbol:
        return Symbol(tuple([self._text(c) for _ in range(c.count("names"))]))

    def _callee(self, c: Cursor) -> Any:
        callee = self.attribute(c)
        self.type(c)
        return callee

    def _fourcc(self, c: Cursor) -> str:
        code = c.number()
        if code in (24, 32):
            return {24: "RGB24", 32: "ARGB32"}[code]
        letters = code.to_bytes(8, "big").lstrip(b"\0")
        return letters.decode("ascii", "replace") if code < 1 << 32 else f"0x{code:x}"

    def _file(self, c: Cursor) -> tuple[str, str]:
        name, directory = self._text(c), self._text(c)
        return name, directory

    def _source(self, c: Cursor) -> SourceLocation:
        file = self.attribute(c)
        if not isinstance(file, tuple) or len(file) != 2:
            c.fail("got a source location without a file, need one")
        line, column = c.number(), c.number()
        return SourceLocation(str(file[0]), str(file[1]), line, column)

    def _location(self, c: Cursor) -> Location:
        source, _scope = self.attribute(c), self.attribute(c)
        fused, metadata = self._several(c), self._several(c)
        names = tuple([m for m in metadata if isinstance(m, Named)])
        return Location(source if isinstance(source, SourceLocation) else None, names, fused)

    def _metadata(self, c: Cursor) -> Named:
        return Named(self._text(c), (self.attribute(c),))


_READERS: dict[int, Callable[[Attributes, Cursor], Any]] = {
    1: lambda self, c: self._text(c),
    2: Attributes._integer,
    3: Attributes._float,
    4: lambda self, c: self.type(c),
    5: Attributes._several,
    6: Attributes._dense,
    7: Attributes._resource,
    9: Attributes._named,
    14: Attributes._symbol,
    16: Attributes._callee,
    **{kind: lambda _, c: c.number() for kind in (17, 18, 19, 20, 25, 28, 43, 44)},
    27: Attributes._fourcc,
    30: Attributes._file,
    31: Attributes._source,
    33: lambda self, c: self.attribute(c),
    35: Attributes._metadata,
    40: Attributes._location,
    45: Attributes._several,
    46: lambda _, __: UNIT,
}


def attributes_of(described: Named) -> dict[str, Any]:
    """Returns the attributes of a composite's description, by name."""
    for entry in described.values:
        if isinstance(entry, Named) and entry.name == "op_attrs" and entry.values:
            given = entry.values[0]
            if isinstance(given, tuple):
                return {e.name: e.values[0] for e in given if isinstance(e, Named) and e.values}
    return {}

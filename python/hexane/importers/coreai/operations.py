"""The operation tree of a file: an asset, its functions, their operations and bodies."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hexane.importers.coreai.attributes import Attributes, Location
from hexane.importers.coreai.bytecode import DIALECT, IR, Bytecode, read_section
from hexane.importers.coreai.cursor import Cursor

DEEPEST = 24  # levels of nested bodies
HAS_DICTIONARY, HAS_RESULTS, HAS_OPERANDS, HAS_SUCCESSORS, HAS_REGIONS, HAS_USES, HAS_PROPERTIES = (
    0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40,
)  # fmt: skip


class Result:
    """A value: a result of an operation, or an argument of a body."""

    __slots__ = ("type",)

    def __init__(self, kind: Any) -> None:
        self.type = kind


@dataclass(slots=True)
class Body:
    """The arguments of a region, and its operations in order."""

    arguments: list[Result] = field(default_factory=list)
    operations: list["Operation"] = field(default_factory=list)


@dataclass(slots=True)
class Operation:
    """An operation. name: without the dialect if that is `aicode`. properties: an index of undecoded properties.
    offset: in the file."""

    name: str
    operands: tuple[Result, ...]
    results: tuple[Result, ...]
    bodies: tuple[Body, ...]
    properties: int | None
    location: Location | None
    offset: int
    dictionary: int | None = None  # index of the attributes that are no properties


def read_operations(bytecode: Bytecode, attributes: Attributes) -> Body:
    """Returns the root body of a file, which holds the assets."""
    return _Reader(bytecode, attributes).root()


class _Reader:
    def __init__(self, bytecode: Bytecode, attributes: Attributes) -> None:
        self.bytecode, self.attributes = bytecode, attributes
        self.depth = 0

    def root(self) -> Body:
        cursor = self.bytecode.cursor(self.bytecode.sections[IR])
        body = self._block(cursor, [])
        if not cursor.is_at_end:
            cursor.fail("got bytes behind the last operation, need none")
        return body

    def _block(self, c: Cursor, values: list[Result]) -> Body:
        count, has_arguments = c.flagged()
        body = Body()
        if has_arguments:
            for _ in range(c.count("arguments")):
                kind, has_location = c.flagged()
                if kind >= len(self.bytecode.types):
                    c.fail(f"got the type {kind}, need one below {len(self.bytecode.types)}")
                body.arguments.append(Result(self.attributes.type_at(kind, c)))
                if has_location:
                    c.index(len(self.bytecode.attributes), "attribute")
            if c.byte():
                self._skip_uses(c)
        values += body.arguments
        if count > len(c.data) - c.at:
            c.fail(f"got {count} operations, need at most the {len(c.data) - c.at} bytes that follow")
        for _ in range(count):
            body.operations.append(self._operation(c, values))
        return body

    def _operation(self, c: Cursor, values: list[Result]) -> Operation:
        offset = c.base + c.at
        dialect, name = self.bytecode.ops[c.index(len(self.bytecode.ops), "name of an operation")]
        mask = c.byte()
        location = self.attributes.attribute(c)
        properties, dictionary = None, None
        if mask & HAS_DICTIONARY:
            dictionary = c.index(len(self.bytecode.attributes), "attribute")
        if mask & HAS_PROPERTIES:
            properties = c.index(len(self.bytecode.properties), "properties")
        results: Sequence[Result] = ()
        if mask & HAS_RESULTS:
            results = [Result(self.attributes.type(c)) for _ in range(c.count("results"))]
        operands: Sequence[Result] = ()
        if mask & HAS_OPERANDS:
            operands = [values[c.index(len(values), "value")] for _ in range(c.count("operands"))]
        if mask & HAS_SUCCESSORS:
            c.fail(f"got {name} with successors, need an operation without")
        if mask & HAS_USES:
            self._skip_uses(c)
        values += results
        bodies = self._bodies(c, values) if mask & HAS_REGIONS else ()
        return Operation(
            name if dialect == DIALECT else f"{dialect}.{name}",
            tuple(operands),
            tuple(results),
            bodies,
            properties,
            location if isinstance(location, Location) else None,
            offset,
            dictionary,
        )

    def _bodies(self, c: Cursor, values: list[Result]) -> tuple[Body, ...]:
        count, is_isolated = c.flagged()
        if count > len(c.data) - c.at:
            c.fail(f"got {count} bodies, need at most the {len(c.data) - c.at} bytes that follow")
        if self.depth >= DEEPEST:
            c.fail(f"got bodies in bodies, more than {DEEPEST} deep")
        self.depth += 1
        bodies = []
        for _ in range(count):
            if is_isolated:
                kind, section = read_section(c)
                if kind != IR:
                    c.fail(f"got a section of kind {kind} for a body, need {IR}")
                inner = self.bytecode.cursor(section)
                bodies.append(self._region(inner, []))
                if not inner.is_at_end:
                    inner.fail("got bytes behind a body, need none")
            else:
                kept = len(values)
                bodies.append(self._region(c, values))
                del values[kept:]  # values of a body are not visible outside it
        self.depth -= 1
        return tuple(bodies)

    def _region(self, c: Cursor, values: list[Result]) -> Body:
        blocks = c.number()
        if blocks == 0:
            return Body()
        if blocks > 1:
            c.fail(f"got a body of {blocks} blocks, need one")
        c.number()  # skips the number of values in the block
        return self._block(c, values)

    def _skip_uses(self, c: Cursor) -> None:
        """Skips the order of uses, which has no meaning for an importer."""
        for _ in range(c.count("orders of uses")):
            c.number()
            _, _indexed = c.flagged()
            for _ in range(c.count("uses")):
                c.number()


def walk(body: Body) -> Iterator[Operation]:
    """Yields all operations, each before the operations of its bodies."""
    for operation in body.operations:
        yield operation
        for inner in operation.bodies:
            yield from walk(inner)

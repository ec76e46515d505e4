"""Reads the fields of MLIR bytecode in order, and never past the end of the bytes."""

from typing import NoReturn

from hexane.errors import Error

LONGEST_TEXT = 4096


class Cursor:
    """A position in a range of bytes. base: the offset of the range in the file, for error messages."""

    __slots__ = ("at", "base", "data", "file")

    def __init__(self, data: memoryview, base: int, file: str) -> None:
        self.data, self.base, self.file, self.at = data, base, file, 0

    @property
    def is_at_end(self) -> bool:
        return self.at >= len(self.data)

    def fail(self, text: str, at: int | None = None) -> NoReturn:
        """Raises Error with the offset in the file."""
        raise Error(f"[coreai] {self.file} at {self.base + (self.at if at is None else at)}: {text}")

    def take(self, count: int) -> memoryview:
        """Returns the next `count` bytes."""
        left = len(self.data) - self.at
        if count > left:
            self.fail(f"got {left} bytes up to the end, need {count}")
        self.at += count
        return self.data[self.at - count : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def number(self) -> int:
        """Reads a number of up to 64 bits. The first byte ends in as many zero bits as there are further bytes."""
        first = self.byte()
        if first & 1:
            return first >> 1
        if first == 0:
            return int.from_bytes(self.take(8), "little")
        follow = (first & -first).bit_length() - 1
        return int.from_bytes(bytes((first, *self.take(follow))), "little") >> (follow + 1)

    def signed(self) -> int:
        """Reads a signed number, whose lowest bit is the sign."""
        number = self.number()
        return -(number + 1 >> 1) if number & 1 else number >> 1

    def flagged(self) -> tuple[int, bool]:
        """Reads a number and, from the lowest bit, a flag."""
        number = self.number()
        return number >> 1, bool(number & 1)

    def count(self, what: str) -> int:
        """Reads the number of entries that follow. An entry has at least one byte, so the number is limited by the
        bytes left."""
        start, number = self.at, self.number()
        if number > len(self.data) - self.at:
            self.fail(f"got {number} {what}, need at most the {len(self.data) - self.at} bytes that follow", start)
        return number

    def index(self, size: int, what: str) -> int:
        """Reads an index into a table of `size` entries."""
        start, number = self.at, self.number()
        if number >= size:
            self.fail(f"got the {what} {number}, need one below {size}", start)
        return number

    def text(self) -> str:
        """Reads a text that ends with NUL."""
        start = self.at
        data = bytes(self.data[start : start + LONGEST_TEXT])
        end = data.find(0)
        if end < 0:
            self.fail(f"got a text of more than {LONGEST_TEXT} bytes, need a shorter one")
        self.at = start + end + 1
        return decoded(data[:end], self, start)


def decoded(data: bytes, cursor: Cursor, at: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        cursor.fail("got bytes that are no UTF-8, need text", at)

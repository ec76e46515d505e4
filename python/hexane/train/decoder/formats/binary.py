"""Arrays of an untrusted file, read where they lie: sizes are compared with the file's length before memory is taken.

Read, not mapped: a file that becomes shorter while it is mapped ends the process, here it is an error.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.files import check_memory, open_regular


@dataclass(frozen=True, slots=True)
class BinaryFile:
    """An open file. where: begins the messages of errors; size: bytes that it had when it was opened."""

    descriptor: int
    where: str
    size: int

    def bytes(self, offset: int, size: int, what: str) -> bytes:
        """Raises Error where the file ends before."""
        if offset + size > self.size:
            raise Error(f"{self.where}: {what}: got a file of {self.size} bytes, need {offset + size}")
        data = os.pread(self.descriptor, size, offset)
        if len(data) != size:
            raise self._shorter(offset + len(data))
        return data

    def numbers(self, offset: int, form: str, what: str) -> tuple[int | float, ...]:
        """Little-endian numbers, `form` as struct has it."""
        return struct.unpack(f"<{form}", self.bytes(offset, struct.calcsize(f"<{form}"), what))

    def integers(self, offset: int, count: int, what: str) -> tuple[int, ...]:
        """Signed, of 32 bits."""
        return struct.unpack(f"<{count}i", self.bytes(offset, 4 * count, what))

    def array(self, offset: int, shape: tuple[int, ...], dtype: str, what: str) -> Array:
        """An array of its own memory, of a little-endian dtype such as "<f4"."""
        size = prod(shape) * np.dtype(dtype).itemsize
        if offset + size > self.size:
            raise Error(f"{self.where}: {what}: got a file of {self.size} bytes, need {offset + size}")
        array = np.empty(shape, dtype)
        view: Any = array.reshape(-1).view(np.uint8)
        done = 0
        while done < size:
            read = os.preadv(self.descriptor, [view[done:]], offset + done)
            if not read:
                raise self._shorter(offset + done)
            done += read
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    def check_size(self, need: int, what: str) -> None:
        """Raises Error unless the file has just so many bytes. what: says of what sizes."""
        if self.size != need:
            raise Error(f"{self.where}: got a file of {self.size} bytes, need {need} for {what}")
        check_memory(self.where, need)

    def _shorter(self, size: int) -> Error:
        return Error(f"{self.where}: got a file that became shorter, {size} bytes, need {self.size}")


@contextmanager
def opened(path: Path, where: str, need: str) -> Iterator[BinaryFile]:
    """The regular file at the path. Raises Error where it cannot be opened, with `need` at its end."""
    descriptor = open_regular(path, where, need)
    try:
        yield BinaryFile(descriptor, where, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)

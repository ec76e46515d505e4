"""Reads arrays from an untrusted file. Sizes are compared with the file's length before memory is allocated.

The file is not mapped: truncating a mapped file would crash the process, while a short read is an Error.
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
    """An open file. where: the prefix of error messages; size: bytes of the file when it was opened."""

    descriptor: int
    where: str
    size: int

    def bytes(self, offset: int, size: int, what: str) -> bytes:
        """Returns `size` bytes at the offset. Raises Error if the file is shorter."""
        if offset + size > self.size:
            raise Error(f"{self.where}: {what}: got a file of {self.size} bytes, need {offset + size}")
        data = os.pread(self.descriptor, size, offset)
        if len(data) != size:
            raise self._shorter(offset + len(data))
        return data

    def numbers(self, offset: int, form: str, what: str) -> tuple[int | float, ...]:
        """Returns little-endian numbers. form: a format string of `struct`."""
        return struct.unpack(f"<{form}", self.bytes(offset, struct.calcsize(f"<{form}"), what))

    def integers(self, offset: int, count: int, what: str) -> tuple[int, ...]:
        """Returns signed 32-bit integers."""
        return struct.unpack(f"<{count}i", self.bytes(offset, 4 * count, what))

    def array(self, offset: int, shape: tuple[int, ...], dtype: str, what: str) -> Array:
        """Returns a copy of an array in the file. dtype: little-endian, such as "<f4"."""
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
        """Raises Error unless the file has exactly `need` bytes. what: the sizes that need them, for the message."""
        if self.size != need:
            raise Error(f"{self.where}: got a file of {self.size} bytes, need {need} for {what}")
        check_memory(self.where, need)

    def _shorter(self, size: int) -> Error:
        return Error(f"{self.where}: got a file that became shorter, {size} bytes, need {self.size}")


@contextmanager
def opened(path: Path, where: str, need: str) -> Iterator[BinaryFile]:
    """Opens a regular file for reading. Raises Error if it cannot be opened. need: the kind of file, for the
    message."""
    descriptor = open_regular(path, where, need)
    try:
        yield BinaryFile(descriptor, where, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)

"""Reads a large model's file in one pass, and each large tensor to an aligned array of its own.

Kernels use the tensor's array in place. Tensors in the file are not aligned, so a view of the file would need a copy.
"""

import mmap
import os
from typing import NamedTuple

import numpy as np

from hexane.errors import Error
from hexane.system.large_pages import LargePages

MIN_PAYLOAD = 1 << 18  # bytes; a smaller payload is read together with the bytes around it.
_WINDOW = 1 << 14  # Bytes of one read outside payloads.


class Payload(NamedTuple):
    """The data field of a tensor message: its start and end in the file, and its contents."""

    begin: int
    end: int
    data: memoryview


class FileBytes:
    """An ONNX file's bytes, read in parts. data: a buffer of the file's length, in which bytes that are not read yet
    take no memory. payloads: by the start of their tensor messages."""

    def __init__(self, descriptor: int, size: int, where: str) -> None:
        self._descriptor, self._where = descriptor, where
        room = mmap.mmap(-1, size)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):  # a large page occupies memory as soon as one of its bytes is written
            room.madvise(mmap.MADV_NOHUGEPAGE)
        self._room = memoryview(room)
        self.data = self._room.toreadonly()
        self.payloads: dict[int, Payload] = {}
        self._read_to = 0
        self._arrays = LargePages()

    def need(self, end: int) -> None:
        """Reads on until the file is read up to `end`."""
        if end > self._read_to < len(self.data):
            end = min(len(self.data), max(end, self._read_to + _WINDOW))
            self._read(self._room[self._read_to : end], self._read_to)
            self._read_to = end

    def need_rest(self, begin: int) -> None:
        """Reads from `begin` to the end of the file. Later calls of `need` read these bytes again."""
        self._read(self._room[begin:], begin)

    def take(self, message: int, field: int, begin: int, end: int) -> None:
        """Reads the payload [begin, end) into an array. field: the start of its field."""
        array = self._arrays.array((end - begin,), np.uint8)
        self._read(array.data, begin)
        self._read_to = max(self._read_to, end)
        self.payloads[message] = Payload(field, end, array.data.toreadonly())

    def _read(self, room: memoryview, at: int) -> None:
        while room:
            count = os.preadv(self._descriptor, [room], at)
            if not count:
                raise Error(f"{self._where}: got {len(room)} bytes less than when it was opened, need all of it")
            room, at = room[count:], at + count

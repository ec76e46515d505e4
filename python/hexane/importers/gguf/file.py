"""A GGUF file: its metadata, and the offsets of its tensors. Files are untrusted.

    "GGUF", version (u32), number of tensors and of metadata (u64)
    metadata: a name, a type (u32), a value; texts have their length (u64) before them, arrays type and length
    tensors: a name, the number of axes (u32), the axes (u64, the innermost first), a kind (u32), an offset (u64)
    zeros up to a multiple of general.alignment, from where offsets count; the tensors

The header and blocks are read, not mapped: if the file shrinks during a read, that is an error. Tensors that stay in
the mapped file are the exception (`GgufFile.part`). Source: ggml's docs/gguf.md.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from hexane._core import FileMapping, new_block
from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.files import open_regular
from hexane.importers.gguf.blocks import KINDS, Blocks, Kind

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
MOST_TENSORS = 1 << 20
MOST_AXES = 4
MOST_NAME = 1 << 16  # largest size of a name in bytes.
PIECE = 1 << 20  # Bytes of one read.
PART = 1 << 20  # Numbers decoded at once.
TEXT, ARRAY = 8, 9
NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A GGUF file's tensor. shape: the innermost axis is last. offset: in the file."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    offset: int

    @property
    def bytes(self) -> int:
        return prod(self.shape) // self.kind.numbers * self.kind.bytes

    def rows(self, begin: int, end: int) -> "GgufTensor":
        """Returns these rows of a matrix, whose rows must be whole blocks."""
        row = replace(self, shape=self.shape[1:])
        return replace(self, shape=(end - begin, *self.shape[1:]), offset=self.offset + begin * row.bytes)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A file, open unless its descriptor is -1. metadata: numbers, texts, lists of texts and arrays of numbers, by
    name. tensors: by name. mapping: the mapped file, or None."""

    where: str
    descriptor: int
    size: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, GgufTensor] = field(default_factory=dict)
    mapping: FileMapping | None = None

    def part(self, tensor: GgufTensor) -> Array | None:
        """Returns a tensor of single numbers as it is stored: a read-only array in the mapped file. Returns None for
        blocks, and for a file that is not mapped. Nobody may write to a mapped file as long as the array is used."""
        if self.mapping is None or tensor.kind.dtype is None:
            return None
        try:
            raw: Array = self.mapping.part(tensor.offset, tensor.bytes)
        except Error:
            raise self._shorter(tensor.name) from None
        return raw.view(tensor.kind.dtype).reshape(tensor.shape)

    def read(self, tensor: GgufTensor) -> Array:
        """Returns the tensor in fp32."""
        array = np.empty(prod(tensor.shape), np.float32)
        for begin, blocks in self._blocks(tensor):
            numbers = tensor.kind.decode(blocks).reshape(-1)
            array[begin : begin + len(numbers)] = numbers
        return array.reshape(tensor.shape)

    def read_stored(self, tensor: GgufTensor) -> Array:
        """Returns a tensor of single numbers as it is stored. The tensor's kind must have a `dtype`."""
        dtype = tensor.kind.dtype
        assert dtype is not None
        array = np.empty(prod(tensor.shape), dtype)
        for begin, blocks in self._blocks(tensor):
            array[begin : begin + len(blocks)] = blocks.view(dtype).reshape(-1)
        return array.reshape(tensor.shape)

    def read_blocks(self, tensor: GgufTensor) -> Blocks:
        """Returns the tensor as integers of its shape, and scales for neighbours along the last axis. The tensor's kind
        must have `split`."""
        split = tensor.kind.split
        assert split is not None
        # Pools keep these integers without a copy.
        integers, scales = new_block(prod(tensor.shape)).view(np.int8), []
        for begin, blocks in self._blocks(tensor):
            parts = split(blocks)
            integers[begin : begin + len(parts.integers)] = parts.integers
            scales.append(parts.scales)
        integers.flags.writeable = False
        return Blocks(integers.reshape(tensor.shape), np.concatenate(scales).reshape(*tensor.shape[:-1], -1))

    def _blocks(self, tensor: GgufTensor) -> Iterator[tuple[int, Array]]:
        """Yields the tensor in parts: the index of the first number, and the bytes as (blocks, bytes of a block)."""
        kind, count = tensor.kind, prod(tensor.shape) // tensor.kind.numbers
        step = max(PART // kind.numbers, 1)
        for begin in range(0, count, step):
            blocks = min(step, count - begin)
            data = self._bytes(tensor.offset + begin * kind.bytes, blocks * kind.bytes, tensor.name)
            yield begin * kind.numbers, np.frombuffer(data, np.uint8).reshape(blocks, kind.bytes)

    def later(self) -> "GgufFile":
        """Returns the mapped file for reads of tensors after it has been closed, without metadata."""
        assert self.mapping is not None
        return GgufFile(self.where, -1, self.size, mapping=self.mapping)

    def _bytes(self, offset: int, size: int, what: str) -> bytes:
        if self.descriptor < 0:
            assert self.mapping is not None
            return self.mapping.read(offset, size)
        data = os.pread(self.descriptor, size, offset)
        if len(data) != size:
            raise self._shorter(what)
        return data

    def _shorter(self, what: str) -> Error:
        return Error(f"{self.where}: {what}: got a file that became shorter, need its {self.size} bytes")


def is_gguf(head: bytes) -> bool:
    """True if a file with these first bytes is a GGUF file."""
    return head[:4] == MAGIC


@contextmanager
def open_gguf(path: str | os.PathLike[str], where: str = "[gguf]", mapped: bool = False) -> Iterator[GgufFile]:
    """Opens the file at the path. where: the prefix of error messages. mapped: map the file, if its file system can.
    Raises Error for a damaged file, and for unknown block formats."""
    where = f"{where} {Path(path)}"
    descriptor = open_regular(path, where, "GGUF file")
    try:
        size = os.fstat(descriptor).st_size
        mapping = FileMapping.map(descriptor, where) if mapped else None
        yield replace(_File(_Cursor(where, descriptor, size)).read(), mapping=mapping)
    finally:
        os.close(descriptor)


class _Cursor:
    """Reads a file sequentially from its start."""

    def __init__(self, where: str, descriptor: int, size: int) -> None:
        self.where, self.descriptor, self.size = where, descriptor, size
        self.place = 0
        self._data, self._begin = b"", 0

    def need(self, size: int, what: str) -> None:
        """Raises Error if fewer bytes are left in the file."""
        if size > self.size - self.place:
            raise Error(f"{self.where}: {what}: got a file of {self.size} bytes, need {self.place + size}")

    def bytes(self, size: int, what: str) -> bytes:
        self.need(size, what)
        at = self.place - self._begin
        if at + size > len(self._data):
            self._data = os.pread(self.descriptor, max(size, PIECE), self.place)
            self._begin, at = self.place, 0
            if len(self._data) < size:
                raise Error(f"{self.where}: {what}: got a file that became shorter, need its {self.size} bytes")
        self.place += size
        return self._data[at : at + size]

    def number(self, form: str, what: str) -> int:
        (number,) = struct.unpack(f"<{form}", self.bytes(struct.calcsize(form), what))
        return int(number)

    def text(self, what: str, most: int | None = None) -> str:
        size = self.number("Q", what)
        if most is not None and size > most:
            raise Error(f"{self.where}: {what}: got a text of {size} bytes, need at most {most}")
        data = self.bytes(size, what)
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise Error(f"{self.where}: {what}: got {data[:20]!r}, need UTF-8") from None


class _File:
    """Reads the parts of the header in order."""

    def __init__(self, cursor: _Cursor) -> None:
        self.cursor, self.where = cursor, cursor.where

    def read(self) -> GgufFile:
        c = self.cursor
        head = c.bytes(8, "head")
        if not is_gguf(head):
            raise Error(f"{self.where}: got no file that begins with GGUF, need one")
        version = int.from_bytes(head[4:], "little")
        if version not in VERSIONS:
            swapped = int.from_bytes(head[4:], "big") in VERSIONS
            need = "little-endian numbers" if swapped else f"version {' or '.join(map(str, VERSIONS))}"
            raise Error(f"{self.where}: got version {version}, need {need}")
        tensors, values = c.number("Q", "number of tensors"), c.number("Q", "number of metadata")
        if tensors > MOST_TENSORS or values > MOST_TENSORS:
            raise Error(f"{self.where}: got {tensors} tensors and {values} metadata, need at most {MOST_TENSORS} each")
        metadata = dict(self._pairs(values))
        table = [self._tensor() for _ in range(tensors)]
        return GgufFile(self.where, c.descriptor, c.size, metadata, self._placed(table, metadata))

    def _pairs(self, count: int) -> Iterator[tuple[str, Any]]:
        seen = set()
        for i in range(count):
            name = self.cursor.text(f"name of metadata {i}", MOST_NAME)
            if name in seen:
                raise Error(f"{self.where}: {name}: got it twice, need it once")
            seen.add(name)
            yield name, self._value(self.cursor.number("I", name), name)

    def _value(self, kind: int, name: str) -> Any:
        c = self.cursor
        if kind == TEXT:
            return c.text(name)
        if kind in NUMBERS:
            dtype = np.dtype(NUMBERS[kind])
            return np.frombuffer(c.bytes(dtype.itemsize, name), dtype)[0].item()
        if kind != ARRAY:
            raise Error(f"{self.where}: {name}: got the type {kind}, need 0 to 12")
        of, count = c.number("I", name), c.number("Q", name)
        if of == TEXT:
            c.need(8 * count, name)
            return [c.text(name) for _ in range(count)]
        if of not in NUMBERS:
            raise Error(f"{self.where}: {name}: got an array of the type {of}, need numbers or texts")
        dtype = np.dtype(NUMBERS[of])
        return np.frombuffer(c.bytes(count * dtype.itemsize, name), dtype)

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        c = self.cursor
        name = c.text("name of a tensor", MOST_NAME)
        rank = c.number("I", name)
        if not 1 <= rank <= MOST_AXES:
            raise Error(f"{self.where}: {name}: got {rank} axes, need 1 to {MOST_AXES}")
        shape = tuple(c.number("Q", name) for _ in range(rank))[::-1]
        return name, shape, c.number("I", name), c.number("Q", name)

    def _placed(
        self, table: list[tuple[str, tuple[int, ...], int, int]], metadata: Mapping[str, Any]
    ) -> dict[str, GgufTensor]:
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment % 8 or alignment > PIECE:
            raise Error(f"{self.where}: general.alignment: got {alignment!r}, need a multiple of 8 up to {PIECE}")
        begin = -(-self.cursor.place // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, number, offset in table:
            if name in tensors:
                raise Error(f"{self.where}: {name}: got the tensor twice, need it once")
            kind = KINDS.get(number)
            if kind is None:
                known = ", ".join(one.name for one in KINDS.values())
                raise Error(f"{self.where}: {name}: got numbers of the kind {number}, need one of {known}")
            if shape[-1] % kind.numbers or 0 in shape:
                raise Error(f"{self.where}: {name}: got the shape {shape}, need rows of blocks of {kind.numbers}")
            tensor = GgufTensor(name, shape, kind, begin + offset)
            if offset % alignment or tensor.offset + tensor.bytes > self.cursor.size:
                got = f"{tensor.bytes} bytes at {tensor.offset} in a file of {self.cursor.size}"
                raise Error(f"{self.where}: {name}: got {got}, need them inside, at a multiple of {alignment}")
            tensors[name] = tensor
        end = begin
        for tensor in sorted(tensors.values(), key=lambda one: one.offset):
            if tensor.offset < end:
                raise Error(f"{self.where}: {tensor.name}: got it at {tensor.offset}, need no overlap: {end} or more")
            end = tensor.offset + tensor.bytes
        return tensors

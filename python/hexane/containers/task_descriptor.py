"""Task descriptors of version 7 as bytes: a header of 10 words, then streams of registers. A word in front of each
stream has its count and address.

  header | 0xf401f800, 62 words | 0x3c000000, 16 words | .. | 0x18017800, 7 words        0x274 bytes

Descriptors follow each other 0x300 bytes apart, and each has the offset of the next one. Experimental: these bytes have
never been on an engine.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from hexane.containers.file_bytes import FileBytes
from hexane.errors import Error
from hexane.targets.descriptor_fields import Field, descriptor_blocks, descriptor_bytes, descriptor_fields

VERSION = 7
PITCH = 0x300  # bytes from one descriptor to the next (sources: the eiln driver's notes, published programs)
NEXT, NEXT_SIZE, LAST = "header.Header7.NextPointer", "header.Header1.NextSize", ("header.Header0.LNID", "header.Header0.EON")  # fmt: skip  # noqa: E501


@dataclass(frozen=True, slots=True)
class TaskDescriptor:
    """One task. words: all of its words, including those in front of streams."""

    words: tuple[int, ...]

    @property
    def bytes(self) -> bytes:
        return struct.pack(f"<{len(self.words)}I", *self.words)

    @property
    def fields(self) -> dict[str, int]:
        """Every published field, by its path ("common.ConvCfg.Kw")."""
        return {field.path: self[field.path] for field in descriptor_fields(VERSION)}

    @property
    def unnamed(self) -> dict[int, int]:
        """Bits that are not 0 and that no published field names, by the offset of their word."""
        unnamed_bits = {4 * i: word & ~mask for i, (word, mask) in enumerate(zip(self.words, _masks(), strict=True))}
        return {offset: bits for offset, bits in unnamed_bits.items() if bits}

    def __getitem__(self, path: str) -> int:
        field = _field(path)
        return self.words[_index(field)] >> field.bit & field.most

    def changed(self, values: Mapping[str, int]) -> "TaskDescriptor":
        """The descriptor with other values. Raises Error for an unknown field, and for a value that does not fit its
        bits."""
        words = list(self.words)
        for path, value in values.items():
            field = _field(path)
            if not 0 <= value <= field.most:
                raise Error(f"[descriptors] {path}: got {value}, need 0 to {field.most}: it has {field.bits} bits")
            i = _index(field)
            words[i] = words[i] & ~(field.most << field.bit) | value << field.bit
        return replace(self, words=tuple(words))


def encode_descriptor(values: Mapping[str, int]) -> TaskDescriptor:
    """The descriptor with these fields, and 0 in all others. Raises the same errors as `changed`."""
    words = [0] * (descriptor_bytes(VERSION) // 4)
    for block in descriptor_blocks(VERSION):
        if block.header is not None:
            words[block.offset // 4 - 1] = block.header
    return TaskDescriptor(tuple(words)).changed(values)


def link_descriptors(descriptors: Sequence[TaskDescriptor]) -> tuple[TaskDescriptor, ...]:
    """The descriptors as a chain: each has the size and offset of the next, and the last one ends it."""
    last = len(descriptors) - 1
    size = descriptor_bytes(VERSION) // 4 - 1
    return tuple(
        d.changed(
            {NEXT: (i + 1) * PITCH if i < last else 0, NEXT_SIZE: size if i < last else 0}
            | dict.fromkeys(LAST, int(i == last))
        )
        for i, d in enumerate(descriptors)
    )


def write_descriptors(descriptors: Sequence[TaskDescriptor]) -> bytes:
    """The text section of a program: the linked descriptors, PITCH bytes apart."""
    linked = link_descriptors(descriptors)
    return b"".join([d.bytes.ljust(PITCH, b"\0") for d in linked[:-1]] + [d.bytes for d in linked[-1:]])


def read_descriptors(data: bytes, offset: int = 0, size: int | None = None) -> tuple[TaskDescriptor, ...]:
    """The chain of descriptors that begins at the first byte of a text section: `size` bytes of the file from `offset`
    on, or all of it. Raises Error, with the byte in the file, for another layout, and for a link that goes back or out
    of the text."""
    file = FileBytes(data, "descriptors")
    size = len(data) - offset if size is None else size
    file.check(offset, size, "task descriptors")
    need, at, tasks = descriptor_bytes(VERSION), 0, list[TaskDescriptor]()
    while True:
        start = offset + at
        if at + need > size:
            raise file.fail(start, f"task {len(tasks)}: got {size - at} bytes, need {need}")
        task = TaskDescriptor(struct.unpack_from(f"<{need // 4}I", data, start))
        for block in descriptor_blocks(VERSION):
            word = task.words[block.offset // 4 - 1] if block.header is not None else None
            if word != block.header:
                where = f"task {len(tasks)}, stream of {block.block}"
                raise file.fail(start + block.offset - 4, f"{where}: got {word:#x}, need {block.header:#x}, version 7")
        tasks.append(task)
        following = task[NEXT]
        if not following:
            return tuple(tasks)
        if following < at + need or following % 4:
            link = _field(NEXT).offset
            assert link is not None
            words = f"task {len(tasks) - 1}, link: got {following:#x}, need 0 or a multiple of 4 from {at + need:#x} on"
            raise file.fail(start + link, words)
        at = following


@cache
def _by_path() -> dict[str, Field]:
    return {field.path: field for field in descriptor_fields(VERSION)}


def _field(path: str) -> Field:
    result = _by_path().get(path)
    if result is None:
        near = ", ".join([p for p in _by_path() if p.startswith(path.partition(".")[0] + ".")][:4])
        raise Error(
            f"[descriptors] got no published field {path!r}, need one of version 7, as {near or 'common.Cin.Cin'}"
        )
    return result


def _index(field: Field) -> int:
    assert field.offset is not None, "version 7 places all its blocks"
    return field.offset // 4


@cache
def _masks() -> tuple[int, ...]:
    """The named bits of each word, and all bits of the words in front of streams."""
    masks = [0] * (descriptor_bytes(VERSION) // 4)
    for field in descriptor_fields(VERSION):
        masks[_index(field)] |= field.most << field.bit
    for block in descriptor_blocks(VERSION):
        if block.header is not None:
            masks[block.offset // 4 - 1] = 0xFFFFFFFF
    return tuple(masks)

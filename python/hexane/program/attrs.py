"""Packs the attributes of a step into the bytes of its kernel's C++ attribute struct, as the kernel's layout string
describes it."""

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from hexane.errors import Error
from hexane.graph import EpilogueSlot
from hexane.system.limits import MAX_LIST, MAX_SLOT_NUMBERS, MAX_SLOTS


class Strings:
    """The section "strings" of a plan under construction. Equal strings are stored once, zero-terminated."""

    def __init__(self) -> None:
        self._offsets: dict[str, int] = {"": 0}
        self._bytes = bytearray(b"\0")

    def add(self, text: str) -> int:
        """Offset of the string, in bytes."""
        if text not in self._offsets:
            self._offsets[text] = len(self._bytes)
            self._bytes += text.encode("utf-8", "backslashreplace").replace(b"\0", b"\\0") + b"\0"
        return self._offsets[text]

    def tobytes(self) -> bytes:
        return bytes(self._bytes)


@lru_cache(maxsize=256)  # each kernel has one layout
def fields(layout: str) -> tuple[tuple[str, str, int], ...]:
    """`"stride:2i mode:s"` -> `(("stride", "i", 2), ("mode", "s", 1))`."""
    result = []
    for item in layout.split():
        name, _, kind = item.partition(":")
        result.append((name, kind[-1], int(kind[:-1] or 1)))
    return tuple(result)


def pack(layout: str, values: Mapping[str, Any], strings: Strings) -> bytes:
    """The bytes of the struct that `layout` describes. Every field must have a value, and every value a field."""
    wanted = fields(layout)
    if missing := {name for name, _, _ in wanted} ^ values.keys():
        raise Error(f"[attributes] {layout!r}: got {sorted(values)}, the difference is {sorted(missing)}")
    return b"".join(_field(kind, count, values[name], strings, name) for name, kind, count in wanted)


def string_offsets(layout: str, words: Sequence[int]) -> list[int]:
    """Returns the offsets of strings that a packed struct holds. words: the struct as words of 8 bytes."""
    offsets, at = [], 0
    for _, kind, count in fields(layout):
        if kind == "s":
            offsets.append(words[at])
        elif kind == "E":
            offsets += [words[at + 1 + 4 * i] for i in range(words[at])]
        at += {"i": count, "f": count, "s": 1, "L": 1 + MAX_LIST, "E": 1 + 4 * MAX_SLOTS}[kind]
    return offsets


def _field(kind: str, count: int, value: Any, strings: Strings, name: str) -> bytes:
    if kind == "i":
        return struct.pack(f"<{count}q", *_sequence(value, count, name))
    if kind == "f":
        return struct.pack(f"<{count}d", *_sequence(value, count, name))
    if kind == "s":
        return struct.pack("<Q", strings.add(value))
    if kind == "L":
        if len(value) > MAX_LIST:
            raise Error(f"[attributes] {name}: got {len(value)} values, need at most {MAX_LIST}")
        return struct.pack(f"<{1 + MAX_LIST}q", len(value), *value, *[0] * (MAX_LIST - len(value)))
    assert kind == "E", kind
    if len(value) > MAX_SLOTS:
        raise Error(f"[attributes] {name}: got {len(value)} slots, need at most {MAX_SLOTS}")
    slots = b"".join(_slot(slot, strings, name) for slot in value)
    return struct.pack("<q", len(value)) + slots + struct.pack("<Qddq", 0, 0.0, 0.0, -1) * (MAX_SLOTS - len(value))


def _slot(slot: EpilogueSlot, strings: Strings, name: str) -> bytes:
    numbers = [value for _, value in slot.attributes]
    if len(numbers) > MAX_SLOT_NUMBERS:
        raise Error(f"[attributes] {name}: got {slot}, need at most {MAX_SLOT_NUMBERS} attributes")
    numbers += [0.0] * (MAX_SLOT_NUMBERS - len(numbers))
    return struct.pack("<Qddq", strings.add(slot.op), *numbers, -1 if slot.operand is None else slot.operand)


def _sequence(value: Any, count: int, name: str) -> Sequence[Any]:
    values = [value] if count == 1 and not isinstance(value, Sequence) else list(value)
    if len(values) != count:
        raise Error(f"[attributes] {name}: got {len(values)} values, need {count}")
    return values

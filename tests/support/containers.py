"""Self-made containers: .hwx by hand, .e5 by the flatbuffers package."""

import struct
from collections.abc import Sequence

import flatbuffers  # type: ignore[import-untyped]

SHAPES = ("s512w 1 64 8 8", "s4096c 1 64 8 8")


def padded(name: str) -> bytes:
    return name.encode().ljust(16, b"\0")


def make_hwx(subtype: int = 4, symbols: Sequence[str] = SHAPES, weights: bytes = bytes(range(256)) * 32) -> bytes:
    """A window for the input, a segment of text, one of weights, symbols, and a thread."""
    text = bytes(0x274)
    names = b"\0" + b"".join(name.encode() + b"\0" for name in ("_main", *symbols))
    commands_bytes = 3 * (72 + 80) + 24 + 24
    text_at = 32 + commands_bytes
    weights_at = text_at + len(text)
    symbols_at = weights_at + len(weights)
    names_at = symbols_at + 16 * (1 + len(symbols))

    def segment(name: str, section: str, address: int, size: int, offset: int, in_file: int) -> bytes:
        room = max(size, 0x4000)
        head = padded(name) + struct.pack("<QQQQIIII", address, room, offset, in_file, 7, 7, 1, 0)
        row = padded(section) + padded(name) + struct.pack("<QQIIIIIIII", address, size, offset, 0, 0, 0, 0, 0, 0, 0)
        return struct.pack("<II", 0x19, 8 + len(head) + len(row)) + head + row

    commands = segment("__FVMLIB", "__input", 0x30008000, 0x4000, 0, 0)
    commands += segment("__TEXT", "__text", 0x30010000, len(text), text_at, len(text))
    commands += segment("__KERN_0", "__kern_0", 0x30018000, len(weights), weights_at, len(weights))
    commands += struct.pack("<IIIIII", 2, 24, symbols_at, 1 + len(symbols), names_at, len(names))
    commands += struct.pack("<II", 4, 24) + bytes(16)
    assert len(commands) == commands_bytes
    table = struct.pack("<IBBHQ", 1, 0x0F, 1, 0, 0x30010000)
    at = 1 + len("_main") + 1
    for name in symbols:
        table += struct.pack("<IBBHQ", at, 0x20, 0, 0, 0)
        at += len(name) + 1
    header = struct.pack("<IIIIIIII", 0xBEEFFACE, 0x80, subtype, 2, 5, commands_bytes, 0x200000, 0)
    return header + commands + text + weights + table + names


BUILD = {"component": "zin_ane_compiler", "version": "9.509.0", "target": "h13"}
NAMES = ("main", "x", "y@output")


def make_e5(version: int = 4, names: Sequence[str] = NAMES, num_sections: int = 3) -> bytes:
    builder = flatbuffers.Builder(0)

    def vector(offsets: Sequence[int]) -> int:
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return int(builder.EndVector())

    def table(*fields: int) -> int:
        builder.StartObject(len(fields))
        for slot, offset in enumerate(fields):
            builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
        return int(builder.EndObject())

    symbols = vector([builder.CreateString(name) for name in names])
    pairs = [(builder.CreateString(key), builder.CreateString(value)) for key, value in BUILD.items()]
    build = vector([table(*pair) for pair in pairs])
    sections = vector([table(builder.CreateString(f"section {i}")) for i in range(num_sections)])
    builder.StartObject(4)
    for slot, offset in enumerate((symbols, build, sections)):
        builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    builder.PrependUint32Slot(3, version, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())

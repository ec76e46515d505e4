"""Writes .hwx files in the published form: header, windows for the ports, task descriptors, and a window for the
weights.

Experimental. No source gives the layout of the commands for threads and bindings, so the file has none. Weights have
addresses but no bytes.
"""

import struct
from collections.abc import Sequence

from hexane.containers.hwx import CPU_TYPE, MAGIC

FIRST_ADDRESS, PAGE = 0x30000000, 0x4000  # as in the identity program of the ANE guide
_FILE_TYPE, _FLAGS, _NO_BYTES = 2, 0x200000, 1


def make_hwx(subtype: int, text: bytes, ports: Sequence[tuple[str, int]], weight_bytes: int) -> bytes:
    """The bytes of a file. ports: (name, bytes) in the order of their base addresses; their names become symbols."""
    windows = [("__FVMLIB", f"__port_{i}", size, b"") for i, (_, size) in enumerate(ports)]
    windows.append(("__TEXT", "__text", len(text), text))
    if weight_bytes:
        windows.append(("__KERN_0", "__kern_0", weight_bytes, b""))
    commands_bytes = len(windows) * (72 + 80) + 24
    at, address, commands, addresses = 32 + commands_bytes, FIRST_ADDRESS, b"", []
    for segment, section, size, data in windows:
        room = -(-size // PAGE) * PAGE
        offset = at if data else 0
        head = struct.pack("<16sQQQQIIII", segment.encode(), address, room, offset, len(data), 7, 7, 1, 0)
        kind = 0 if data else _NO_BYTES
        names = (section.encode(), segment.encode())
        row = struct.pack("<16s16sQQIIIIIIII", *names, address, size, offset, 0, 0, 0, kind, 0, 0, 0)
        commands += struct.pack("<II", 0x19, 72 + 80) + head + row
        addresses.append(address)
        at, address = at + len(data), address + room
    symbols_at, names_of, table = at, b"\0", b""
    for (name, _), value in zip(ports, addresses, strict=False):
        table += struct.pack("<IBBHQ", len(names_of), 0x0F, 1, 0, value)
        names_of += name.encode()[:1000].decode(errors="ignore").encode() + b"\0"
    names_at = symbols_at + len(table)
    commands += struct.pack("<IIIIII", 2, 24, symbols_at, len(ports), names_at, len(names_of))
    header = struct.pack("<IIIIIIII", MAGIC, CPU_TYPE, subtype, _FILE_TYPE, len(windows) + 1, commands_bytes, _FLAGS, 0)
    return header + commands + text + table + names_of

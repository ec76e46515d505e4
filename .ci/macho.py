"""Checks libraries for arm64 macOS that were linked elsewhere: macho.py SYMBOLS FILE...

Load commands: arm64, macOS 13, a signature, system libraries only. A symbol bound to no library must be Python's or in
the list SYMBOLS. Each library must export its entry point.
"""

import struct
import sys
from pathlib import Path

MAGIC, ARM64, MACOS = 0xFEEDFACF, 0x0100000C, 1
SYMTAB, LOAD_DYLIB, SIGNATURE, BUILD_VERSION = 0x2, 0xC, 0x1D, 0x32
ANY = (0, 0xFE)  # library ordinals by which zig and Apple mark symbols that any loaded library may define
SYSTEM = ("/usr/lib/libSystem.B.dylib", "/usr/lib/libobjc.A.dylib", "/System/Library/Frameworks/")
EXPORTS = {"_core": "_PyInit__core", "libhexane_ane": "_hexane_ane_open", "libhexane_c99": "_hx_load"}


def text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def check(path: Path, known: set[str]) -> str:
    data = path.read_bytes()
    magic, cpu, _, _, count, _, _, _ = struct.unpack_from("<8I", data)
    assert (magic, cpu) == (MAGIC, ARM64), f"{path.name}: no Mach-O for arm64"
    loaded, commands, at = [], {}, 32
    for _ in range(count):
        command, size = struct.unpack_from("<2I", data, at)
        commands[command & 0x7FFFFFFF] = at
        if command == LOAD_DYLIB:
            loaded.append(text(data, at + struct.unpack_from("<I", data, at + 8)[0]))
        at += size
    assert SIGNATURE in commands, f"{path.name}: no signature, which arm64 asks for"
    platform, least = struct.unpack_from("<2I", data, commands[BUILD_VERSION] + 8)
    assert (platform, least >> 16) == (MACOS, 13), f"{path.name}: platform {platform}, system {least >> 16}"
    assert all(name.startswith(SYSTEM) for name in loaded), f"{path.name}: loads {loaded}"

    symbols, number, strings, _ = struct.unpack_from("<4I", data, commands[SYMTAB] + 8)
    exported, flat = set(), set()
    for i in range(number):
        name, kind, _, desc, _ = struct.unpack_from("<IBBHQ", data, symbols + 16 * i)
        name = text(data, strings + name)
        if kind & 1 and kind & 0x0E:
            exported.add(name)
        elif kind & 1 and desc >> 8 in ANY:
            flat.add(name)
    unknown = {name for name in flat if not name.startswith("_Py") and not name.startswith("__Py")} - known
    assert not unknown, f"{path.name}: looks up {sorted(unknown)}, which {sys.argv[1]} does not list"
    (need,) = (symbol for name, symbol in EXPORTS.items() if path.name.startswith(name))
    assert need in exported, f"{path.name}: does not export {need}"
    return f"{path.name}: {len(data):,} bytes, {len(flat)} symbols of any library, {len(loaded)} system libraries"


known = set(Path(sys.argv[1]).read_text().split())
for argument in sys.argv[2:]:
    print(check(Path(argument), known))

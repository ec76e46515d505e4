"""Programs of a device, kept from process to process: what its compiler made of a text is put back in place of
compiling again.

A compile of the Neural Engine takes milliseconds to seconds, and a process may do some 119 of them. The framework reads
a program from a folder under a hash of its text and weights; what its compiler left there is kept, and put there again.
"""

import os
import platform
import plistlib
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache as once
from pathlib import Path

from hexane import _core
from hexane.errors import DeviceError
from hexane.runtime.cache import Cache, cache_key
from hexane.runtime.compile_worker import WORKER, CompileWorker

FORMAT = "hexane program 1"
COPY = "copy "  # in front of a name: the file is a copy of the weight file whose name is kept in its place


def compiled_program(
    device: _core.Device,
    chip: str,
    text: str,
    weights: Mapping[str, bytes],
    qos: int,
    cache: Cache | None,
    *,
    worker: CompileWorker | None = WORKER,
) -> _core.DeviceProgram:
    """The program of the text, loaded: from the cache where it has one that the system takes, else compiled and kept;
    by the worker where this process may compile no more.

    Raises DeviceError where the device neither loads nor compiles it.
    """
    if cache is None:
        return _compiled(device, text, weights, qos)
    key = program_key(device, chip, text, weights)
    kept = cache.get(key)
    if kept and (program := _restored(device, text, weights, qos, kept)) is not None:
        return program
    if worker is not None and _spent(device.counters):
        if kept is None:
            worker.compile(chip, text, weights, qos, cache, device.counters["compile_limit"])
            return _compiled_elsewhere(device, text, weights, qos, cache, key)
        raise _only_its_own(device)
    program = _compiled(device, text, weights, qos)
    if kept:
        cache.put(key, {})  # an entry without files: this system loads only what it has compiled
    elif kept is None and program.folder:
        with suppress(OSError):
            if made := _made(Path(program.folder), weights):
                cache.put(key, made)
    return program


def program_key(device: _core.Device, chip: str, text: str, weights: Mapping[str, bytes]) -> str:
    """The key of a program: all that decides what the compiler makes of it."""
    files = [part for name, data in sorted(weights.items()) for part in (name, data)]
    return cache_key(FORMAT, device.name, chip, system_build(), text, *files)


@once
def system_build() -> str:
    """The build of the operating system, of which the engine's compiler is a part."""
    version = Path("/System/Library/CoreServices/SystemVersion.plist")
    if sys.platform != "darwin" or not version.exists():
        return platform.platform()
    with version.open("rb") as file:
        found = plistlib.load(file)
    return " ".join(str(found[key]) for key in ("ProductName", "ProductVersion", "ProductBuildVersion"))


def _compiled(device: _core.Device, text: str, weights: Mapping[str, bytes], qos: int) -> _core.DeviceProgram:
    program = device.compile(text, weights, qos)
    program.load(qos)
    return program


def _restored(
    device: _core.Device, text: str, weights: Mapping[str, bytes], qos: int, kept: Mapping[str, bytes]
) -> _core.DeviceProgram | None:
    """The program from its files, loaded; None where this device, or this system, takes none. Raises DeviceError for
    what is not the files' fault."""
    made = {}
    for name, data in kept.items():
        made[name.removeprefix(COPY)] = weights[data.decode()] if name.startswith(COPY) else data
    try:
        program = device.restore(text, weights, made)
        if program is not None:
            program.load(qos)
    except DeviceError as error:
        counters = device.counters
        hangs = error.code == _core.NO_ANSWER
        if hangs or error.stage != "load" or 0 < counters["load_limit"] <= counters["loaded"]:
            raise
        return None
    return program


def _spent(counters: Mapping[str, int]) -> bool:
    return 0 < counters["compile_limit"] <= counters["compiled"]


def _compiled_elsewhere(
    device: _core.Device, text: str, weights: Mapping[str, bytes], qos: int, cache: Cache, key: str
) -> _core.DeviceProgram:
    """The program that the worker has put into the cache."""
    kept = cache.get(key)
    if not kept:
        raise DeviceError(
            f"[device compile] another process compiled the program, but it is not in the cache {cache.folder}; "
            f"need a folder that can be written to, and room for it within {cache.limit} bytes",
            "compile",
        )
    program = _restored(device, text, weights, qos, kept)
    if program is None:
        cache.put(key, {})
        raise _only_its_own(device)
    return program


def _only_its_own(device: _core.Device) -> DeviceError:
    hint = "start a new process"
    return DeviceError(
        f"[device compile] this process has compiled {device.counters['compiled']} programs, as many as it may, and"
        f" this system does not load this one as another process compiled it; {hint}",
        "compile",
        hint=hint,
    )


def _made(folder: Path, weights: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files that the compiler left in the folder. One that is a copy of a weight file is kept as its name. Raises
    OSError for what this user may not read: a service of the system wrote it."""
    own = {"model.mil", ".hexane", *weights}
    made = {}
    for base, _, names in os.walk(folder):
        for path in (Path(base, name) for name in names):
            name = path.relative_to(folder).as_posix()
            if name in own:
                continue
            data = path.read_bytes()
            original = next((known for known, given in weights.items() if given == data), None)
            made.update({name: data} if original is None else {COPY + name: original.encode()})
    return made

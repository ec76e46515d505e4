"""Loads a device's programs from the system's cache if another process has compiled them, and compiles them if not.

A compilation for the Neural Engine takes milliseconds to seconds, and a process may do about 119. The system caches
each program by a hash of its text and weights, for all processes of one signer.
"""

from collections.abc import Mapping

from hexane import _core
from hexane.errors import DeviceError
from hexane.runtime.compile_worker import WORKER, CompileWorker


def compiled_program(
    device: _core.Device,
    chip: str,
    text: str,
    weights: Mapping[str, bytes],
    qos: int,
    *,
    warm: bool = True,
    worker: CompileWorker | None = WORKER,
) -> _core.DeviceProgram:
    """Returns the loaded program of the text, from the system's cache or compiled. The worker compiles it if this
    process has used up its compilations. warm: False skips the cache.

    Raises DeviceError if the device can neither load nor compile it.
    """
    if warm and (program := _kept(device, text, weights, qos)) is not None:
        return program
    if worker is not None and _spent(device.counters):
        worker.compile(chip, text, weights, qos, device.counters["compile_limit"])
        if (program := _kept(device, text, weights, qos)) is None:
            raise _only_its_own(device)
        return program
    program = device.compile(text, weights, qos)
    program.load(qos)
    return program


def _kept(device: _core.Device, text: str, weights: Mapping[str, bytes], qos: int) -> _core.DeviceProgram | None:
    """Returns the loaded program from the system's cache; None if the cache lacks it or it does not load. Raises
    DeviceError for failures of the device as a whole."""
    program = device.find(text, weights)
    if program is None:
        return None
    try:
        program.load(qos)
    except DeviceError as error:
        counters = device.counters
        hangs = error.code == _core.NO_ANSWER
        if hangs or error.stage != "load" or 0 < counters["load_limit"] <= counters["loaded"]:
            raise
        return None
    return program


def _spent(counters: Mapping[str, int]) -> bool:
    return 0 < counters["compile_limit"] <= counters["compiled"] + counters["compiles_in_loads"]


def _only_its_own(device: _core.Device) -> DeviceError:
    hint = "start a new process"
    return DeviceError(
        f"[device compile] this process has compiled {device.counters['compile_limit']} programs, as many as it may,"
        f" and this system does not load a program that another process compiled; {hint}",
        "compile",
        hint=hint,
    )

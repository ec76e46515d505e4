"""Programs of a device that its system keeps: what another process had compiled is loaded in place of compiling again.

A compile of the Neural Engine takes milliseconds to seconds, and a process may do some 119 of them. The system's
service keeps each program under a hash of its text and weights, for all processes of one signer.
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
    """The program of the text, loaded: the system's kept program, else a compiled one. The worker compiles it if this
    process may compile no more. warm: False to compile it in any case.

    Raises DeviceError where the device neither loads nor compiles it.
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
    """The program that the system keeps, loaded; None where it keeps none, or does not load it. Raises DeviceError for
    failures that are not that program's."""
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
        f" and this system does not load this one as another process compiled it; {hint}",
        "compile",
        hint=hint,
    )

"""The Neural Engine of this machine: the library that calls it, its chip, and the device."""

import platform
import sys
from functools import cache
from pathlib import Path

from hexane import _core
from hexane.errors import DeviceError
from hexane.targets.detect import this_machine
from hexane.targets.dispatch import dispatch


def library_path() -> Path:
    """Returns the path of the library that calls Apple's framework. Packages for macOS contain it."""
    return Path(_core.__file__).with_name("libhexane_ane.dylib")


def ane_setup(library: Path, framework: str = "") -> _core.AneSetup:
    """Returns the paths and the limits for calls of the engine. framework: the path of a replacement; "": the
    system's."""
    facts = dispatch()
    return _core.AneSetup(
        library=str(library),
        framework=framework,
        compile_limit=facts.compile_limit,
        load_limit=facts.load_limit,
        load_retry_ms=facts.load_retry_ms,
        build_limit_ms=facts.build_limit_ms,
        evaluate_limit_ms=facts.evaluate_limit_ms,
    )


def own_chip() -> str:
    """Returns the target of this machine's engine, ignoring HEXANE_TARGET; "" without an engine."""
    return this_machine() if library_path().exists() else ""


def find_engine(chip: str) -> tuple[_core.Device | None, str]:
    """Returns this machine's engine, for programs of the chip, or None and the reason why there is none."""
    if not library_path().exists():
        return None, why_on_cpu()
    if (own := own_chip()) != chip:
        return None, f"the engine of this machine is {own}, not {chip}"
    try:
        return _engine(), ""
    except DeviceError as error:
        return None, f"no Neural Engine here: {error}"


def why_on_cpu() -> str:
    """Returns why a chip's program runs on the CPU and not on an engine."""
    if library_path().exists():
        return "plans in files run there"
    return f"no Neural Engine here ({platform.system() or sys.platform}, {platform.machine()})"


@cache
def _engine() -> _core.Device:
    return _core.ane_device(ane_setup(library_path()))

"""Checks whether this machine can run programs on the Neural Engine: `hexane doctor`."""

import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from hexane import _core
from hexane.errors import DeviceError
from hexane.report.self_test import Check, self_test
from hexane.runtime.engine import ane_setup, library_path
from hexane.system.cpu import cpu_instructions
from hexane.targets.detect import read_brand
from hexane.targets.dispatch import dispatch
from hexane.targets.names import find


@dataclass(frozen=True, slots=True)
class Examination:
    """The state of this machine. machine: facts by name. checks: of the framework and the self-test. problem: why
    programs do not run on an engine, "" if they do. has_engine: False if the machine has no engine, which is no
    fault."""

    machine: dict[str, str]
    checks: tuple[Check, ...]
    problem: str
    has_engine: bool

    @property
    def ok(self) -> bool:
        """False if there is an engine and one of its checks fails."""
        return not self.has_engine or (not self.problem and all(check.ok for check in self.checks))


def examine(library: Path | None = None, framework: str = "") -> Examination:
    """Examines this machine. library, framework: replace the package's library and the system's framework."""
    path = library or library_path()
    machine = _machine()
    if not path.exists():
        missing = f"{path.name} is part of the package on macOS only" if library is None else f"there is no {path}"
        return Examination(machine, (), missing, has_engine=False)
    facts = dispatch()
    setup = ane_setup(path, framework)
    checks: list[Check] = []
    try:
        checks += [Check(*finding) for finding in _core.probe_ane(setup)]
        checks += self_test(setup, facts.least_surface_bytes, facts.default_qos)
        compiled, loaded, in_loads = _core.ane_counters(setup)
        checks.append(
            Check("budget", "compiled programs", f"{compiled + in_loads} of {facts.compile_limit} in this process", "")
        )
        checks.append(Check("budget", "loaded programs", f"{loaded} of {facts.load_limit} in this process", ""))
    except DeviceError as error:
        absent = error.stage == "open" and all(check.ok for check in checks)
        return Examination(machine, tuple(checks), str(error), has_engine=not absent)
    return Examination(machine, tuple(checks), "", has_engine=True)


def _machine() -> dict[str, str]:
    brand = read_brand()
    target = find(brand) if brand else None
    system = (
        f"macOS {platform.mac_ver()[0]}" if sys.platform == "darwin" else f"{platform.system()} {platform.release()}"
    )
    return {
        "system": f"{system}, {platform.machine()}",
        "python": platform.python_version(),
        "chip": f"{brand}: {target.target if target else 'no target knows it'}" if brand else "none of Apple's",
        "cpu": f"{os.cpu_count()} threads, {cpu_instructions()}",
    }

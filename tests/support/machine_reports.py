"""Reports of this machine's stand-in, as `hexane doctor --report` makes them on a Mac."""

import ctypes
import json
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from engines import stand_in_engine
from hexane.report.mac import collect, read_report
from hexane.report.mac.probe import Context, Probe
from hexane.report.mac.record import MachineReport
from hexane.report.mac.worker import run_case
from stand_in import DEFAULTS, FRAMEWORK, LIBRARY, needs_stand_in, no_budget

SUPPORT = Path(__file__).parent
SALT = "5a17"


def worker_program(before: str = "", **switches: int) -> str:
    """What the processes of a report run: with the stand-in, after its switches are set and some other lines have run."""
    lines = f"""
        import ctypes, sys
        sys.path.insert(0, {str(SUPPORT)!r})
        import hexane.runtime.engine
        from engines import stand_in_engine
        from hexane.report.mac.worker import main
        engine = stand_in_engine()
        hexane.runtime.engine.find_engine = lambda chip: (engine, "")
        for name, value in {switches!r}.items():
            assert ctypes.CDLL({str(FRAMEWORK)!r}).fake_ane_set(name.encode(), ctypes.c_int64(value)), name
        """
    return textwrap.dedent(lines) + before + "\nmain()"


def context(salt: str = SALT, programs: int = 4) -> Context:
    needs_stand_in()
    return Context(library=str(LIBRARY), framework=str(FRAMEWORK), salt=salt, programs=programs, target="h13")


def report_here(probes: Sequence[Probe], salt: str = SALT, programs: int = 4, **switches: int) -> MachineReport:
    """The same records without processes and a file."""
    where = context(salt, programs)  # skips without the stand-in
    framework = ctypes.CDLL(str(FRAMEWORK))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hexane.runtime.engine.dispatch", no_budget)  # tests share a process
        engine = stand_in_engine()
        patch.setattr("hexane.runtime.engine.find_engine", lambda chip: (engine, ""))
        try:
            for name, value in switches.items():
                assert framework.fake_ane_set(name.encode(), ctypes.c_int64(value)), name
            records = [run_case(probe, case, where) for probe in probes for case in probe.cases]
        finally:
            for name, value in {**DEFAULTS, "float_type": 0, "compile_limit": 1 << 40}.items():
                framework.fake_ane_set(name.encode(), ctypes.c_int64(value))
    return MachineReport({}, tuple(json.loads(json.dumps(records, default=str))), {})


def report_of(
    folder: Path,
    probes: Sequence[Probe],
    program: str,
    *,
    salt: str = SALT,
    limit: float | None = None,
    told: Callable[[dict[str, object]], None] = lambda record: None,
) -> MachineReport:
    """The report, read again from its file."""
    made = collect(folder, context(salt), probes=probes, program=program, limit=limit, told=told)
    return read_report(made)

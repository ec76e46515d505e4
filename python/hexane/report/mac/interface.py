"""Reports of the machine, the engine's framework and loaded programs about themselves."""

import platform
import plistlib
import subprocess
import sys
from typing import Any

from hexane import _core
from hexane.errors import Error
from hexane.report.mac.probe import Context, Probe, Values
from hexane.report.mac.texts import relu
from hexane.report.self_test import self_test
from hexane.targets.detect import read_brand, this_machine
from hexane.targets.dispatch import dispatch


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def machine(_: Context) -> Values:
    """Returns the chip, the system and the power source."""
    mac = sys.platform == "darwin"
    return {
        "chip": read_brand() or "none of Apple's",
        "target": this_machine(),
        "model": _run("/usr/sbin/sysctl", "-n", "hw.model") if mac else "",
        "system": f"macOS {platform.mac_ver()[0]}" if mac else f"{platform.system()} {platform.release()}",
        "build": _run("/usr/bin/sw_vers", "-buildVersion") if mac else "",
        "memory": _run("/usr/sbin/sysctl", "-n", "hw.memsize") if mac else "",
        "power": _run("/usr/bin/pmset", "-g", "batt").split("\n")[0] if mac else "",
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }


def needed(context: Context) -> Values:
    """Returns the classes and selectors that Hexane needs: those that exist, and those with another signature."""
    rows = _core.probe_ane(context.setup())
    parts = [row for row in rows if row[0] != "device"]
    return {
        "found": {name: value for _, name, value, _ in parts},
        "other": {name: {"found": value, "need": need} for _, name, value, need in parts if need != value},
        "device": {name: value for kind, name, value, _ in rows if kind == "device"},
    }


def methods(context: Context) -> Values:
    """Returns all methods of the framework's classes, by name, with their type encodings."""
    encodings = {name: encoding for _, name, encoding, _ in _core.ane_methods(context.setup())}
    known = {name for kind, name, _, _ in _core.probe_ane(context.setup()) if kind == "selector"}
    return {"methods": encodings, "unknown": len(encodings.keys() - known)}


def tested(context: Context) -> Values:
    """Runs the self-test of `hexane doctor`."""
    facts = dispatch()
    checks = self_test(context.setup(), facts.least_surface_bytes, facts.default_qos)
    wrong = {f"{c.kind} {c.name}": {"found": c.found, "need": c.need} for c in checks if not c.ok}
    return {"found": {f"{c.kind} {c.name}": c.found for c in checks}, "wrong": wrong, "right": not wrong}


def attributes_of(shape: tuple[int, ...]) -> Any:
    def case(context: Context) -> Values:
        qos = dispatch().default_qos
        program = context.device().compile(relu(shape, f"y_{context.salt}"), {}, qos)
        text = program.attributes(qos)
        try:
            raw = plistlib.loads(text.encode())
        except Exception:  # no property list, but a text for people
            raw = text
        record: Values = {"shape": list(shape), "attributes": raw}
        try:
            program.load(qos)
        except Error as error:
            return record | {"ports": str(error)}
        ports = (*program.inputs, *program.outputs)
        at_the_end = all(tuple(port["shape"]) == (1,) * (4 - len(shape)) + shape for port in ports)
        return record | {
            "ports": [dict(port) for port in ports],
            "axes_last": at_the_end,
            "row_bytes": shape[-1] * 2,
            "row_stride": ports[0]["strides"][2],
        }

    return case


SHAPES = ((10,), (2, 10), (3, 2, 10), (1, 3, 2, 10), (1, 3, 2, 1), (1, 3, 2, 32), (1, 3, 2, 33), (2, 64, 1, 1))

SYSTEM = Probe("machine", "Which machine is this?", {"machine": machine})
INTERFACE = Probe(
    "interface",
    "Is the framework the one that Hexane knows?",
    {"needed": needed, "methods": methods},
)
SELF_TEST = Probe("self test", "Does a program run, and rightly?", {"self test": tested})
ATTRIBUTES = Probe(
    "attributes",
    "How do ports of each rank lie in surfaces, and rows that are no multiple of 64 bytes?",
    {f"relu of {list(shape)}": attributes_of(shape) for shape in SHAPES},
)

"""The facts about the machine in a document of results."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hexane import _core
from hexane.bench.energy import meter_command
from hexane.targets.detect import detect_name


def environment() -> dict[str, Any]:
    """Chip, system, cores, versions and power of this machine; "" if the system does not tell. power: "mains" or
    "battery". energy: how it is measured, or why it is not."""
    name = detect_name()
    return {
        "cpu": _cpu(),
        "model": _said("/usr/sbin/sysctl", "-n", "hw.model"),
        "target": name.target,
        "asked": "" if name.written == name.target else name.written,
        "isa": _core.isa(),
        "cores": os.cpu_count(),
        "os": platform.platform(),
        "os_build": _said("/usr/bin/sw_vers", "-buildVersion") if sys.platform == "darwin" else platform.version(),
        "power": _power(),
        "energy": meter_command()[1] or "powermetrics, means of the whole machine",
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def load() -> float | None:
    """The system's load average over the last minute: the number of programs that compute or wait for a core. None if
    the system does not tell."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def _cpu() -> str:
    if sys.platform == "darwin":
        from hexane.targets.detect import read_brand

        return read_brand()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _power() -> str:
    if sys.platform == "darwin":
        return power_of_pmset(_said("/usr/bin/pmset", "-g", "batt"))
    for supply in sorted(Path("/sys/class/power_supply").glob("A*/online")):
        return "mains" if supply.read_text().strip() == "1" else "battery"
    return ""


def power_of_pmset(text: str) -> str:
    """The power source in the first line of `pmset -g batt`, such as: Now drawing from 'AC Power'."""
    line = text.partition("\n")[0]
    return "mains" if "'AC Power'" in line else "battery" if "'Battery Power'" in line else ""


def _said(*command: str) -> str:
    """The output of a macOS command; "" on other systems, and if it cannot be run."""
    if sys.platform != "darwin":
        return ""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""

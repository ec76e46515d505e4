"""What a result has to say of the machine it comes from."""

import os
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hexane import _core
from hexane.targets.detect import detect_name


def environment() -> dict[str, Any]:
    """Chip, system, cores and versions of this machine; power is "battery", "mains" or "" where nobody says."""
    name = detect_name()
    return {
        "cpu": _cpu(),
        "target": name.target,
        "asked": "" if name.written == name.target else name.written,
        "isa": _core.isa(),
        "cores": os.cpu_count(),
        "os": platform.platform(),
        "power": _power(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


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
    for supply in sorted(Path("/sys/class/power_supply").glob("A*/online")):
        return "mains" if supply.read_text().strip() == "1" else "battery"
    return ""

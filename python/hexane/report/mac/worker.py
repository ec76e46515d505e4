"""Runs cases of one probe: `python -c PROGRAM FILE` reads the names of the cases from stdin. The worker appends a line
to FILE when a case begins, and a line with its results. If the process crashes, the file names the case that was
running.
"""

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from hexane.errors import DeviceError, Error
from hexane.report.mac.probe import Context, Probe
from hexane.report.mac.probes import find_probe
from hexane.report.mac.record import Record

PROGRAM = "from hexane.report.mac.worker import main; main()"


def run_case(probe: Probe, name: str, context: Context) -> Record:
    """Runs a case in this process, and returns its record."""
    start = time.monotonic()
    answer = _answer(probe.cases[name], context)
    return {"probe": probe.name, "case": name, "seconds": round(time.monotonic() - start, 3), **answer}


def main() -> None:
    """Runs the cases that stdin names."""
    request = json.load(sys.stdin)
    context, probe = Context(**request["context"]), find_probe(request["probe"])
    with Path(sys.argv[1]).open("a", encoding="utf-8") as file:
        for name in request["cases"]:
            _write(file, {"probe": probe.name, "case": name, "begins": True})
            _write(file, run_case(probe, name, context))


def _write(file: Any, record: Record) -> None:
    file.write(json.dumps(_plain(record)) + "\n")
    file.flush()


def _plain(value: Any) -> Any:
    """Returns the value in types of JSON, which has no NaN, bytes or dates."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, (str, int)) else str(value)


def _answer(case: Any, context: Context) -> dict[str, Any]:
    try:
        return {"outcome": "done", "values": case(context)}
    except DeviceError as error:
        return {
            "outcome": "error",
            "error": str(error),
            "stage": error.stage,
            "code": error.code,
            "hint": error.hint,
        }
    except Error as error:
        return {"outcome": "error", "error": str(error)}
    except Exception as error:  # a defect in a case or in Hexane must not stop the next cases
        return {"outcome": "error", "error": f"{type(error).__name__}: {error}"}

"""Runs configurations, each in a process of its own, and collects one document of results."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import hexane
from hexane.bench.cliff import fit
from hexane.bench.document import VERSION
from hexane.bench.environment import environment
from hexane.bench.probes import Configuration, Device
from hexane.errors import Error
from hexane.runtime.engine import find_engine, own_chip

PATIENCE = 300  # seconds, beside those of the measurement


def run(
    configurations: Sequence[Configuration],
    device: Device,
    seconds: float = 0.5,
    threads: int | None = None,
    told: Callable[[Configuration, dict[str, Any]], None] = lambda configuration, result: None,
) -> dict[str, Any]:
    """The document of results (docs/bench.md). `told` hears of each as it is there.

    seconds: how long each is measured. A configuration that fails, or whose result is wrong, has the key "error" and
    the others go on. Raises Error for device "ane" where this machine has no Neural Engine.
    """
    if device == "ane" and (why := find_engine(own_chip())[1]):
        raise Error(f"[bench] device: got 'ane', need a Neural Engine: {why}")
    results = []
    for configuration in configurations:
        result = asdict(configuration) | _measured(configuration, device, seconds, threads)
        told(configuration, result)
        results.append(result)
    return {
        "format": "hexane-bench",
        "version": VERSION,
        "hexane": hexane.__version__,
        "device": device,
        "seconds": seconds,
        "environment": environment(),
        "results": results,
        "cliffs": _cliffs(results),
    }


def _measured(configuration: Configuration, device: Device, seconds: float, threads: int | None) -> dict[str, Any]:
    request = {"configuration": asdict(configuration), "device": device, "seconds": seconds, "threads": threads}
    command = [sys.executable, "-m", "hexane.bench.worker"]
    try:
        ran = subprocess.run(
            command,
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=PATIENCE + 4 * seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return {"error": f"no result after {error.timeout:.0f} s"}
    if ran.returncode:
        said = ran.stderr.strip().splitlines()
        return {"error": f"its process ended with code {ran.returncode}: {said[-1] if said else 'it said nothing'}"}
    result: dict[str, Any] = json.loads(ran.stdout)
    return result


def _cliffs(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fit of time over bytes, for each probe and side of which bytes grow: floor, breaks, and times without the
    floor."""
    found = []
    for probe, side in sorted({(r["probe"], r["side"]) for r in results if r["side"]}):
        ours = [r for r in results if (r["probe"], r["side"]) == (probe, side) and "error" not in r]
        points = sorted({r[f"{side.removesuffix('s')}_bytes"]: r["times_us"]["p50"] for r in ours}.items())
        line = fit([p[0] for p in points], [p[1] for p in points])
        above = [] if line.floor is None else [{"bytes": size, "us": us - line.floor} for size, us in points]
        found.append({"probe": probe, "side": side, "points": len(points), "above_floor": above, **asdict(line)})
    return found

"""Runs configurations, each in a process of its own, and collects their results in one document."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from statistics import median
from typing import Any

import hexane
from hexane.bench.cliff import fit
from hexane.bench.document import VERSION
from hexane.bench.environment import environment, load
from hexane.bench.probes import Configuration, Device
from hexane.errors import Error
from hexane.runtime.engine import find_engine, own_chip

PATIENCE = 300  # seconds that a process may take in addition to the measurement


def run(
    configurations: Sequence[Configuration],
    device: Device,
    seconds: float = 0.5,
    threads: int | None = None,
    told: Callable[[Configuration, dict[str, Any]], None] = lambda configuration, result: None,
    repeats: int = 1,
) -> dict[str, Any]:
    """The document of results (docs/bench.md). The callback `told` is called after each configuration of
    each round.

    seconds: how long each repeat is measured. repeats: rounds over all configurations, with a new process for each, so
    that the repeats of one configuration are as far apart in time as the run allows. A configuration that fails, or
    whose result is wrong, has the key "error" and is not repeated; the others continue. Raises Error for device "ane"
    if this machine has no Neural Engine.
    """
    if device == "ane" and (why := find_engine(own_chip())[1]):
        raise Error(f"[bench] device: got 'ane', need a Neural Engine: {why}")
    date, before = datetime.now(timezone.utc).isoformat(timespec="seconds"), load()
    loads: list[float] = []
    by_configuration: list[list[dict[str, Any]]] = [[] for _ in configurations]
    for _ in range(repeats):
        for configuration, records in zip(configurations, by_configuration, strict=True):
            if not records or "error" not in records[-1]:
                records.append(_measured(configuration, device, seconds, threads))
                if (now := load()) is not None:
                    loads.append(now)
            told(configuration, asdict(configuration) | records[-1])
    results = [asdict(c) | repeated(records) for c, records in zip(configurations, by_configuration, strict=True)]
    return {
        "format": "hexane-bench",
        "version": VERSION,
        "hexane": hexane.__version__,
        "device": device,
        "seconds": seconds,
        "repeats": repeats,
        "date": date,
        "load": {
            "before": before,
            "highest": max(loads, default=None),
            "own": max((_own_threads(c, device, threads) for c in configurations), default=0),
        },
        "environment": environment(),
        "results": results,
        "cliffs": _cliffs(results),
    }


def repeated(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The result of a configuration from the records of its repeats: the middle record by median time (with several
    threads, by mean time), but with the largest errors and the median times of compile and first call. `repeats` has
    the times of each repeat."""
    if "error" in records[-1]:
        return records[-1]
    ordered = sorted(records, key=lambda r: r.get("mean_us", r["times_us"]["p50"]))
    more = {key: max(r[key] for r in records) for key in ("distance", "largest_error")}
    more |= {key: median(r[key] for r in records) for key in ("compile_ms", "first_us")}
    repeats = [
        {"p50_us": r["times_us"]["p50"]} | {key: r[key] for key in ("mean_us", "calls_per_second") if key in r}
        for r in records
    ]
    return ordered[(len(ordered) - 1) // 2] | more | {"repeats": repeats}


def _own_threads(configuration: Configuration, device: Device, threads: int | None) -> int:
    """The number of threads of a configuration that compute at the same time, its share of the machine's load."""
    if configuration.mode == "threads":
        return configuration.threads
    return 1 if device == "ane" else threads or os.cpu_count() or 1


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
    """The fit of time against bytes, for each probe and growing side: floor, breaks, and times without the floor."""
    cliffs = []
    for probe, side in sorted({(r["probe"], r["side"]) for r in results if r["side"]}):
        ours = [r for r in results if (r["probe"], r["side"]) == (probe, side) and "error" not in r]
        points = sorted({r[f"{side.removesuffix('s')}_bytes"]: r["times_us"]["p50"] for r in ours}.items())
        line = fit([p[0] for p in points], [p[1] for p in points])
        above = [] if line.floor is None else [{"bytes": size, "us": us - line.floor} for size, us in points]
        cliffs.append({"probe": probe, "side": side, "points": len(points), "above_floor": above, **asdict(line)})
    return cliffs

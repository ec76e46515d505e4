"""Latency of a model, and where its time goes."""

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

import hexane
from hexane.cli.output import print_table
from hexane.graph import Array

MOST_RUNS = 100
MOST_SECONDS = 0.5


def latency(net: hexane.Model, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Median and 90th percentile of bound calls, in microseconds."""
    call = net.bind(**{name: np.ascontiguousarray(array) for name, array in arrays.items()})
    call()
    nanoseconds: list[int] = []
    end = time.perf_counter() + MOST_SECONDS
    while len(nanoseconds) < MOST_RUNS and (not nanoseconds or time.perf_counter() < end):
        start = time.perf_counter_ns()
        call()
        nanoseconds.append(time.perf_counter_ns() - start)
    median, p90 = np.percentile(nanoseconds, (50, 90)) / 1000
    return {"median_us": float(median), "p90_us": float(p90), "runs": len(nanoseconds)}


def profile(net: hexane.Model, arrays: Mapping[str, Array]) -> list[dict[str, Any]]:
    """The steps, slowest first: microseconds in the median call, and the share of all.

    Medians, as the latency of the whole call is one: a few calls on cold caches would rule a mean.
    """
    net.profile(True)
    latency(net, arrays)
    steps = net.steps
    net.profile(False)
    total = sum(step["median"] for step in steps) or 1
    rows = [
        {
            "kernel": step["kernel"],
            "from": step["source"],
            "calls": step["calls"],
            "us": step["median"] / 1000,
            "share": step["median"] / total,
        }
        for step in steps
    ]
    return sorted(rows, key=lambda row: -row["us"])


def print_profile(steps: list[dict[str, Any]]) -> None:
    numbers = ("steps", "calls", "us", "share")
    rows = [(s["kernel"], s["from"], str(s["calls"]), f"{s['us']:.2f}", f"{s['share']:.1%}") for s in steps]
    print()
    print_table(("kernel", "from", "calls", "us", "share"), rows, right=numbers)
    by_kernel: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for step in steps:
        by_kernel[step["kernel"]].append(step)
    sums = [(k, len(v), sum(s["us"] for s in v), sum(s["share"] for s in v)) for k, v in by_kernel.items()]
    print()
    sums.sort(key=lambda row: -row[2])
    lines = [(kernel, str(count), f"{us:.2f}", f"{share:.1%}") for kernel, count, us, share in sums]
    print_table(("kernel", "steps", "us", "share"), lines, right=numbers)

"""`hexane run --runtime c99`: runs the C99 runtime, and compares its outputs with the host's."""

import tempfile
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import hexane
from hexane.graph import Array
from hexane.runtime.c99 import C99Model

_RUNS = 10
MOST = float(np.finfo(np.float64).max)  # used as the difference for NaN and infinities


class Runtime(str, Enum):
    """--runtime: what runs the plan on this machine."""

    HOST = "host"
    C99 = "c99"


def run_in_c99(
    net: hexane.Model, arrays: Mapping[str, Array], host: Mapping[str, Array]
) -> tuple[dict[str, Array], dict[str, float], dict[str, Any]]:
    """Returns the outputs, the largest difference of each from the host's (0: equal numbers), and the latency. Zeros of
    either sign are equal, and so are NaNs."""
    with tempfile.TemporaryDirectory(prefix="hexane-c99-") as folder:
        net.save(Path(folder) / "plan.hxp")
        model = C99Model((Path(folder) / "plan.hxp").read_bytes())
    times = []
    for _ in range(_RUNS):
        start = time.perf_counter_ns()
        outputs = model(arrays)
        times.append((time.perf_counter_ns() - start) / 1000)
    timed = {"median_us": median(times), "p90_us": float(np.percentile(times, 90)), "runs": _RUNS}
    return outputs, {name: _difference(outputs[name], host[name]) for name in outputs}, timed


def _difference(got: Array, need: Array) -> float:
    if np.array_equal(got, need, equal_nan=got.dtype.kind == "f"):
        return 0.0
    with np.errstate(invalid="ignore"):
        delta = np.abs(got.astype(np.float64) - need.astype(np.float64))
    return float(np.nan_to_num(delta, nan=MOST, posinf=MOST).max())

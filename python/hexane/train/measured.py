"""Measurements of the machine for a log entry: times by lane, operations a second, memory, compiles left."""

import resource
import sys
from typing import Any

from hexane.cost.peak import TERA, project_peak
from hexane.program.work import multiply_adds
from hexane.runtime import Model
from hexane.train.lanes import LaneTimes

KIB = 1024


class Measured:
    """Measures the calls of a model, by enabling its profiling."""

    def __init__(self, net: Model) -> None:
        self._net = net
        self._lanes = LaneTimes(net)
        self._operations, self._of_engine = operations(net)
        self._peak = project_peak(net.target).tflops if net.is_on_engine else None

    def read(self, ms: float) -> dict[str, Any]:
        """Returns measurements of the last call. ms: its time. `ms.LANE`: see `LaneTimes.read`; `tflops`: 10^12
        operations of products a second; `of_peak`: the engine's operations as a share of the chip's peak, if the engine
        runs any; `memory`: this process's highest memory so far, in bytes; `compiles_left`: compilations that this
        process may still do, if they are limited."""
        numbers: dict[str, Any] = {f"ms.{lane}": time for lane, time in self._lanes.read().items()}
        seconds = max(ms, 1e-6) / 1e3
        numbers["tflops"] = _short(self._operations / seconds / TERA)
        if self._peak:
            numbers["of_peak"] = _short(self._of_engine / seconds / TERA / self._peak)
        numbers["memory"] = most_memory()
        if (left := self._net.compiles_left) is not None:
            numbers["compiles_left"] = left
        return numbers


def operations(net: Model) -> tuple[int, int]:
    """Returns floating-point operations of the products in a call, two per multiply-add: of all products, and of the
    products in engine programs."""
    steps = [] if net.program is None else net.program.steps
    counts = [(2 * multiply_adds(step.node), step.kernel == "program") for step in steps]
    return sum(count for count, _ in counts), sum(count for count, aside in counts if aside)


def most_memory() -> int:
    """Returns the highest memory of this process so far, in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * KIB


def _short(value: float) -> float:
    return float(f"{value:.4g}")

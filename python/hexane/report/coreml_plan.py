"""Compares Core ML's plan for each operation of a model with the forecast for a chip: `hexane check --measured`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hexane.emit.mil.names import Names
from hexane.graph.decisions import counted
from hexane.report.report import DEVICES, Report
from hexane.runtime.coreml_library import PlannedOp

HEAD = ("op", "result", "Core ML", "can run on", "cost", "forecast", "")
WORDS = {"ne": "engine", "gpu": "gpu", "cpu": "cpu", "": "", "other": "other"}


@dataclass(frozen=True, slots=True)
class ComparedOp:
    """An operation of Core ML's plan. forecast: "engine" or "CPU"; "" if the operation belongs to no op of the
    network, such as a cast at a port."""

    planned: PlannedOp
    forecast: str

    @property
    def agrees(self) -> bool | None:
        """True if plan and forecast agree on the engine; None without a forecast."""
        return None if not self.forecast else (self.planned.preferred == "ne") == (self.forecast == "engine")

    def row(self) -> tuple[str, ...]:
        planned = self.planned
        cost = "" if planned.cost is None else f"{planned.cost:.1%}"
        devices = ", ".join(WORDS.get(name, name) for name in planned.supported)
        mark = "differs" if self.agrees is False else ""
        return planned.op, planned.output, WORDS[planned.preferred], devices, cost, self.forecast, mark

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        p = self.planned
        return {"op": p.op, "result": p.output, "preferred": p.preferred, "supported": list(p.supported),
                "cost": p.cost, "forecast": self.forecast, "agrees": self.agrees}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ComparedPlan:
    """The operations that Core ML places, in the order of its plan. label: the chip of the forecast."""

    label: str
    ops: tuple[ComparedOp, ...]

    @property
    def share(self) -> float | None:
        """The share of the operations with a forecast where Core ML and the forecast agree on the engine."""
        known = [op.agrees for op in self.ops if op.agrees is not None]
        return sum(known) / len(known) if known else None

    @property
    def summary(self) -> str:
        planned = sum(op.planned.preferred == "ne" for op in self.ops)
        said = f"Core ML plans {planned} of {counted(len(self.ops), 'operation')} for the Neural Engine"
        known = [op.agrees for op in self.ops if op.agrees is not None]
        if self.share is None:
            return f"{said}; none is named like an op of the network"
        return f"{said}; the forecast for {self.label} agrees on {sum(known)} of {len(known)} ({self.share:.0%})"

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {"forecast_for": self.label, "agree": self.share, "operations": [op.record() for op in self.ops]}


def compare_plan(report: Report, plan: Sequence[PlannedOp]) -> ComparedPlan:
    """Compares Core ML's plan with the forecast. Constants are left out: Core ML names no device for them. An operation
    belongs to an op if its result has the name of the op, or of the output that the op computes."""
    forecasts = _forecasts(report)
    placed = (op for op in plan if op.preferred)
    return ComparedPlan(report.chip.label, tuple(ComparedOp(op, _find(forecasts, op.output)) for op in placed))


def _find(forecasts: Mapping[str, str], name: str) -> str:
    """Returns the forecast for a result. A numeric suffix, which repeated names get, is ignored."""
    return forecasts.get(name) or forecasts.get(re.sub(r"_\d+$", "", name), "")


def _forecasts(report: Report) -> dict[str, str]:
    """Returns forecasts by names of results. If several ops share a name and one is on the host, the host counts."""
    forecasts: dict[str, str] = {}
    for segment in report.segments:
        forecast = DEVICES[segment.device]
        for node in segment.nodes:
            for name in _names(node.sources):
                forecasts[name] = DEVICES["host"] if forecasts.get(name) == DEVICES["host"] else forecast
    of_outputs = {
        name: forecasts[source]
        for port in report.graph.outputs
        for name in _names([port.name])
        for source in _names(port.value.node.sources[:1])
        if source in forecasts
    }
    return forecasts | of_outputs


def _names(given: Iterable[str]) -> list[str]:
    """Returns the names as written in MIL."""
    return [Names(()).give(name) for name in given]

"""The effect of a change of a network on a chip: placement, number of parts and latency, before and after."""

from dataclasses import dataclass
from typing import Any

from hexane.cost import Estimate
from hexane.graph import Graph
from hexane.report.estimate import estimate
from hexane.report.outcome import Outcome
from hexane.report.preflight import examine
from hexane.targets import Chip

SLOWER = 1.1  # a network is called slower from this multiple of its earlier latency


@dataclass(frozen=True, slots=True)
class OnChip:
    """The placement of a network on a chip, and its latency, None if no op runs on the engine."""

    outcome: Outcome
    latency: Estimate | None

    @classmethod
    def of(cls, graph: Graph, chip: Chip) -> "OnChip":
        (report,) = examine(graph, [chip])
        return cls(report.outcome, estimate(report.graph, chip) if report.outcome.engine else None)

    def __str__(self) -> str:
        if self.latency is None:
            return str(self.outcome)
        latency = self.latency
        interval = f"{latency.p10_us:.0f} to {latency.p90_us:.0f} in eight of ten cases"
        return f"{self.outcome}; about {latency.latency_us:.0f} us ({interval})"

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        forecast = self.latency
        times = None if forecast is None else [forecast.latency_us, forecast.p10_us, forecast.p90_us]
        names = ("latency_us", "p10_us", "p90_us")
        latency = dict.fromkeys(names) if times is None else dict(zip(names, times, strict=True))
        return {**self.outcome.record(), "parts": self.outcome.parts, **latency}


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """A network on a chip before and after a change."""

    chip: Chip
    before: OnChip
    after: OnChip

    @classmethod
    def of(cls, before: Graph, after: Graph, chip: Chip) -> "BeforeAfter":
        return cls(chip, OnChip.of(before, chip), OnChip.of(after, chip))

    @property
    def times(self) -> float | None:
        """The latency after the change, divided by that before; None if one is unknown."""
        before, after = self.before.latency, self.after.latency
        return None if before is None or after is None else after.latency_us / before.latency_us

    def lines(self, instead: str) -> list[str]:
        """Returns lines of text. instead: the advice to print if the change makes the network slower."""
        result = [f"{self.chip.label} before: {self.before}", f"{self.chip.label} after: {self.after}"]
        times = self.times
        if times is not None and times >= SLOWER:
            result.append(f"it takes {times:.1f} times as long on {self.chip.label} as before: {instead}")
        elif self.before.outcome.engine and not self.after.outcome.engine:
            result.append(f"no op of it runs on the engine of {self.chip.label} any more: {instead}")
        return result

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {"target": self.chip.name, "before": self.before.record(), "after": self.after.record()}

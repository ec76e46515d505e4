"""Estimates the latency of a network on a microcontroller, without measuring a device."""

from dataclasses import dataclass

from hexane.program import Program
from hexane.program.work import in_bytes, multiply_adds
from hexane.targets.microcontrollers import cores

CLOCK = 100  # In MHz: the clock for which milliseconds are given.


@dataclass(frozen=True, slots=True)
class Latency:
    """Millions of cycles on a core, as a range, the equivalent milliseconds at 100 MHz, and the basis of the
    estimate."""

    core: str
    cycles: tuple[float, float]
    milliseconds: tuple[float, float]
    basis: str


def latencies(program: Program) -> tuple[Latency, ...]:
    """Returns the latency for each core whose instructions per multiply-add were counted."""
    counts = _counts(program)
    result = []
    for core in cores():
        spans = {kind: core.instructions[kind] for kind in counts}
        least, most = (sum(counts[kind] * span[i] / 1e6 for kind, span in spans.items()) for i in (0, 1))
        parts = [f"{counts[kind]} multiply-accumulates x {a} to {b} instructions" for kind, (a, b) in spans.items()]
        basis = (
            f"estimate: {', '.join(parts)} (C99 runtime, {core.status} by {core.source} under QEMU), one cycle each, no"
            " waiting for flash"
        )
        result.append(Latency(core.name, (least, most), (least * 1000 / CLOCK, most * 1000 / CLOCK), basis))
    return tuple(result)


def _counts(program: Program) -> dict[str, int]:
    """Returns the number of multiply-adds by kind of operands: kinds need different instructions."""
    counts = {"int8": 0, "fp32": 0}
    for step in program.steps:
        counts["int8" if in_bytes(step.node) else "fp32"] += multiply_adds(step.node)
    return {kind: count for kind, count in counts.items() if count} or {"fp32": 0}

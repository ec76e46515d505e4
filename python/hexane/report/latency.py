"""About how long a network takes on a microcontroller. An estimate: no device was asked."""

from dataclasses import dataclass

from hexane.program import Program
from hexane.program.work import multiply_adds
from hexane.targets.microcontrollers import cores

CLOCK = 100  # MHz, of the times; they scale with it


@dataclass(frozen=True, slots=True)
class Latency:
    """Millions of cycles on a core, between the least and the most, the same as milliseconds at 100 MHz, and what that
    is based on."""

    core: str
    cycles: tuple[float, float]
    milliseconds: tuple[float, float]
    basis: str


def latencies(program: Program) -> tuple[Latency, ...]:
    """For each core whose instructions have been counted."""
    quantized = any("quantized" in step.kernel for step in program.steps)
    macs = multiply_accumulates(program)
    result = []
    for core in cores():
        least, most = core.instructions["int8" if quantized else "fp32"]
        cycles = (macs * least / 1e6, macs * most / 1e6)
        basis = (
            f"estimate: {macs} multiply-accumulates x {least} to {most} instructions (C99 runtime, {core.status} by"
            f" {core.source} under QEMU), one cycle each, no waiting for flash"
        )
        result.append(Latency(core.name, cycles, (cycles[0] * 1000 / CLOCK, cycles[1] * 1000 / CLOCK), basis))
    return tuple(result)


def multiply_accumulates(program: Program) -> int:
    return sum(multiply_adds(step.node) for step in program.steps)

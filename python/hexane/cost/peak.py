"""The most that a chip's cores could compute in a second, from facts alone: `hx.project_peak`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from hexane.cost.parameters import clock_of, product_of
from hexane.targets import Chip
from hexane.targets.fact import Fact, Place, read_fact
from hexane.targets.query import load_chip
from hexane.targets.tables import table

TERA = 1e12
MEGA = 1e6


@dataclass(frozen=True)
class Peak:
    """A chip's peak. tflops: 10^12 fp16 operations a second at the top clock, where a multiply-add is two;
    relative_to_m1: the ratio to M1's peak; ghz: the top clock. tflops, relative_to_m1 and ghz are None if no source
    gives a clock. end_to_end: the least and most measured speed-up of whole calls over M1; None if not measured.
    caveat: why the peak is no prediction. facts: cores, clock (MHz), multiply_adds_per_core_cycle and end_to_end with
    their source, status and claims."""

    target: str
    tflops: float | None
    relative_to_m1: float | None
    cores: int
    ghz: float | None
    end_to_end: tuple[float, float] | None
    caveat: str
    facts: Mapping[str, Fact] = field(repr=False)

    def record(self) -> dict[str, Any]:
        """The peak as a JSON object."""
        plain = ("target", "tflops", "relative_to_m1", "cores", "ghz", "end_to_end", "caveat")
        said = {
            name: {
                "source": one.source,
                "status": one.status,
                "claims": [{"value": c.value, "source": c.source, "status": c.status} for c in one.claims],
            }
            for name, one in self.facts.items()
        }
        return {**{name: getattr(self, name) for name in plain}, "facts": said}


def project_peak(target: str | Chip) -> Peak:
    """The most that a chip's cores could compute: cores x multiply-adds in a cycle x 2 x the top clock. The peak does
    not predict the time of a network: use `hx.estimate`.

    target: a chip in any spelling. Raises Error for an unknown chip, and for the host, which has no engine.
    """
    chip = load_chip(target)
    tflops, m1 = _tflops(chip), _tflops(load_chip("M1"))
    clock, measured = _clock(chip), _end_to_end().get(product_of(chip))
    facts = {"cores": chip.facts["cores"], "clock": clock, "multiply_adds_per_core_cycle": _multiply_adds()}
    return Peak(
        chip.label,
        tflops,
        None if tflops is None or m1 is None else tflops / m1,
        chip.cores,
        None if clock.value is None else clock.value / 1000,
        None if measured is None else measured.value,
        _caveat(chip, measured),
        facts if measured is None else {**facts, "end_to_end": measured},
    )


def _caveat(chip: Chip, measured: Fact | None) -> str:
    words = "a peak is no speed-up: calls, copies and memory take their time whatever the cores could do"
    if product_of(chip) == "m1":
        return f"{words}; M1 is the chip that others are compared with"
    if measured is None:
        return f"{words}; no latency of {chip.label} next to M1's is published"
    least, most = measured.value
    return f"{words}; measured, calls on {chip.label} were {least:g} to {most:g} times as fast as on M1"


def _tflops(chip: Chip) -> float | None:
    clock = _clock(chip).value
    return None if clock is None else chip.cores * _multiply_adds().value * 2 * clock * MEGA / TERA


def _clock(chip: Chip) -> Fact:
    """The top clock in MHz. If the target's clock is unknown, the clock of its generation."""
    result = clock_of(chip.name)
    if result.value is None and chip.name in table("peak")["clocks"]:
        return read_fact(_place(), f"clocks.{chip.name}", table("peak")["clocks"][chip.name], int)
    return result


@cache
def _multiply_adds() -> Fact:
    name = "multiply_adds_per_core_cycle"
    return read_fact(_place(), name, table("peak")[name], int)


@cache
def _end_to_end() -> dict[str, Fact]:
    """The measured speed-ups over M1 by product, in lower case."""
    rows = table("peak")["end_to_end"].items()
    return {name.casefold(): read_fact(_place(), f"end_to_end.{name}", row, tuple[float, ...]) for name, row in rows}


def _place() -> Place:
    given = table("peak")
    return Place("shared/peak.toml", given["source"], given["status"])

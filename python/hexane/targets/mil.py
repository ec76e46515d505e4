"""Limits of a MIL program in the engine's compiler: `shared/mil.toml`."""

from dataclasses import dataclass, fields
from functools import cache

from hexane.targets.fact import Fact, Place, read_fact
from hexane.targets.tables import table


@dataclass(frozen=True, slots=True)
class MilLimit:
    """A limit, and the number of its constraint in docs/mil.md."""

    constraint: int
    fact: Fact


@dataclass(frozen=True, slots=True)
class MilLimits:
    """Limits of MIL. ports: dtypes of inputs and outputs. conv_inputs: input channels of a convolution, exclusive.
    norm_elements, affine_norm_elements: elements that a layer norm reduces, exclusive. program_bytes: bytes of weights.
    conv_speedup: of a 1x1 convolution over a matmul with constant weights. row_elements: rows are fast if their length
    is a multiple of this number. softmax_power: one report says that a softmax fails unless its extent is a power of
    this number. kernel_lap, kernel_lap_window: a layer's weights are slow if their bytes in a core are within the
    window around a multiple of the lap."""

    ports: MilLimit
    conv_inputs: MilLimit
    norm_elements: MilLimit
    affine_norm_elements: MilLimit
    program_bytes: MilLimit
    conv_speedup: MilLimit
    row_elements: MilLimit
    softmax_power: MilLimit
    kernel_lap: MilLimit
    kernel_lap_window: MilLimit


@cache
def mil_limits() -> MilLimits:
    rows = table("mil")
    place = Place("shared/mil.toml", rows["source"], rows["status"])

    def limit(name: str) -> MilLimit:
        row = {"source": place.source, "status": place.status, **rows[name]}
        constraint = row.pop("constraint")
        return MilLimit(constraint, read_fact(place, name, row, tuple[str, ...] if name == "ports" else int))

    return MilLimits(**{field.name: limit(field.name) for field in fields(MilLimits)})

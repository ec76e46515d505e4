"""The tables of ops and layers: where an op of MIL is legal, and the unit that runs it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from hexane.targets.chip import Chip
from hexane.targets.fact import Claim
from hexane.targets.family import Family
from hexane.targets.first_chips import with_chips
from hexane.targets.tables import table
from hexane.targets.verdict import Kind, Route


@dataclass(frozen=True, slots=True)
class Floor:
    """A row of floors.toml: where one op of MIL is legal. `native`: the first family that runs the op as it is; None if
    no family does. `bridge`: a netplist can have the op although MIL cannot."""

    op: str
    unit: str
    native: Family | None
    trait: Family | None
    layer: str
    bridge: bool
    below: Kind
    because: str
    change: str
    source: str
    status: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class NetplistLayer:
    """A layer of a netplist. gate: the field of Chip.gates that its validator reads. fails: the first family with
    working code generation, or "always" if no family has it. export: it has a validator of its own. authored: the layer
    can be written in a netplist even without a validator of its own."""

    name: str
    gate: str
    reject: str
    published: bool
    fails: Family | Literal["always"] | None
    descriptor: bool
    export: bool
    authored: bool


@cache
def floors() -> Mapping[str, Floor]:
    """Every op of MIL, and other ops that sources name, by name."""
    data = table("floors")
    result = {}
    for group in data["group"]:
        for op in group["ops"]:
            claims = data["disputes"].get(op, {}).get("claims", ())
            result[op] = Floor(
                op,
                group["unit"],
                family_of(group.get("native")),
                family_of(group.get("trait")),
                group.get("layer", ""),
                group.get("bridge", False),
                group.get("below", "rejected"),
                group.get("because", ""),
                group.get("change", ""),
                group.get("source", data["source"]),
                group.get("status", data["status"]),
                tuple(Claim(with_chips(c["says"]), c["source"], c["status"]) for c in claims),
            )
    return result


@cache
def layers() -> Mapping[str, NetplistLayer]:
    """The kinds of layers that a netplist may have, by name, with their conditions."""
    return {
        name: NetplistLayer(
            name,
            row.get("gate", ""),
            row.get("reject", ""),
            "reject" in row and not row.get("own", False),
            "always" if row.get("fails") == "always" else family_of(row.get("fails")),
            row.get("descriptor", True),
            row.get("export", True),
            row.get("authored", row.get("export", True)),
        )
        for name, row in table("floors")["layers"]["rows"].items()
    }


def family_of(name: str | None) -> Family | None:
    return None if name is None else Family[name]


def mil_ops(op: str) -> tuple[str, ...] | None:
    """The MIL ops for an op: its own name, or the ops that it is written as. () if there are none, None for an unknown
    op."""
    other = table("floors")["ops"]
    return tuple(other[op]) if op in other else (op,) if op in floors() else None


def op_unit(op: str) -> str:
    """The unit of the engine that does most of the work of an op: mac, planar, transpose, texture, dma; "" for none."""
    units = [floors()[name].unit for name in mil_ops(op) or ()]
    order = ("mac", "texture", "planar", "transpose", "dma")
    return next((unit for unit in order if unit in units), "")


def route_of(chip: Chip) -> Route:
    """How programs get to a chip's engine: in MIL, or as an authored netplist if its family is below the floor of
    MIL."""
    return "mil" if chip.family >= Family[table("floors")["mil"]["floor"]] else "netplist"


def layer_unit(layer: str) -> str:
    """The unit that runs a layer of a netplist, taken from the first MIL op that maps to the layer; "" if unknown."""
    unit = next((floor.unit for floor in floors().values() if floor.layer == layer and floor.unit != "none"), "")
    return unit or _UNITS.get(layer, "")


# Layers that no MIL op maps to, by their names in the compiler's lists of units and fused operations.
_UNITS = {
    "CrossCorrelation": "mac",
    "GOC": "planar",
    "DynamicGOC": "planar",
    "ScaledElementWise": "planar",
    "MinMaxNorm": "planar",
}

"""Family and tier: the two ways to order the generations of the engine. They never convert into each other by themselves."""

from enum import Enum
from functools import cache
from typing import NamedTuple, TypeVar

from hexane.errors import Error
from hexane.targets.tables import table

T = TypeVar("T", bound="_Ordered")


class _Ordered(Enum):
    """Members of one enum are ordered among themselves; with anything else, `<` raises TypeError and `==` is False."""

    def __lt__(self: T, other: T) -> bool:
        return self.value < other.value if type(self) is type(other) else NotImplemented

    def __le__(self: T, other: T) -> bool:
        return self.value <= other.value if type(self) is type(other) else NotImplemented

    def __gt__(self: T, other: T) -> bool:
        return self.value > other.value if type(self) is type(other) else NotImplemented

    def __ge__(self: T, other: T) -> bool:
        return self.value >= other.value if type(self) is type(other) else NotImplemented

    def __str__(self) -> str:
        return self.name


class Family(_Ordered):
    """The families by which the engine's compiler decides which ops are legal: its own eight values and their numbers."""

    A11Legacy = 0
    A12 = 1
    A13 = 2
    A14 = 3
    A15 = 4
    A16 = 5
    A17 = 6
    A18 = 7


class Tier(_Ordered):
    """The five groups of chips with the same capabilities: limits, gates and streams follow them."""

    OLDER = 1
    A13 = 2
    A14 = 3
    A15 = 4
    A16 = 5


@cache
def hardware_versions() -> dict[int, Family]:
    """The family each hardware version resolves to. Two families have two versions each: it cannot be turned round."""
    return {int(version): Family[name] for version, name in table("families")["hardware_version"].items()}


def family_of_hardware_version(version: int) -> Family:
    """Raises Error for a version that the compiler's table does not have."""
    known = hardware_versions()
    if version not in known:
        raise Error(f"[targets] hardware version: got {version!r}, need one of {', '.join(map(str, sorted(known)))}")
    return known[version]


class Costs(NamedTuple):
    """What the compiler's analytic cost model has for a family. clamps: of the bandwidth, for one bucket of sizes each, as far as
    they are published; ramp: the first and the last setup latency. Units are not published."""

    clamps: tuple[float, ...]
    ramp: tuple[float, float]


def analytic_costs(family: Family) -> Costs:
    """Source: guide ch35, table 35.7, decoded. Raises Error for a tier, which is another ordering."""
    if type(family) is not Family:
        raise Error(f"[targets] family: got {family!r}, need a Family")
    rows = table("families")["cost_model"]
    row = rows.get(family.name, rows["others"])
    return Costs(tuple(row["clamps"]), tuple(row["ramp"]))


def arch_for_family(family: Family) -> str:
    """A target that represents the family: compile for it when only the family counts.

    Raises Error for a family that no target has, and for a tier, which is another ordering (arch_for_tier).
    """
    return _representative("family", family, Family)


def arch_for_tier(tier: Tier) -> str:
    """A target that represents the tier. Raises Error for a family, which is another ordering (arch_for_family)."""
    return _representative("tier", tier, Tier)


def _representative(what: str, member: _Ordered, kind: type[_Ordered]) -> str:
    if type(member) is not kind:
        raise Error(f"[targets] {what}: got {member!r}, need a {kind.__name__}")
    archs = table("families")[f"{what}_arch"]
    if member.name not in archs:
        raise Error(f"[targets] {what}: got {member.name}, which no target has, need one of {', '.join(archs)}")
    return str(archs[member.name])

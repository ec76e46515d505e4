"""Facts about a family or a tier. A family or tier is given by its name ("family A13") or by one of its chips."""

from typing import NamedTuple, TypeVar

from hexane.errors import Error
from hexane.targets.chip import Chip
from hexane.targets.family import Family, Tier
from hexane.targets.names import group
from hexane.targets.query import load_chip
from hexane.targets.tables import table
from hexane.targets.target import Target

Group = TypeVar("Group", Family, Tier)


class Costs(NamedTuple):
    """The compiler's analytic costs for a family. clamps: the published bandwidth clamps, one per bucket of sizes.
    ramp: the first and the last setup latency. The units of these numbers are not published."""

    clamps: tuple[float, ...]
    ramp: tuple[float, float]


def analytic_costs(family: Family | str | Chip) -> Costs:
    """The costs of a family, or of a chip's family. "A13" is the chip A13, whose family is A12; "family A13" is the
    family.

    Source: guide ch35, table 35.7, decoded. Raises Error for a tier, which is another ordering.
    """
    rows = table("families")["cost_model"]
    row = rows.get(_member(Family, family).name, rows["others"])
    return Costs(tuple(row["clamps"]), tuple(row["ramp"]))


def arch_for_family(family: Family | str | Chip) -> str:
    """A target that represents the family, or the family of a chip: compile for it when only the family counts.

    Raises Error for a family that no target has, and for a tier, which is another ordering (arch_for_tier).
    """
    return _representative(_member(Family, family))


def arch_for_tier(tier: Tier | str | Chip) -> str:
    """A target that represents the tier, or the tier of a chip. Raises Error for a family, which is another ordering
    (arch_for_family)."""
    return _representative(_member(Tier, tier))


def _representative(member: Family | Tier) -> str:
    what = type(member).__name__.lower()
    archs = table("families")[f"{what}_arch"]
    if member.name not in archs:
        raise Error(f"[targets] {what}: got {member.name}, which no target has, need one of {', '.join(archs)}")
    return str(archs[member.name])


def _member(kind: type[Group], given: Group | str | Chip) -> Group:
    """The family or tier that is meant. A string is the name of a chip, unless it begins with "family" or "tier"."""
    what = kind.__name__.lower()
    if isinstance(given, kind):
        return given
    if isinstance(given, str):
        if (named := group(given)) is None:
            return _member(kind, load_chip(given))
        if named[0] == what:
            return kind[named[1]]
    elif isinstance(given, Target):
        of_chip = getattr(load_chip(given), what)
        assert isinstance(of_chip, kind)
        return of_chip
    raise Error(f"[targets] {what}: got {given!r}, need a {kind.__name__}, or a chip, such as 'M1'")

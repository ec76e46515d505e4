"""Families in the names of products: a text names the first chips of a family, such as iPhone 13 (A15, M2)."""

import re

from hexane.targets.devices import well_known
from hexane.targets.family import Family
from hexane.targets.tables import table, target_table


def from_family(family: Family | None) -> str:
    """The advice if chips of this family or later are needed, such as "needs iPhone 13 (A15, M2) or later"."""
    return "" if family is None else f"needs {first_chips(family)} or later"


def newer_chips(change: str) -> str:
    """The chips of an advice of `from_family`, such as "iPhone 13 (A15, M2)"; "" for a change of the network."""
    found = re.fullmatch(r"needs (.+) or later", change)
    return found[1] if found else ""


def first_chips(family: Family) -> str:
    """The first products of a family, such as "iPhone 13 (A15, M2)". Texts name products, because the chip in a
    family's name does not belong to the family."""
    products = target_table(table("families")["family_arch"][str(family)]).get("products", [])
    names = tuple(str(p["name"] if isinstance(p, dict) else p) for p in products)
    lead = next(well_known(names), "")
    if not lead:
        return f"a chip of family {family}"
    others = ", ".join(name for name in names if name != lead)
    return f"{lead}{f' ({others})' if others else ''}"


def with_chips(text: str) -> str:
    """Returns a text of the tables or rules with chips in place of a family: "from family A15 on" becomes "on iPhone 15
    (A16, M3) and later", "family A13 or later" becomes "iPhone 12 (A14, M1) or later", "on family A13"
    becomes "on iPhone 12 (A14, M1)"."""
    text = re.sub(r"from family (\w+) on\b", lambda found: f"on {first_chips(Family[found[1]])} and later", text)
    text = re.sub(r"\bon every family\b", "on every chip", text)
    return re.sub(r"\bfamily (A\d+\w*)", lambda found: first_chips(Family[found[1]]), text)

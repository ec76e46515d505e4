"""Finds the silicon that a source measured. A value measured on one chip is inherited by the other chips that share its
file."""

from collections.abc import Collection

from hexane.targets.fact import Claim, Fact
from hexane.targets.tables import table

SEEN = ("measured", "verified")


def measured_on(source: str, products: Collection[str]) -> bool:
    """True if the source measured one of these products (`shared/measured_on.toml`)."""
    return source.startswith(sources_of(products))


def sources_of(products: Collection[str]) -> tuple[str, ...]:
    """The sources that measured one of these products."""
    return tuple(source for source, silicon in table("measured_on").items() if not set(silicon).isdisjoint(products))


def as_inherited(fact: Fact, products: Collection[str]) -> Fact:
    """The fact of a base for a chip with these products. If the fact was only measured on other silicon, its status
    becomes "inherited"; the same holds for each claim."""
    claims = tuple(Claim(c.value, c.source, _status(c.source, c.status, products)) for c in fact.claims)
    return Fact(fact.value, fact.source, _status(fact.source, fact.status, products), claims)


def _status(source: str, status: str, products: Collection[str]) -> str:
    return "inherited" if status in SEEN and not measured_on(source, products) else status

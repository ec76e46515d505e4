"""Reads a file of facts: a value for each field of a dataclass, with its source."""

from dataclasses import fields
from typing import Any

from hexane.targets.fact import Place, check_keys, read_fact
from hexane.targets.tables import table


def read_facts(kind: Any, name: str) -> dict[str, Any]:
    """The fields of a dataclass from `shared/NAME.toml`, and in `facts` the facts by name."""
    given = dict(table(name))
    place = Place(f"{name}.toml", given.pop("source"), given.pop("status"))
    kinds = {f.name: f.type for f in fields(kind) if f.name != "facts"}
    check_keys(place, "its keys", given, set(kinds))
    facts = {key: read_fact(place, key, given[key], wanted) for key, wanted in kinds.items()}
    return {**{key: fact.value for key, fact in facts.items()}, "facts": facts}

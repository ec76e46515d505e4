"""Where systems run a program that the engine's compiler takes: what was seen of whole networks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache

from hexane.targets.fact import Fact, Place, check_keys, read_fact
from hexane.targets.tables import table


@dataclass(frozen=True, slots=True)
class Placement:
    """most_program_bytes: of the weights of a program that the system places on the engine, since limit_since;
    most_program_bytes_before: on systems before. least_parameters_seen: of a network of which eligible_ops_of_it ops
    were eligible and placed_ops_of_it placed."""

    most_program_bytes: int
    most_program_bytes_before: int
    limit_since: str
    least_parameters_seen: int
    eligible_ops_of_it: int
    placed_ops_of_it: int
    facts: Mapping[str, Fact] = field(repr=False, compare=False)


@cache
def placement() -> Placement:
    """The numbers of `shared/placement.toml`."""
    given = dict(table("placement"))
    place = Place("placement.toml", given.pop("source"), given.pop("status"))
    kinds = {f.name: f.type for f in fields(Placement) if f.name != "facts"}
    check_keys(place, "its keys", given, set(kinds))
    facts = {name: read_fact(place, name, given[name], kind) for name, kind in kinds.items()}
    return Placement(**{name: fact.value for name, fact in facts.items()}, facts=facts)

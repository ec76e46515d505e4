"""Where systems run a program that the engine's compiler takes: what was seen of whole networks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from hexane.targets.fact import Fact
from hexane.targets.fact_file import read_facts


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
    return Placement(**read_facts(Placement, "placement"))

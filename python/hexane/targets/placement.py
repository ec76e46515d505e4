"""Observations of the system's placement of whole networks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from hexane.targets.fact import Fact
from hexane.targets.fact_file import read_facts


@dataclass(frozen=True, slots=True)
class Placement:
    """most_program_bytes: since the system version limit_since, no program with more bytes of weights is placed on the
    engine; most_program_bytes_before: the limit of earlier versions. least_parameters_seen: the parameters of a network
    with eligible_ops_of_it eligible ops, of which placed_ops_of_it were placed."""

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

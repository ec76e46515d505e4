"""What the service that compiles and loads programs on macOS takes: numbers of the operating system, whatever the
chip."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from hexane.targets.fact import Fact
from hexane.targets.fact_file import read_facts


@dataclass(frozen=True, slots=True)
class Dispatch:
    """compile_limit: programs that one process may compile; load_limit: that it may have loaded. load_retry_ms: a load
    that failed is tried once more after it. build_limit_ms, evaluate_limit_ms: a compile or load, and an evaluation,
    that takes longer is given up. least_surface_bytes: of any surface. qos_values: the numbers of the classes of
    service named in qos_names; any number up to most_qos is taken, and the others mean default_qos."""

    compile_limit: int
    load_limit: int
    load_retry_ms: int
    build_limit_ms: int
    evaluate_limit_ms: int
    least_surface_bytes: int
    default_qos: int
    most_qos: int
    qos_names: tuple[str, ...]
    qos_values: tuple[int, ...]
    facts: Mapping[str, Fact] = field(repr=False, compare=False)


@cache
def dispatch() -> Dispatch:
    """The numbers of `shared/dispatch.toml`."""
    return Dispatch(**read_facts(Dispatch, "dispatch"))

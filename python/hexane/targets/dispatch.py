"""Limits of the macOS service that compiles and loads programs. These limits depend on macOS, not on the chip."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from hexane.targets.fact import Fact
from hexane.targets.fact_file import read_facts


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Limits of the macOS service. compile_limit: how many programs a process may compile; load_limit: how many it may
    have loaded at once. load_retry_ms: the wait before a failed load is tried once more. build_limit_ms,
    evaluate_limit_ms: timeouts of a compile or load, and of an evaluation. least_surface_bytes: the smallest surface.
    qos_values: the values of the service classes in qos_names. Values up to most_qos are accepted; any other value
    means default_qos."""

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

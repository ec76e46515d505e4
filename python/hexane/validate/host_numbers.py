"""Finds the nodes that the host computes because fp16 does not hold their numbers. The compiler, its reports and the
rewrites for a chip all use `host_numbers`."""

from collections.abc import Callable, Mapping, Sequence

from hexane.graph import Node, Value
from hexane.validate.fp32_chains import fp32_chains
from hexane.validate.wide_values import wide_factors, wide_readers


def host_numbers(
    nodes: Sequence[Node], may_leave: Callable[[Node], bool], counts: Mapping[Value, int] | None = None
) -> dict[int, str]:
    """For each node that leaves the engine, by id, the reason. nodes, may_leave, counts: as for `wide_readers`."""
    readers = wide_readers(nodes, may_leave, counts)
    chains = fp32_chains(nodes)
    return readers | {id(node): chains[id(node)] for node in nodes if id(node) in chains and may_leave(node)}


def kept_whole(nodes: Sequence[Node], counts: Mapping[Value, int]) -> dict[int, str]:
    """For each node that the host computes, so that no rewrite for a chip decomposes it, by id, the reason."""
    return wide_factors(nodes, counts) | fp32_chains(nodes)

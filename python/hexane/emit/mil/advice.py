"""Warnings about ops that the engine's compiler accepts, but that are slow or not confirmed to work. docs/mil.md has
the numbers of constraints."""

from collections.abc import Iterator
from math import log

from hexane.graph import Graph, Node
from hexane.graph.decisions import Decision
from hexane.mil.forms.products import PRODUCTS
from hexane.targets.dispatch import dispatch
from hexane.targets.fact import Fact
from hexane.targets.mil import MilLimit, mil_limits
from hexane.validate import is_constant

STAGE = "emit"


def advice(graph: Graph) -> tuple[Decision, ...]:
    """Returns the decisions "slow" and "unconfirmed" about a graph in MIL's form."""
    return tuple(decision for node in graph.nodes for decision in _of_node(node))


def budget(name: str, num_programs: int) -> tuple[Decision, ...]:
    """Returns a decision if the programs are more than one process can compile."""
    limit = dispatch().compile_limit
    if num_programs <= limit:
        return ()
    reason = f"got {num_programs} programs, and one process may compile {limit}: use several processes (constraint 5)"
    return (Decision(STAGE, name, "hazard", reason, _source(dispatch().facts["compile_limit"])),)


def _of_node(node: Node) -> Iterator[Decision]:
    limits = mil_limits()
    if node.op in ("matmul", "linear") and any(v is not None and is_constant(v.node) for v in node.inputs[1:2]):
        times = limits.conv_speedup.fact.value
        yield _decision(
            node, "slow", f"a 1x1 convolution with the same numbers is about {times} times as fast", limits.conv_speedup
        )
    row, best = node.types[0].shape[-1:], limits.row_elements.fact.value
    if node.op in PRODUCTS and row and row[0] > 1 and row[0] % best:
        yield _decision(node, "slow", f"got rows of {row[0]}, a multiple of {best} is faster", limits.row_elements)
    if node.op == "softmax":
        extent, power = node.types[0].shape[node.attrs["axis"]], limits.softmax_power.fact.value
        if power ** round(log(extent, power)) != extent:
            reason = (
                f"got an axis of {extent}; somebody reported failures with extents that are no power of {power},"
                " likely because arguments were missing; this text has all of softmax's"
            )
            yield _decision(node, "unconfirmed", reason, limits.softmax_power)


def _decision(node: Node, verdict: str, reason: str, limit: MilLimit) -> Decision:
    return Decision(STAGE, node.where, verdict, f"{reason} (constraint {limit.constraint})", _source(limit.fact))


def _source(fact: Fact) -> str:
    return f"{fact.source}, {fact.status}"

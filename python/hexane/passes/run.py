"""Runs passes in order, and checks each one's graph where that is asked for."""

import os
from collections.abc import Callable, Sequence
from functools import partial

from hexane.errors import Error
from hexane.graph import Graph
from hexane.ops.verify import GraphLevel, level_of, verify
from hexane.passes.order import Pass
from hexane.passes.retarget import takes
from hexane.program import Program
from hexane.targets import Chip, Target

Watch = Callable[[str, Graph | Program], None]  # called after each pass or stage, with its name and result


def run_checked(
    chosen: Sequence[Pass], graph: Graph, target: Target, skip: frozenset[str] = frozenset(), watch: Watch | None = None
) -> Graph:
    """The graph after these passes.

    With HEXANE_VERIFY=1 in the environment, Error is raised for the first pass whose graph is not sound, or has lost a
    decision.
    """
    checks = os.environ.get("HEXANE_VERIFY") == "1"
    level: GraphLevel = level_of(graph) if checks else "user"
    for p in chosen:
        if p.name not in skip:
            before, level_before = graph, level
            graph, level = _run(p, graph, target), p.level or level
            if checks and (graph is not before or level != level_before):
                verify_after(p.name, graph, level, target, before)
            if watch is not None:
                watch(p.name, graph)
    return graph


def _run(p: Pass, graph: Graph, target: Target) -> Graph:
    if not (p.legal and isinstance(target, Chip)):
        return p.run(graph, target)
    asked = graph.annotated(takes=partial(takes, chip=target))
    return p.run(asked, target).annotated(takes=None)


def verify_after(name: str, graph: Graph, level: GraphLevel, target: Target, before: Graph) -> None:
    """Runs `verify`, with the pass's name in its Error, and checks that earlier decisions are kept."""
    try:
        verify(graph, level, target)
    except Error as error:
        raise Error(f"[after {name}] {error}") from None
    if graph.decisions[: len(before.decisions)] != before.decisions:
        raise Error(f"[after {name}] got decisions other than those before it, need them kept: {before.decisions}")

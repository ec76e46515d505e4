"""Runs passes in order, and verifies the graph after each pass if requested."""

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
    """Returns the graph after these passes.

    A pass is not run if its `needs` is false for the graph. HEXANE_VERIFY=1 in the environment raises Error after the
    first pass whose graph is invalid or has lost an earlier decision, and for a pass that has work although its `needs`
    is false.
    """
    checks = os.environ.get("HEXANE_VERIFY") == "1"
    level: GraphLevel = level_of(graph) if checks else "user"
    for p in chosen:
        if p.name not in skip:
            before, level_before = graph, level
            level = p.level or level
            if p.needs(graph):
                graph = _run(p, graph, target)
            elif checks:
                check_unneeded(p, graph, target)
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


def check_unneeded(p: Pass, graph: Graph, target: Target) -> None:
    """Raises Error if a pass changes a graph for which its `needs` is false."""
    after = _run(p, graph, target)
    if (after, after.decisions) != (graph, graph.decisions):
        raise Error(f"[after {p.name}] got a change of a graph that lacks what the pass needs: mend its `needs`")


def verify_after(name: str, graph: Graph, level: GraphLevel, target: Target, before: Graph) -> None:
    """Runs `verify` with the pass's name in its Error, and checks that the pass kept all earlier decisions."""
    try:
        verify(graph, level, target)
    except Error as error:
        raise Error(f"[after {name}] {error}") from None
    if graph.decisions[: len(before.decisions)] != before.decisions:
        raise Error(f"[after {name}] got decisions other than those before it, need them kept: {before.decisions}")

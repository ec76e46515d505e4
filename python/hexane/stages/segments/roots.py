"""Runs passes on the graph of all segments and tracks the roots, which are the values that each segment computes."""

import os
from collections.abc import Sequence
from dataclasses import replace

from hexane.graph import Graph, Port, Value
from hexane.passes.legalize.keep_halves import keep_halves
from hexane.passes.legalize.save_states import save_states
from hexane.passes.run import verify_after
from hexane.targets import Target


def with_halves(graph: Graph, roots: Sequence[Sequence[Value]], target: Target) -> tuple[Graph, list[list[Value]]]:
    """Returns the graph after keep_halves, and the new roots of its segments. A root that the graph no longer computes
    is replaced by the values from which it was computed."""
    became: dict[Value, Value] = {}
    halved = keep_halves(graph, target, became)
    there = set(halved.nodes)

    def left(values: Sequence[Value]) -> list[Value]:
        seen: dict[Value, None] = {}
        waiting = list(reversed(values))
        while waiting:
            value = waiting.pop()
            value = became.get(value, value)
            if value not in seen:
                seen[value] = None
                waiting += () if value.node in there else [v for v in reversed(value.node.inputs) if v is not None]
        return [value for value in seen if value.node in there]

    return halved, [left(values) for values in roots]


def with_saved_states(
    graph: Graph, roots: Sequence[Sequence[Value]], target: Target
) -> tuple[Graph, list[list[Value]]]:
    """Returns the graph after save_states, and the new roots of its segments."""
    hidden = [Port(f"%{i}.{j}", v) for i, values in enumerate(roots) for j, v in enumerate(values)]
    saved = save_states(replace(graph, outputs=(*graph.outputs, *hidden)), target)
    if os.environ.get("HEXANE_VERIFY") == "1":
        verify_after("save_states", saved, "kernel", target, graph)
    num_outputs = len(graph.outputs)
    values = iter([port.value for port in saved.outputs[num_outputs:]])
    return replace(saved, outputs=saved.outputs[:num_outputs]), [[next(values) for _ in kept] for kept in roots]

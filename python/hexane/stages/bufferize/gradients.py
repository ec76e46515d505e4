"""Orders the computation of gradients. A training step has one gradient per param, which is live until the param's
update has run."""

from collections.abc import Iterator

from hexane.graph import Graph, Node, Value
from hexane.ops import LEAVES, OPS
from hexane.ops.records.program import PROGRAM


def by_gradients(graph: Graph) -> Iterator[tuple[Value, ...]]:
    """Yields orders of the roots, some with values to compute before the roots, that may keep fewer bytes live than the
    order of the graph.

    The backward pass ends at the beginning of the network, so a gradient far from the graph's inputs is computed late.
    Updates are ordered by this distance, each right after its gradient. If updates need all gradients, such as for
    their norm, another order computes all gradients first, as the backward pass reaches them.
    """
    levels = _levels(graph)
    by_level: list[tuple[int, Value, list[Value]]] = []
    for root in graph.roots:
        gradients = _gradients(root.node) if root.node.op == "write_state" else [root]
        by_level.append((max((levels.get(id(v.node), 0) for v in gradients), default=0), root, gradients))
    if len(by_level) > 1:
        by_level.sort(key=lambda one: one[0])
        yield tuple(root for _, root, _ in by_level)
        if graph.updates:
            yield (*(v for _, _, gradients in by_level for v in gradients), *(root for _, root, _ in by_level))


def late_programs(graph: Graph) -> list[Value]:
    """Returns the results of late programs, whose readers run last, such as sums of gradients over several processes.
    The results come in the order in which a backward pass computes the programs' operands."""
    late = [node for node in graph.nodes if node.op == PROGRAM and node.attrs["late"]]
    levels = _levels(graph) if late else {}
    return [node.values[0] for node in sorted(late, key=lambda node: levels[id(node)])]


def in_states(graph: Graph) -> Iterator[Value]:
    """Yields the values that replace a whole state and have no other reader."""
    if "write_state" not in graph.ops:
        return
    counts = graph.use_counts()
    for node in graph.nodes:
        if node.op != "write_state":
            continue
        state, update, position = node.inputs
        assert state is not None
        assert update is not None
        assert position is not None
        whole = state.type == update.type and position.node.data is not None and not position.node.data.any()
        computed = update.node.op not in (*LEAVES, "write_state", "concat") and not OPS[update.node.op].view
        if whole and computed and counts[update] == 1:
            yield update


def _gradients(write: Node) -> list[Value]:
    """Returns the update's computed operands of the state's type, or the update itself if there are none."""
    update = write.inputs[1]
    assert update is not None
    same = [v for v in update.node.inputs if v is not None and v.node.op not in LEAVES and v.type == write.types[0]]
    return same or [update]


def _levels(graph: Graph) -> dict[int, int]:
    """Returns, for the id of each node that is no leaf, the length of the longest path to it."""
    levels: dict[int, int] = {}
    for node in graph.nodes:
        if node.op not in LEAVES:
            levels[id(node)] = 1 + max((levels.get(id(v.node), 0) for v in node.inputs if v is not None), default=0)
    return levels

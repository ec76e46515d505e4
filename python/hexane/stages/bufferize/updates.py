"""The order in which states are updated: a training step has an update for every param, and each gradient is live until
the update of its param has run."""

from collections.abc import Iterator

from hexane.graph import Graph, Node, Value
from hexane.ops import LEAVES, OPS


def by_updates(graph: Graph) -> Iterator[tuple[Value, ...]]:
    """Values to compute first, in two orders that may keep less live than that of the roots.

    A gradient that is far from the inputs of the graph is computed late, when the backward pass is near the beginning
    of the network. So updates run by this distance: each right after its gradient, or, where updates need all
    gradients (their norm), all gradients first, each as soon as the backward pass comes to it.
    """
    levels = _levels(graph)
    found = []
    for node in graph.nodes:
        if node.op == "write_state":
            update = node.inputs[1]
            assert update is not None
            gradients = [v for v in _gradients(node, update) if id(v.node) in levels]
            found.append((max((levels[id(v.node)] for v in gradients), default=0), node.values[0], gradients))
    if len(found) > 1:
        found.sort(key=lambda one: one[0])
        yield tuple(write for _, write, _ in found)
        yield (*(v for _, _, gradients in found for v in gradients), *(write for _, write, _ in found))


def in_states(graph: Graph) -> Iterator[Value]:
    """The values that replace a whole state and are read by nobody else."""
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


def _gradients(write: Node, update: Value) -> list[Value]:
    """The operands of the update that have the type of the state and are computed; the update, where there are none."""
    same = [v for v in update.node.inputs if v is not None and v.node.op not in LEAVES and v.type == write.types[0]]
    return same or [update]


def _levels(graph: Graph) -> dict[int, int]:
    """By id of each node that is no leaf: how many nodes the longest way to it has."""
    levels: dict[int, int] = {}
    for node in graph.nodes:
        if node.op not in LEAVES:
            levels[id(node)] = 1 + max((levels.get(id(v.node), 0) for v in node.inputs if v is not None), default=0)
    return levels

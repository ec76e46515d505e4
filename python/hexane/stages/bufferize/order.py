"""Orders the nodes of a graph for execution."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hexane import _core
from hexane.errors import Error
from hexane.graph import Graph, Node, Value, topological
from hexane.ops import LEAVES, OPS
from hexane.passes.overwrites import overwrites
from hexane.stages.bufferize.gradients import by_gradients, in_states, late_programs


def schedule(graph: Graph, kind: str = "", first: Sequence[Value] = ()) -> list[Node]:
    """Returns the nodes in topological order, with every reader of a state before the write that overwrites it. Values
    in `first` are computed first, in this order.

    kind "": of a few depth-first orders the one with the fewest live bytes. The candidates visit operands first to
    last, or last to first (unless states are overwritten), or visit gradients and updates as a backward pass computes
    them. kind "optimal": a bounded search for the order with the fewest live bytes. It starts from the order of kind ""
    but may ignore `first`. Late programs, and the nodes that compute their operands, run before all other nodes. Raises
    Error if a state is overwritten twice, or read after it is overwritten (save_states prevents this).
    """
    candidates = orders(graph, first)
    order = candidates[0] if len(candidates) == 1 else min(candidates, key=live_bytes(graph))
    return _optimal(graph, order, overwrites(graph).readers) if kind == "optimal" else order


def orders(graph: Graph, first: Sequence[Value] = ()) -> list[list[Node]]:
    """Returns the candidate orders of `schedule`."""
    after = overwrites(graph).readers
    if late := late_programs(graph):
        return [list(_ordered((*graph.inputs, *first, *late, *graph.roots), after))]
    starts = (*graph.inputs, *first)
    if after:
        return [list(_ordered((*starts, *roots, *graph.roots), after)) for roots in ((), *by_gradients(graph))]
    forward = topological((*starts, *graph.roots)) if first else graph.nodes
    backward = topological((*starts, *reversed(graph.roots)), last_first=True)
    return [forward, backward, *[topological((*starts, *roots)) for roots in by_gradients(graph)]]


def _optimal(graph: Graph, order: Sequence[Node], after: dict[int, list[Node]]) -> list[Node]:
    leaves, nodes = [n for n in order if n.op in LEAVES], [n for n in order if n.op not in LEAVES]
    problem = scheduling(graph, nodes, after)
    best, peak, _, _ = problem.optimal(np.arange(len(nodes)))
    problem.check(best, peak)
    return leaves + [nodes[i] for i in best.tolist()]


def scheduling(graph: Graph, nodes: Sequence[Node], after: dict[int, list[Node]]) -> _core.Scheduling:
    """Returns the scheduling problem of these nodes, without leaves, in this order. A tensor is the memory of a value
    and of all views of it."""
    index = {id(node): i for i, node in enumerate(nodes)}
    root: dict[Value, Value] = {}
    readers: dict[Value, set[int]] = {}
    for i, node in enumerate(nodes):
        op = OPS[node.op]
        for operand in node.inputs:
            if operand is not None and operand in root:
                readers[root[operand]].add(i)
        for value in node.values:
            if op.view:
                assert node.inputs[0] is not None
                if node.inputs[0] in root:
                    root[value] = root[node.inputs[0]]
            elif node.op != "write_state":  # the result of write_state is the state's own memory
                root[value] = value
                readers[value] = set()
    kept = {root[value] for value in graph.roots if value in root}
    edges = [(index[id(n)], index[write]) for write, before in after.items() for n in before if id(n) in index]
    return _core.Scheduling(
        bytes=np.array([v.type.bytes for v in readers], np.int64),
        producers=np.array([index[id(v.node)] for v in readers], np.int64),
        kept=np.array([v in kept for v in readers], np.int64),
        reads=np.array([(t, i) for t, v in enumerate(readers) for i in sorted(readers[v])], np.int64).reshape(-1, 2),
        num_layers=len(nodes),
        edges=np.array([*_orders(nodes, index, root), *edges], np.int64).reshape(-1, 2),
    )


def _orders(nodes: Sequence[Node], index: dict[int, int], root: dict[Value, Value]) -> Iterator[tuple[int, int]]:
    """Yields edges (before, after) that no tensor implies: node `after` has to run later although it reads no tensor
    that `before` computes. Readers of views and of states need such edges."""
    for i, node in enumerate(nodes):
        for operand in node.inputs:
            if operand is None or id(operand.node) not in index:
                continue
            if operand not in root or root[operand].node is not operand.node:
                yield index[id(operand.node)], i


def peak_bytes(graph: Graph, order: Sequence[Node]) -> int:
    """Returns the largest sum of bytes of simultaneously live values. A view counts as part of its source. A value that
    replaces a whole state counts as 0, because it is computed in the state."""
    return live_bytes(graph)(order)


def live_bytes(graph: Graph) -> Callable[[Sequence[Node]], int]:
    """Returns a function that computes `peak_bytes` for an order of the graph's nodes."""
    memory: dict[Value, int] = {}  # value or view -> the number of its memory; leaves and states have none
    sizes: list[int] = []
    rows: dict[int, tuple[list[int], list[int]]] = {}  # node id -> memories read, memories written
    elsewhere = {*in_states(graph)}
    for node in graph.nodes:
        if node.op in LEAVES:
            continue
        reads = [memory[v] for v in node.inputs if v is not None and v in memory]
        first = len(sizes)
        if node.op in OPS and OPS[node.op].view:
            operand = node.inputs[0]
            if operand is not None and operand in memory:
                memory.update(dict.fromkeys(node.values, memory[operand]))
        elif node.op != "write_state":
            for value in node.values:
                if value not in elsewhere:
                    memory[value] = len(sizes)
                    sizes.append(value.type.bytes)
        rows[id(node)] = reads, list(range(first, len(sizes)))
    kept = {memory[v] for v in graph.roots if v in memory}

    def peak(order: Sequence[Node]) -> int:
        """Returns the peak, computed from the last node to the first."""
        seen = set(kept)
        live = most = sum([sizes[i] for i in seen])
        for node in reversed(order):
            reads, makes = rows.get(id(node), ((), ()))
            for i in (*reads, *makes):
                if i not in seen:
                    seen.add(i)
                    live += sizes[i]
            most = max(most, live)
            for i in makes:
                live -= sizes[i]
        return most

    return peak


def _ordered(roots: Sequence[Value], after: dict[int, list[Node]]) -> Iterator[Node]:
    """Like `topological`, with the additional edges of `after`."""
    done: dict[int, bool] = {}

    def operands(node: Node) -> Iterator[Node]:
        return iter([*after.get(id(node), ()), *[v[0] for v in node.inputs if v is not None]])

    for root in roots:
        if id(root.node) in done:
            continue
        done[id(root.node)] = False
        stack = [(root.node, operands(root.node))]
        while stack:
            node, pending = stack[-1]
            for operand in pending:
                if id(operand) not in done:
                    done[id(operand)] = False
                    stack.append((operand, operands(operand)))
                    break
                if not done[id(operand)]:
                    raise Error(
                        f"[{operand.where}] got a state read after its update, need reads of its old contents before"
                    )
            else:
                stack.pop()
                done[id(node)] = True
                yield node

"""The order with the fewest live bytes, by a bounded search: the nodes of a graph as a problem of the scheduler."""

from collections.abc import Iterator, Sequence

import numpy as np

from hexane import _core
from hexane.graph import Graph, Node, Value
from hexane.ops import LEAVES, OPS


def optimal_order(graph: Graph, order: Sequence[Node], after: dict[int, list[Node]]) -> list[Node]:
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

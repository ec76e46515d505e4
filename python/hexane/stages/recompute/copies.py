"""Copies nodes for much later readers, so that the first results need not be kept in memory.

    h = tanh(x)  ...  dx = f(dy, h)      h is kept in between
    h = tanh(x)  ...  x0 = barrier(x, dy);  h0 = tanh(x0);  dx = f(dy, h0)

A copy is the same op on the same operands, so it gives the same bits. The graph merges equal nodes, so the copy reads
its operand through a barrier. A barrier is a view that also waits for a second value, in the example dy.
"""

from collections.abc import Mapping, Sequence

from hexane.graph import Graph, Node, Value
from hexane.ops import LEAVES, OPS, apply
from hexane.ops.records.barrier import BARRIER
from hexane.stages.bufferize.order import schedule
from hexane.stages.recompute.marks import RecomputeRegion


def recomputed(graph: Graph, regions: Sequence[RecomputeRegion]) -> Graph:
    """Returns the graph in which the late readers of each region read copies. regions: a region may lie inside an
    earlier one."""
    left = list(regions)
    while left:
        graph, left = _outermost(graph, left)
    return graph


class _Copies:
    """The copies of one region. late: from this position on, readers read copies. after: the value that the copies wait
    for."""

    def __init__(self, region: RecomputeRegion, late: int, after: Value) -> None:
        self.region, self.late, self.after = region, late, after
        self.table: dict[Value, Value] = {}

    def of(self, value: Value, now: dict[Value, Value]) -> Value:
        if not self.table:
            after = now.get(self.after, self.after)
            for node in self.region.nodes.values():
                inputs = [None if v is None else self._operand(v, after, now) for v in node.inputs]
                copy = node.with_inputs(tuple(inputs))
                if copy is node:  # if a node reads only leaves, its copy needs a barrier
                    inputs = [None if v is None else barrier(v, after) for v in node.inputs]
                    copy = node.with_inputs(tuple(inputs))
                self.table.update(zip(node.values, copy.values, strict=True))
        return self.table[value]

    def _operand(self, value: Value, after: Value, now: dict[Value, Value]) -> Value:
        if value in self.table:
            return self.table[value]
        return value if value.node.op in LEAVES else barrier(now.get(value, value), after)


def _outermost(graph: Graph, regions: Sequence[RecomputeRegion]) -> tuple[Graph, list[RecomputeRegion]]:
    """Returns the graph after copying the regions that lie in no other, and the inner regions as regions of the
    copies."""
    order = schedule(graph)
    position = {id(node): i for i, node in enumerate(order)}
    users = graph.users()
    taken: dict[int, _Copies] = {}
    inner: list[tuple[_Copies, RecomputeRegion]] = []
    for region in regions:
        around = {id(taken[key]): taken[key] for key in region.nodes if key in taken}
        if around:
            inner += [
                (copies, region) for copies in around.values() if region.nodes.keys() <= copies.region.nodes.keys()
            ]
        elif (gap := _gap(region, order, position, users)) is not None:
            taken.update(dict.fromkeys(region.nodes, _Copies(region, *gap)))
        else:
            taken.update(dict.fromkeys(region.nodes, _Copies(region, len(order), Value(order[-1]))))
    now: dict[Value, Value] = {}
    for i, node in enumerate(order):
        inputs = []
        for value in node.inputs:
            copies = None if value is None else taken.get(id(value.node))
            if (
                value is None
                or copies is None
                or i < copies.late
                or value in copies.region.kept
                or id(node) in copies.region.nodes
            ):
                inputs.append(None if value is None else now.get(value, value))
            else:
                inputs.append(copies.of(value, now))
        if tuple(inputs) != node.inputs:
            now.update(zip(node.values, node.with_inputs(tuple(inputs)).values, strict=True))
    result = graph.replace(now)
    live = {id(node) for node in result.nodes}
    left = []
    for copies, region in inner:
        nodes = [copies.table[v].node for n in region.nodes.values() for v in n.values[:1] if v in copies.table]
        kept = frozenset(copies.table[v] for v in region.kept if v in copies.table)
        left.append(RecomputeRegion({id(n): n for n in nodes if id(n) in live}, kept))
    return result, [region for region in left if region.nodes]


def _gap(
    region: RecomputeRegion, order: Sequence[Node], position: dict[int, int], users: Mapping[Value, Sequence[Node]]
) -> tuple[int, Value] | None:
    """Returns where the late readers begin, which is after the longest gap between readers, and the value that copies
    wait for. Returns None without a late reader or a value to wait for."""
    last = max(position[key] for key in region.nodes)
    readers = sorted(
        {
            position[id(user)]
            for node in region.nodes.values()
            for value in node.values
            if value not in region.kept
            for user in users.get(value, ())
            if id(user) not in region.nodes
        }
    )
    late = [i for i in readers if i > last]
    if not late:
        return None
    times = [(b - a, b) for a, b in zip([last, *late], late, strict=False)]
    begin = max(times, key=lambda one: (one[0], -one[1]))[1]

    def may_wait(value: Value | None) -> bool:
        return value is not None and value.node.op not in LEAVES and position[id(value.node)] > last

    operands = [v for v in order[begin].inputs if v is not None and may_wait(v)]
    between = [v for node in order[last + 1 : begin] for v in node.values[:1] if may_wait(v) and v.type.size > 1]
    before = operands or between
    return (begin, max(before, key=lambda v: position[id(v.node)])) if before else None


def barrier(value: Value, after: Value) -> Value:
    return apply(OPS[BARRIER], [value, after], {}, value.node.sources)[0]

"""Orders the nodes of a graph for execution."""

from collections.abc import Callable, Iterator, Sequence

from hexane.errors import Error
from hexane.graph import Graph, Node, Value, topological
from hexane.ops import LEAVES, OPS
from hexane.passes.overwrites import overwrites
from hexane.stages.bufferize.gradients import by_gradients, in_states, late_programs
from hexane.stages.bufferize.optimal_order import optimal_order


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
    return optimal_order(graph, order, overwrites(graph).readers) if kind == "optimal" else order


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

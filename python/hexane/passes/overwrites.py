"""Finds the order that in-place updates of states require."""

from dataclasses import dataclass

from hexane.errors import Error
from hexane.graph import Graph, Node, Value
from hexane.ops import OPS


@dataclass(frozen=True, slots=True)
class Overwrites:
    """readers: for each write_state (by id), the nodes that read its old contents and so run before it. version: for
    each value that is a state, its update or a view of one, the state or write_state result that it lies in."""

    readers: dict[int, list[Node]]
    version: dict[Value, Value]


def overwrites(graph: Graph) -> Overwrites:
    """Finds the writes to states and their readers. Raises Error if two writes overwrite the same contents."""
    version: dict[Value, Value] = {}
    readers: dict[Value, list[Node]] = {}
    writer: dict[Value, Node] = {}
    for node in () if graph.ops.isdisjoint(("state", "write_state")) else graph.nodes:
        if node.op in ("state", "write_state"):
            version[node.values[0]] = node.values[0]
        for value in node.inputs:
            if value in version:
                readers.setdefault(version[value], []).append(node)
                if OPS[node.op].view and value == node.inputs[0]:
                    version[node.values[0]] = version[value]
        if node.op == "write_state":
            state = node.inputs[0]
            assert state is not None
            if state.node.op not in ("state", "write_state"):
                raise Error(f"[{node.where}] got {state.node.op}, need the state itself or the result of write_state")
            if state in writer:
                raise Error(f"[{node.where}] got a second update of the same state, need updates one after the other")
            writer[state] = node
    return Overwrites({id(w): [n for n in readers.get(s, ()) if n is not w] for s, w in writer.items()}, version)

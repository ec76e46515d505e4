"""Copies the old contents of a state for readers that can only run after its update."""

from collections.abc import Iterator

from hexane.graph import Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.passes.overwrites import Overwrites, overwrites
from hexane.targets import Target


def save_states(graph: Graph, target: Target) -> Graph:
    """write_state(%s, slice(%s), 0)  ->  write_state(%s, concat(slice(%s)), 0)

    States are updated in place, so readers of the old contents run before the update. A reader that cannot run first,
    because it also needs the update or is part of it, reads a copy, made by a concat of one input.
    """
    if "write_state" not in graph.ops:
        return graph
    graph = graph.rewrite(_apart)
    while True:
        table = overwrites(graph)
        late = _late_reader(graph, table)
        if late is None:
            return graph
        graph = _saved(graph, *late, table)


def _apart(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
    """Copies the operands of a write that lie in the state's memory, so that the write reads no memory that it
    changes."""
    if node.op != "write_state":
        return None
    memory = _memory(inputs[0])
    operands = [inputs[0], *(_copy(v) if v is not None and _memory(v) is memory else v for v in inputs[1:])]
    return None if operands == list(inputs) else apply(OPS["write_state"], operands, node.attrs, node.sources)


def _memory(value: Value | None) -> Node:
    """Returns the node that owns the value's memory, following views and writes back to the state."""
    assert value is not None
    node = value.node
    while node.op == "write_state" or (node.op in OPS and OPS[node.op].view):
        assert node.inputs[0] is not None
        node = node.inputs[0].node
    return node


def _copy(value: Value) -> Value:
    if value.type.rank:
        return apply(OPS["concat"], [value], {"axis": 0}, value.node.sources)[0]
    line = apply(OPS["reshape"], [value], {"shape": (1,)}, value.node.sources)[0]
    return apply(OPS["reshape"], [_copy(line)], {"shape": ()}, value.node.sources)[0]


def _late_reader(graph: Graph, table: Overwrites) -> tuple[Node, Node] | None:
    """Returns a reader of a state that would have to run before a write but cannot, with that write, or None."""
    done: dict[int, bool] = {}
    for root in graph.roots:
        if id(root.node) in done:
            continue
        done[id(root.node)] = False
        stack = [(root.node, _before(root.node, table))]
        while stack:
            node, pending = stack[-1]
            for operand in pending:
                if id(operand) not in done:
                    done[id(operand)] = False
                    stack.append((operand, _before(operand, table)))
                    break
                if not done[id(operand)]:
                    path = [n for n, _ in stack]
                    return _breakable([*path[path.index(operand) :], operand], table)
            else:
                stack.pop()
                done[id(node)] = True
    return None


def _before(node: Node, table: Overwrites) -> Iterator[Node]:
    return iter([*table.readers.get(id(node), ()), *[v.node for v in node.inputs if v is not None]])


def _breakable(cycle: list[Node], table: Overwrites) -> tuple[Node, Node]:
    """Returns an edge of the cycle, as (reader, write), that a copy removes. The edge must only order the two nodes.
    The edge after it in the cycle, from the reader to its operand, must not be a read of the old contents, because the
    copy would need that read as well."""
    for write, reader, following in zip(cycle, cycle[1:], [*cycle[2:], cycle[1]], strict=False):
        ordered = any(reader is r for r in table.readers.get(id(write), ()))
        if not ordered or any(v is not None and v.node is reader for v in write.inputs):
            continue
        old = write.inputs[0]
        if all(v is None or v.node is not following or table.version.get(v) != old for v in reader.inputs):
            return reader, write
    raise AssertionError("a graph has no cycles of operands")


def _saved(graph: Graph, reader: Node, write: Node, table: Overwrites) -> Graph:
    old = write.inputs[0]

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node is not reader:
            return None
        pairs = zip(node.inputs, inputs, strict=True)
        operands = [_copy(new) if v in table.version and table.version[v] == old else new for v, new in pairs]  # type: ignore[arg-type]
        return apply(OPS[node.op], operands, node.attrs, node.sources)

    return graph.rewrite(change)

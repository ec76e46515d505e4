"""The topological order of a graph's nodes."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx

from hexane.errors import Error
from hexane.importers.onnx.kept_node import KeptNode, NodeLike


def sort_nodes(
    nodes: Sequence[NodeLike], known: Collection[str], own: Collection[str], prefix: str = ""
) -> Sequence[int]:
    """Returns the indices of the nodes in topological order: a range if the file's order is topological, else the
    topological order closest to it.

    known: names defined outside the graph. own: names that no node may define again. Raises Error, with the node's
    name, if a name is defined twice or never, and for a cycle.
    """
    makers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if name and (name in makers or name in own):
                raise Error(
                    f"[import] {label(node, index, prefix)}: got the output name {name!r} twice, need distinct names"
                )
            if name:
                makers[name] = index
    in_order = True
    for index, node in enumerate(nodes):
        for name in reads(node):
            if name in makers:
                in_order = in_order and makers[name] < index
            elif name not in known:
                raise Error(f"[import] {label(node, index, prefix)}: got the input {name!r}, which nothing defines")
    return range(len(nodes)) if in_order else _sorted(nodes, makers, prefix)


def _sorted(nodes: Sequence[NodeLike], makers: Mapping[str, int], prefix: str) -> list[int]:
    users: dict[int, list[int]] = {}
    left = []
    for index, node in enumerate(nodes):
        needed = {makers[name] for name in reads(node) if name in makers}
        left.append(len(needed))
        for other in needed:
            users.setdefault(other, []).append(index)
    ready = deque(index for index, count in enumerate(left) if not count)
    order = []
    while ready:
        order.append(index := ready.popleft())
        for user in users.get(index, ()):
            left[user] -= 1
            if not left[user]:
                ready.append(user)
    if len(order) < len(nodes):
        stuck = next(index for index, count in enumerate(left) if count)
        raise Error(
            f"[import] {label(nodes[stuck], stuck, prefix)}: depends on its own output, need a graph without cycles"
        )
    return order


def last_reads(nodes: Sequence[NodeLike], outputs: Iterable[str]) -> tuple[bytearray, set[str]]:
    """Returns a flag for each name that each node reads, from the last node to the first: True if no later node reads
    the name. The second result is the set of all names read."""
    last, read = bytearray(), set(outputs)
    for node in reversed(nodes):
        for name in reversed(reads(node)):
            last.append(name not in read)
            read.add(name)
    return last, read


def label(node: NodeLike, index: int, prefix: str = "") -> str:
    """Returns the node's name, or Op#index for a node without one."""
    return f"{prefix}{node.name or f'{node.op_type}#{index}'}"


def reads(node: NodeLike) -> list[str]:
    """Returns the names that a node reads: its inputs, and outer names that its subgraphs read."""
    if isinstance(node, KeptNode):
        if node.names_read is None:
            node.names_read = reads(node.proto)
        return node.names_read
    names = [name for name in node.input if name]
    for attr in node.attribute:
        for graph in (attr.g, *attr.graphs) if attr.type in (attr.GRAPH, attr.GRAPHS) else ():
            names += captured(graph)
    return names


def captured(graph: onnx.GraphProto) -> list[str]:
    """Returns the outer names that a subgraph reads."""
    inner = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    inner |= {tensor.values.name for tensor in graph.sparse_initializer}
    inner |= {name for node in graph.node for name in node.output}
    names = [name for node in graph.node for name in reads(node)] + [value.name for value in graph.output]
    return [name for name in dict.fromkeys(names) if name not in inner]

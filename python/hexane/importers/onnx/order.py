"""The order of a graph's nodes: each after those whose outputs it reads."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx

from hexane.errors import Error
from hexane.importers.onnx.kept_node import KeptNode, NodeLike


def sort_nodes(
    nodes: Sequence[NodeLike], known: Collection[str], own: Collection[str], prefix: str = ""
) -> Sequence[int]:
    """Indices of the nodes: a range where the file's order is sorted, else the nearest order that is.

    `known` are the names from outside; no node may define a name in `own` again. Raises Error, naming the
    node, for a name that is defined twice or nowhere, and for a cycle.
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
    """For each name that each node reads whether no later one reads it, last node first; and all those names."""
    last, read = bytearray(), set(outputs)
    for node in reversed(nodes):
        for name in reversed(reads(node)):
            last.append(name not in read)
            read.add(name)
    return last, read


def label(node: NodeLike, index: int, prefix: str = "") -> str:
    """The node's name, else Op#index."""
    return f"{prefix}{node.name or f'{node.op_type}#{index}'}"


def reads(node: NodeLike) -> list[str]:
    """The names that a node reads: its inputs, and outside names that its subgraphs read."""
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
    """The names a subgraph reads from around it."""
    inner = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    inner |= {name for node in graph.node for name in node.output}
    names = [name for node in graph.node for name in reads(node)] + [value.name for value in graph.output]
    return [name for name in dict.fromkeys(names) if name not in inner]

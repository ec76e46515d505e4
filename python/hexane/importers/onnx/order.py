"""The order of a graph's nodes: each after those whose outputs it reads."""

from collections import deque
from collections.abc import Collection, Iterable, Sequence

import onnx

from hexane.errors import Error


def sort_nodes(
    nodes: Sequence[onnx.NodeProto], known: Collection[str], own: Collection[str], prefix: str = ""
) -> Iterable[tuple[int, onnx.NodeProto]]:
    """(index, node) in the file's order where that is sorted, else in the nearest order that is.

    `known` are the names from outside, `own` those of them that no node may define again. Raises Error, naming the node,
    for a name that is defined twice or nowhere, and for a cycle.
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
    waits: list[set[int]] = []
    for index, node in enumerate(nodes):
        needed = set()
        for name in reads(node):
            if name in makers:
                needed.add(makers[name])
            elif name not in known:
                raise Error(f"[import] {label(node, index, prefix)}: got the input {name!r}, which nothing defines")
        waits.append(needed)
    if all(not needed or max(needed) < index for index, needed in enumerate(waits)):
        return enumerate(nodes)
    return [(index, nodes[index]) for index in _sorted(nodes, waits, prefix)]


def _sorted(nodes: Sequence[onnx.NodeProto], waits: list[set[int]], prefix: str) -> list[int]:
    users: dict[int, list[int]] = {}
    for index, needed in enumerate(waits):
        for other in needed:
            users.setdefault(other, []).append(index)
    left = [len(needed) for needed in waits]
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


def label(node: onnx.NodeProto, index: int, prefix: str = "") -> str:
    """The node's name, else Op#index."""
    return f"{prefix}{node.name or f'{node.op_type}#{index}'}"


def reads(node: onnx.NodeProto) -> list[str]:
    """The names a node reads: its inputs, and what its subgraphs take from outside."""
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

"""The nodes that `hx.checkpoint` leaves in a graph.

e = identity(x)          a start
h = tanh(e)              inside
y = checkpointed(h, e)   a result, another name of h
"""

from collections.abc import Iterable, Sequence

from hexane.graph import Node, Value

CHECKPOINTED = "checkpointed"


def checkpoint_names(nodes: Iterable[Node]) -> dict[Value, Value]:
    """Maps each start and each result of a checkpoint to the value that it renames."""
    names: dict[Value, Value] = {}
    for node in nodes:
        if node.op == CHECKPOINTED:
            for value in (node.values[0], *_starts(node)):
                x = value.node.inputs[0]
                assert x is not None
                names[value] = x
    return names


def _starts(node: Node) -> list[Value]:
    return [v for v in node.inputs[1:] if v is not None and v.node.op == "identity"]


def checkpoints(nodes: Sequence[Node]) -> list[tuple[dict[int, Node], list[Node]]]:
    """Returns for each checkpoint its inner nodes, by id, and the nodes that name its results, larger checkpoints
    first. nodes: of a graph, in topological order."""
    index = {id(node): i for i, node in enumerate(nodes)}
    results: dict[tuple[Value, ...], list[Node]] = {}
    for node in nodes:
        if node.op == CHECKPOINTED:
            results.setdefault(tuple(_starts(node)), []).append(node)
    result = []
    for starts, ends in results.items():
        begin = {id(start.node) for start in starts}
        if begin:
            result.append((_between(begin, ends, index, nodes), ends))
    result.sort(key=lambda one: len(one[0]), reverse=True)
    return result


def _between(begin: set[int], ends: Sequence[Node], index: dict[int, int], nodes: Sequence[Node]) -> dict[int, Node]:
    """Returns the nodes strictly between starts and ends."""
    first = min(index[key] for key in begin)
    dependent: set[int] = set()  # positions of the nodes that the ends depend on, back to the first start
    stack = [index[id(node)] for node in ends]
    while stack:
        at = stack.pop()
        if at in dependent or at < first:
            continue
        dependent.add(at)
        inputs = nodes[at].inputs[:1] if nodes[at].op == CHECKPOINTED else nodes[at].inputs
        stack += [index[id(v.node)] for v in inputs if v is not None]
    depends = set(begin)
    for at in sorted(dependent):
        if any(v is not None and id(v.node) in depends for v in nodes[at].inputs):
            depends.add(id(nodes[at]))
    outside = begin | {id(node) for node in ends}
    return {id(nodes[at]): nodes[at] for at in sorted(dependent) if id(nodes[at]) in depends - outside}

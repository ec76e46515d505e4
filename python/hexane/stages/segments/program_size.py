"""Computes the bytes of a program's weights, and splits programs that are too large for the system to run on the
engine."""

from collections.abc import Iterator, Sequence

from hexane.graph import Node, Value
from hexane.stages.segments.crossings import crosses

FULL = 0.75  # share of the limit from which on a program may end where few bytes cross


def weights_of(nodes: Sequence[Node]) -> dict[int, Node]:
    """Returns, by id, the constants and params that the nodes read."""
    read = (v.node for node in nodes for v in node.inputs if v is not None)
    return {id(node): node for node in read if node.op in ("const", "param")}


def weight_bytes(weight: Node) -> int:
    """Returns the bytes of a weight in a chip's program: floats as fp16, integers in their own dtype."""
    kind = weight.types[0]
    return kind.size * 2 if kind.dtype.kind == "float" else kind.bytes


def program_bytes(nodes: Sequence[Node]) -> int:
    """Returns the bytes of the nodes' weights, each counted once."""
    return sum(weight_bytes(weight) for weight in weights_of(nodes).values())


def within_limit(nodes: Sequence[Node], most: int) -> Iterator[list[Node]]:
    """Splits the nodes, given in execution order, into programs with at most `most` bytes of weights or with one node.

    Each program ends where the fewest bytes cross to the next program.
    """
    rest = list(nodes)
    while rest and program_bytes(rest) > most:
        sizes = _sizes(rest)
        limit = max(most, next(size for size in sizes if size))
        fits = next((i for i, size in enumerate(sizes) if size > limit), len(rest))
        least = next((i for i, size in enumerate(sizes, 1) if size >= FULL * limit and i <= fits), fits)
        crossing = _crossing(rest)
        end = min(range(least, fits + 1), key=lambda at: (crossing[at], -at))
        yield rest[:end]
        rest = rest[end:]
    if rest:
        yield rest


def _sizes(nodes: Sequence[Node]) -> list[int]:
    """Returns for each node the bytes of weights that it and all earlier nodes read."""
    seen: set[int] = set()
    total, sizes = 0, []
    for node in nodes:
        for key, weight in weights_of([node]).items():
            total += 0 if key in seen else weight_bytes(weight)
            seen.add(key)
        sizes.append(total)
    return sizes


def _crossing(nodes: Sequence[Node]) -> list[int]:
    """Returns for each position, including the one after the last node, the bytes that earlier nodes compute and later
    nodes read."""
    last: dict[Value, int] = {}
    producers: dict[Value, int] = {}
    for i, node in enumerate(nodes):
        producers.update(dict.fromkeys(node.values, i))
        last.update((value, i) for value in node.inputs if value in producers)
    change = [0] * (len(nodes) + 1)
    for value, end in last.items():
        if crosses(value):
            change[producers[value] + 1] += value.type.bytes
            change[end + 1] -= value.type.bytes
    totals, total = [], 0
    for step in change:
        total += step
        totals.append(total)
    return totals

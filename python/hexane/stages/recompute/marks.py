"""After the passes, finds the parts of a graph that `hx.checkpoint` marked before them.

A checkpoint must not change what the passes do, nor any bit of a result. So its marks are removed before the passes,
and each value gets a tap. After the passes, the taps show which values the checkpoint's values have become.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hexane.graph import Graph, Node, Port, Value
from hexane.ops import LEAVES, OPS
from hexane.ops.checkpoints import CHECKPOINTED, checkpoint_names, checkpoints

_TAP = "%recompute."


@dataclass(frozen=True, slots=True)
class Marks:
    """For each checkpoint, outer ones first: the numbers of the taps on the values inside it, and on its results."""

    inside: tuple[frozenset[int], ...]
    results: tuple[frozenset[int], ...]


@dataclass(frozen=True, slots=True)
class RecomputeRegion:
    """A region to compute again. nodes: its nodes, by id. kept: results of the region that stay in memory."""

    nodes: dict[int, Node]
    kept: frozenset[Value]


def marked(graph: Graph) -> tuple[Graph, Marks]:
    """Returns the graph without marks but with a tap on each value, and the numbers of each checkpoint's taps."""
    names, pairs = checkpoint_names(graph.nodes), checkpoints(graph.nodes)
    became: dict[Value, Value] = {}

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.values[0] not in names:
            return None
        assert inputs[0] is not None
        return (inputs[0],)

    plain = graph.rewrite(change, (CHECKPOINTED, "identity"), became)
    values = [value for node in plain.nodes if node.op not in LEAVES for value in node.values]
    number = {value: i for i, value in enumerate(values)}

    def numbers(some: list[Value]) -> frozenset[int]:
        return frozenset(number[v] for value in some if (v := became.get(value, value)) in number)

    marks = Marks(
        tuple(numbers([v for node in nodes.values() for v in node.values if v not in names]) for nodes, _ in pairs),
        tuple(numbers([node.values[0] for node in ends]) for _, ends in pairs),
    )
    taps = [Port(f"{_TAP}{i}", value) for i, value in enumerate(values)]
    return replace(plain, taps=(*plain.taps, *taps)), marks


def regions(graph: Graph, marks: Marks) -> tuple[Graph, list[RecomputeRegion]]:
    """Returns the lowered graph without the taps of `marked`, and the checkpoints' regions in it."""
    live = {id(node) for node in graph.nodes}
    named: dict[Value, set[int]] = {}
    for port in graph.taps:
        if port.name.startswith(_TAP):
            named.setdefault(_live(port.value, live), set()).add(int(port.name.removeprefix(_TAP)))
    candidates = [_region(graph, named, *both) for both in zip(marks.inside, marks.results, strict=True)]
    taps = tuple([port for port in graph.taps if not port.name.startswith(_TAP)])
    return replace(graph, taps=taps), [region for region in candidates if region.nodes]


def _live(value: Value, live: set[int]) -> Value:
    """Returns the value in the graph from which a removed view or cast was computed."""
    while id(value.node) not in live and _is_seen_through(value.node):
        (value,) = [v for v in value.node.inputs[:1] if v is not None]
    return value


def _is_seen_through(node: Node) -> bool:
    """True if the node gives its operand's elements, as views and casts do."""
    return node.op not in LEAVES and (node.op == "cast" or bool(OPS[node.op].view))


def _region(
    graph: Graph, named: Mapping[Value, set[int]], inside: frozenset[int], results: frozenset[int]
) -> RecomputeRegion:
    """Returns the region of the nodes whose tap is in `inside`, with the nodes between them that have no tap. Only the
    first tap of a value counts: its later taps come from views or casts that were removed."""
    kept = frozenset(value for value, numbers in named.items() if numbers & results)
    nodes: set[int] = set()
    stack = [value.node for value, numbers in named.items() if min(numbers) in inside]
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if id(node) in seen or node.op in LEAVES or node.op == "write_state":
            continue
        seen.add(id(node))
        if all(v not in named or min(named[v]) in inside for v in node.values):
            nodes.add(id(node))
            stack += [v.node for v in node.inputs if v is not None]
    return RecomputeRegion({id(n): n for n in graph.nodes if id(n) in nodes}, kept)

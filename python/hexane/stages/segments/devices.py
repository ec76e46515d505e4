"""Assigns each op of a network to a device, so that few values cross between devices.

An op that computes runs on the engine if its verdict allows that, else on the host. An op that only moves elements, or
is logical, gives the same bits on both devices: a minimum cut assigns it to the host if this saves crossings, else to
the engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

from hexane.dtypes import BOOL, FP16
from hexane.graph import Graph, Node, TensorType, Value
from hexane.ops import LEAVES
from hexane.passes.retarget import rewritten
from hexane.passes.retarget.marked import HOST, marked_programs
from hexane.stages.segments.max_flow import Network
from hexane.targets import Chip, Verdict
from hexane.targets.legality import floors, mil_ops, mil_status, op_unit
from hexane.validate import is_constant, judge_all
from hexane.validate.host_numbers import host_numbers
from hexane.validate.run_time_scales import between_products

Device = Literal["ane", "host"]
COMPUTING = ("mac", "planar", "texture")  # Units that do arithmetic.
OF_TRUTHS = ("logical_and", "logical_not", "logical_or", "logical_xor")  # Logical ops: the same bits on both devices.


class Cut(NamedTuple):
    """The reason why an op has to be a program of its own on the engine, and the source of this reason."""

    reason: str
    source: str


class Programs(Protocol):
    """The limits of programs that are written for the engine."""

    def refused(self, graph: Graph, nodes: Sequence[Node]) -> Mapping[int, str]:
        """Returns by id, with reasons, the nodes that no program can hold although the chip runs each alone."""


@dataclass(frozen=True, slots=True)
class Devices:
    """nodes: all nodes that compute something at run time, in topological order. By the id of a node: device, verdicts;
    refused: nodes that the chip runs but no program of its engine can hold, with the reason; alone: nodes that have to
    be a program of their own, with the reason; marked: the marked program that a node belongs to. moved: ids of ops
    that are on the host to save crossings."""

    nodes: list[Node]
    device: Mapping[int, Device]
    moved: set[int]
    refused: Mapping[int, str]
    alone: Mapping[int, Cut]
    verdicts: Mapping[int, Verdict]
    marked: Mapping[int, int]


def crossing_type(kind: TensorType) -> TensorType:
    """Returns the type of a value that crosses between devices: floats become fp16, the engine's only float dtype."""
    return TensorType(FP16, kind.shape) if kind.dtype.kind == "float" else kind


def is_leaf(node: Node) -> bool:
    """True if no device computes the node: an input, a constant or a node that folds to one, a param, or a state."""
    return node.op in LEAVES or is_constant(node)


def crosses(value: Value) -> bool:
    """True if the value has to be passed on when another segment reads it. Leaves and states lie in memory that all
    segments can read."""
    return value.node.op != "write_state" and not is_leaf(value.node)


def assign_devices(graph: Graph, chip: Chip, refused: Mapping[int, str] = MappingProxyType({})) -> Devices:
    """Returns the devices of a graph's nodes. Minimises the number of values that are read on another device or across
    a hard cut, then their bytes. refused: nodes, by id, that may not run on the engine, with the reason."""
    (judged,) = judge_all(graph.nodes, [chip], rewritten)
    computed = (node for node in graph.nodes if node.op not in LEAVES)
    verdicts = {id(node): verdict for node, verdict in zip(computed, judged, strict=True) if not is_constant(node)}
    nodes = [node for node in graph.nodes if id(node) in verdicts]
    legal = {id(node): verdicts[id(node)].runs and id(node) not in refused for node in nodes}
    wide = host_numbers(graph.nodes, lambda node: legal.get(id(node), False), graph.use_counts())
    lonely = between_products(graph.nodes, lambda node: legal.get(id(node), False) and id(node) not in wide)
    marked = marked_programs(graph)
    others = {id(node): HOST for node in nodes if marked.names and id(node) not in marked.number}
    refused = {**lonely, **wide, **refused, **others}
    legal |= dict.fromkeys((*wide, *lonely, *others), False)
    free = {
        id(node) for node in nodes if legal[id(node)] and (op_unit(node.op) not in COMPUTING or _is_of_truths(node))
    }
    alone = {id(n): cut for n in nodes if legal[id(n)] and (cut := hard_cut(n, chip)) is not None}
    device: dict[int, Device] = {key: "ane" if on else "host" for key, on in legal.items()}
    moved = _moved(graph, nodes, device, free, alone) if free and not all(legal.values()) else set()
    device |= dict.fromkeys(moved, "host")
    return Devices(
        nodes, device, moved, refused, alone, verdicts, {k: i for k, i in marked.number.items() if k in verdicts}
    )


def _is_of_truths(node: Node) -> bool:
    """True if the node computes booleans from booleans. A logical op may have become a select."""
    return node.op in OF_TRUTHS or (node.op == "select" and node.types[0].dtype is BOOL)


def hard_cut(node: Node, chip: Chip) -> Cut | None:
    """Returns why a node of the engine cannot share a program with others: it is an attention, or a layer that exists
    in netplists only. Returns None for other nodes."""
    if node.op == "scaled_dot_product_attention":
        return Cut("the engine runs an attention as a segment of its own", "guide ch22, decoded")
    for name in mil_ops(node.op) or ():
        floor = floors().get(name)
        if floor is not None and floor.bridge and mil_status(name, chip).verdict != "native":
            return Cut(
                f"{chip.label} has {name} in an authored netplist only, which is a program of its own",
                f"{floor.source}, {floor.status}",
            )
    return None


def _moved(
    graph: Graph, nodes: Sequence[Node], device: Mapping[int, Device], free: set[int], alone: Mapping[int, Cut]
) -> set[int]:
    """Returns the free nodes on the host's side of a minimum cut."""
    readers: dict[Value, list[Node]] = {}
    for node in nodes:
        for value in dict.fromkeys(node.inputs):
            if value is not None and crosses(value):
                readers.setdefault(value, []).append(node)
    # A value across a hard cut crosses in any case. A value between two nodes on different fixed devices crosses too.
    open_values = {}
    for value, users in readers.items():
        group = [value.node, *users]
        given = {device[id(n)] for n in group if id(n) not in free}
        source_given = id(value.node) not in free
        decided = source_given and len(given) == 2
        if not decided and any(id(n) in free for n in group) and not any(id(n) in alone for n in group):
            open_values[value] = users
    moved: set[int] = set()
    for values in _components(open_values, free):
        if any(device[id(n)] == "host" for v in values for n in (v.node, *open_values[v])):
            moved |= _cut({v: open_values[v] for v in values}, device, free)
    return moved


def _components(values: Mapping[Value, list[Node]], free: set[int]) -> list[list[Value]]:
    """Returns the values in groups that share no free node, so that each group can be solved separately."""
    touching: dict[int, list[Value]] = {}
    for value, users in values.items():
        for node in (value.node, *users):
            if id(node) in free:
                touching.setdefault(id(node), []).append(value)
    seen: set[Value] = set()
    groups = []
    for first in values:
        if first in seen:
            continue
        seen.add(first)
        group = [first]
        for value in group:  # the loop extends `group`
            for node in (value.node, *values[value]):
                for other in touching.get(id(node), ()):
                    if other not in seen:
                        seen.add(other)
                        group.append(other)
        groups.append(group)
    return groups


def _cut(values: Mapping[Value, list[Node]], device: Mapping[int, Device], free: set[int]) -> set[int]:
    """Returns the free nodes on the host's side of the cheapest cut. The host is the source, the engine the sink.

    A value costs once, however many nodes read it on the other device:

        host --cost--> a --never--> every reader        if it is computed on the host and read on the engine
        every reader --never--> b --cost--> engine      if it is computed on the engine and read on the host

    If the node that computes the value is free, the edge starts or ends at that node instead of at the host or engine.
    """
    more = 1 + sum(crossing_type(v.type).bytes for v in values)  # a crossing costs more than all bytes together
    never = 1 + sum(more + crossing_type(v.type).bytes for v in values)
    network, place = Network(), {}
    for value, users in values.items():
        for node in (value.node, *users):
            if id(node) in free and id(node) not in place:
                place[id(node)] = network.node()

    def at(node: Node) -> int:
        return place.get(id(node), Network.SOURCE if device[id(node)] == "host" else Network.SINK)

    for value, users in values.items():
        cost, maker = more + crossing_type(value.type).bytes, at(value.node)
        if len(users) == 1:
            network.edge(maker, at(users[0]), cost, back=cost)
            continue
        if maker != Network.SINK:
            forth = network.node()
            network.edge(maker, forth, cost)
            for user in users:
                if at(user) != Network.SOURCE:
                    network.edge(forth, at(user), never)
        if maker != Network.SOURCE:
            back = network.node()
            network.edge(back, maker, cost)
            for user in users:
                if at(user) != Network.SINK:
                    network.edge(at(user), back, never)
    side = network.source_side()
    return {key for key, node in place.items() if node in side}

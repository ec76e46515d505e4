"""Assigns each op of a network to a device, so that few values cross between devices.

An op that computes runs on the engine if its verdict allows that, else on the host. An op that only moves elements, or
is logical, gives the same bits on both devices: it runs on the host if this saves crossings (`fewest_crossings.py`),
else on the engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from hexane.dtypes import BOOL
from hexane.graph import Graph, Node, TensorType, Value
from hexane.ops import LEAVES
from hexane.passes.retarget import rewritten
from hexane.passes.retarget.marked import HOST, marked_programs
from hexane.stages.segments.crossings import Device, crossing_type
from hexane.stages.segments.fewest_crossings import moved_to_host
from hexane.targets import Chip, Verdict
from hexane.targets.floors import floors, mil_ops, op_unit
from hexane.targets.legality import mil_status
from hexane.validate import is_constant, judge_all
from hexane.validate.host_numbers import host_numbers
from hexane.validate.run_time_scales import between_products

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
    moved = moved_to_host(graph, nodes, device, free, alone) if free and not all(legal.values()) else set()
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


def type_between(devices: Devices, value: Value, *readers: Node) -> TensorType:
    """Returns the type in which a value crosses: fp16 if the engine computes or reads it, else the model's type."""
    engine = any(devices.device.get(id(n)) == "ane" for n in (value.node, *readers))
    return crossing_type(value.type) if engine else value.type

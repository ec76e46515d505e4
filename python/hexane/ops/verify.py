"""Checks every node of a graph against its record. The checks share no code with the passes."""

from collections.abc import Sequence
from typing import Literal
from weakref import WeakSet

from hexane.dtypes import DTYPES
from hexane.errors import Error
from hexane.graph import EpilogueSlot, Graph, Node, TensorType
from hexane.graph.attributes import attr_bits
from hexane.ops import KERNEL_FORMS, LEAVES, OPS, USER_OPS, Op
from hexane.ops.application import arrange_inputs, infer
from hexane.ops.attributes import normalize_attrs
from hexane.system.limits import MAX_SLOTS
from hexane.targets import Target

GraphLevel = Literal["user", "lowering", "kernel", "engine"]  # A "lowering" graph has ops of several levels.

STATE_OPS = ("write_state",)  # valid at every level, because they write states in place

_sound: "WeakSet[Node]" = WeakSet()  # Checked nodes: immutable, and mostly in earlier graphs too.
_sound_kinds: set[object] = set()  # What `_check_node` reads of each checked node, without leaves.
MOST_KINDS = 1 << 16


def level_of(graph: Graph) -> GraphLevel:
    """Returns the level of a parsed graph: "user", or "lowering" if it has other ops, because text may be printed after
    any pass."""
    return "user" if all(node.op in USER_OPS or node.op in LEAVES for node in graph.nodes) else "lowering"


def verify(graph: Graph, level: GraphLevel, target: Target) -> None:
    """Raises Error, with the node, if a node is not valid in a graph of this level.

    At every level, the record must infer the same types, attributes must be known and canonical, the number of operands
    must be right, and kernels must support the slots. At the kernel level, the target must have each kernel, and the
    kernel must support the layout. At the engine level, all nodes must be layers. Ports and updates must be consistent.
    """
    for node in graph.nodes:
        try:
            if node not in _sound:
                _check_node(node)
                _sound.add(node)
            _check_level(node, level, target)
        except Error as error:
            raise Error(f"[{node.where}] {error}") from None
    _check_ports(graph)


def _check_node(node: Node) -> None:
    if node.op in LEAVES:
        if node.inputs or len(node.types) != 1 or (node.op != "const" and not node.attrs.get("name")):
            raise Error("got inputs, several outputs or no name, need a leaf")
        (kind,) = node.types
        if node.data is not None and (node.data.dtype, node.data.shape) != (kind.dtype.numpy, kind.shape):
            raise Error(f"got an array {node.data.dtype}{list(node.data.shape)}, need {kind}")
        return
    if node.op not in OPS:
        raise Error(f"got the op {node.op!r}, need one of the catalogue")
    op, operands = OPS[node.op], [None if v is None else v.type for v in node.inputs]
    checked = node.op, tuple(operands), node.types, attr_bits(tuple(node.attrs.items()))
    if checked in _sound_kinds:
        return
    _check_kind(op, node, operands)
    if any(isinstance(value, Graph) for value in node.attrs.values()):
        return  # not cached: the cache would keep the weights of the node's bodies
    if len(_sound_kinds) >= MOST_KINDS:
        _sound_kinds.clear()
    _sound_kinds.add(checked)


def _check_kind(op: Op, node: Node, operands: list[TensorType | None]) -> None:
    if arrange_inputs(op, node.inputs) != node.inputs:
        raise Error(f"got {len(node.inputs)} inputs, need {', '.join(op.inputs)}")
    attrs = normalize_attrs(op.attrs, node.attrs)
    if op.canonical is not None:
        attrs = op.canonical(operands, attrs)
    if attr_bits(tuple(attrs.items())) != attr_bits(tuple(node.attrs.items())):
        raise Error(f"attributes: got {dict(node.attrs)}, need {attrs}")
    if (types := infer(op, operands, attrs)) != node.types:
        raise Error(f"got the types {', '.join(map(str, node.types))}, need {', '.join(map(str, types))}")
    _check_slots(op, node, attrs.get("epilogue", ()))


def _check_slots(op: Op, node: Node, slots: Sequence[EpilogueSlot]) -> None:
    if op.level == "engine":
        return  # the type rule of chains has checked the slots
    if len(slots) > MAX_SLOTS:
        raise Error(f"epilogue: got {len(slots)} slots, need at most {MAX_SLOTS}")
    added = []
    for slot in slots:
        record = OPS.get(slot.op)
        if slot.op == "add" and slot.operand is not None and not slot.attributes:
            added.append(slot.operand)
        elif record is None or not record.elementwise or len(record.inputs) != 1 or slot.operand is not None:
            raise Error(f"epilogue: got {slot}, need add with an operand, or an op of one operand")
        elif attr_bits(tuple(normalize_attrs(record.attrs, dict(slot.attributes)).items())) != attr_bits(
            slot.attributes
        ):
            raise Error(f"epilogue: got {slot}, need all attributes of {slot.op}")
    if op.takes_slots and sorted(added) != list(range(len(op.inputs), len(node.inputs))):
        raise Error(f"epilogue: got the operands {added}, need those after {', '.join(op.inputs)}, each once")


def _check_level(node: Node, level: GraphLevel, target: Target) -> None:
    if node.op in LEAVES or level == "lowering":
        return
    op = OPS[node.op]
    if level == "user":
        if op.level != "user":
            raise Error(f"got {node.op}, need an op that users write")
        return
    if level == "engine":
        if op.level != "engine" and node.op not in STATE_OPS:
            raise Error(f"got {node.op}, need a layer of the engine")
        return
    if node.op in KERNEL_FORMS or op.level == "engine" or op.kernel not in target.kernels:
        raise Error(f"got {node.op}, need an op that a kernel of {target.name} runs")
    layout = node.attrs.get("layout")
    if layout is not None and layout not in (reads := target.kernels.reads(op.kernel)):
        raise Error(f"layout: got {layout}, need {' or '.join(reads)}, which the kernel reads")


def _check_ports(graph: Graph) -> None:
    for names in (graph.input_names(), [p.name for p in graph.outputs]):  # an output may have the name of an input
        if len(set(names)) != len(names) or not graph.outputs:
            raise Error(f"[{graph.name}] got the ports {', '.join(names)}, need outputs, and a name for each port")
    if {v.node for v in graph.inputs} != {n for n in graph.nodes if n.op == "input"}:
        raise Error(f"[{graph.name}] got inputs in the graph that are not in its signature")
    lengths = {p.name: p.value.type for p in graph.outputs}
    for port in graph.outputs:
        length = lengths.get(port.length)
        sound = length is not None and length.dtype is DTYPES["int64"] and length.rank == 0
        if port.length and not (sound and 0 <= port.axis < port.value.type.rank):
            raise Error(
                f"[{port.name}] got the length {port.length!r} of axis {port.axis}, need an int64 scalar output"
            )
    for value in graph.updates:
        if value.node.op != "write_state":
            raise Error(f"[{value.node.where}] got it as an update, need write_state")

"""Helpers of the passes over layers: count consumers, append a slot to a layer."""

from collections.abc import Sequence

from hexane.graph import EpilogueSlot, Graph, Node, TensorType, Value, tensor_type
from hexane.graph.decisions import Decision
from hexane.ops import OPS, apply
from hexane.ops.match import joined_sources
from hexane.ops.slots import CHAIN, moved, slot
from hexane.targets import Chip
from hexane.validate import validate

TABLE = "guide ch22, table 22.3"
LISTING = "guide ch22, listing 22.3"
ALIKE = ("anec.neuron", "anec.gain_offset_control")  # elementwise: the result does not depend on the layout


class Readers:
    """Counts the readers of each value during a rewrite. Call `see` for each node before `alone` for its operands."""

    def __init__(self, graph: Graph) -> None:
        self._counts = graph.use_counts()
        self._seen: set[Value] = set()
        self._readers: dict[Value, int] = {}  # number of readers, by new value

    def see(self, node: Node, inputs: Sequence[Value | None]) -> None:
        for old, new in zip(node.inputs, inputs, strict=True):
            if old is not None and new is not None and old not in self._seen:
                self._seen.add(old)
                self._readers[new] = self._readers.get(new, 0) + self._counts[old]

    def alone(self, value: Value) -> bool:
        """True if the value has at most one reader, or if the pass has just created the value."""
        return self._readers.get(value, 0) <= 1


def slots_of(node: Node) -> tuple[EpilogueSlot, ...]:
    result: tuple[EpilogueSlot, ...] = node.attrs.get("epilogue", ())
    return result


def takes(node: Node, kind: str) -> bool:
    """True if the layer's op has slots, and neither this slot nor a later one of CHAIN is filled."""
    op = OPS.get(node.op)
    if op is None or op.level != "engine" or not op.takes_slots or node.types[0].dtype.kind != "float":
        return False
    slots = slots_of(node)
    return not slots or CHAIN.index(slots[-1].op) < CHAIN.index(kind)


def put(producer: Node, last: EpilogueSlot, operands: Sequence[Value], reader: Node) -> tuple[Value, ...]:
    """Returns the producer with one more slot, and with the slot's operands as its last inputs.

    last: the slot, in which index -2 - i means operands[i]. reader: the node that the slot replaces.
    """
    first = len(producer.inputs)
    placed = moved(last, {-2 - i: first + i for i in range(len(operands))})
    attrs = {**producer.attrs, "epilogue": (*slots_of(producer), placed)}
    return apply(OPS[producer.op], [*producer.inputs, *operands], attrs, joined_sources(producer, reader))


def put_affine(node: Node, inputs: Sequence[Value | None], producer: Node, axis: int) -> Value | None:
    """Returns the producer with the gain and offset of the node in a slot, or None if that slot is not free or if the
    node has slots itself."""
    if slots_of(node) or not takes(producer, "gain_offset"):
        return None
    operands = [v for v in inputs[1:3] if v is not None]
    places = iter(range(-2, -2 - len(operands), -1))
    gain, offset = (-1 if v is None else next(places) for v in inputs[1:3])
    return put(producer, slot("gain_offset", gain=gain, offset=offset, axis=axis), operands, node)[0]


def refused_reshape(kind: TensorType, shape: tuple[int, ...], chip: Chip) -> str:
    """Returns why the chip refuses this reshape, or "" if it accepts it. Families before A13 can only flatten."""
    errors = kind.shape != shape and validate("Reshape", (kind,), {}, chip, tensor_type(kind.dtype, shape))
    return errors[0].reason if errors else ""


def fused(stage: str, node: Node, into: Node, what: str, source: str = TABLE) -> Decision:
    return Decision(stage, node.where, "fused", f"{what} of {into.where}", source)

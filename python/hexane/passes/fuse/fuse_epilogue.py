"""Fuses activations and residual adds into the epilogues of the kernels that produce their operands."""

from collections.abc import Sequence

from hexane.dtypes import DTYPES
from hexane.graph import EpilogueSlot, Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.ops.match import joined_sources
from hexane.system.limits import MAX_SLOT_NUMBERS, MAX_SLOTS
from hexane.targets import Target

FUSED = tuple(DTYPES[name] for name in ("fp32", "fp16", "bf16"))  # the result dtypes of kernels with epilogues


def fuse_epilogue(graph: Graph, target: Target) -> Graph:
    """relu(cpu.add(cpu.conv(%x, %w, %b), %r))  ->  cpu.conv(%x, %w, %b, %r) {epilogue=(add(3), relu())}

    Requires that the absorbed node is the producer's only reader and that a slot can hold all of its attributes. A
    residual must have the output's type. Only ops that multiply and accumulate absorb a residual, and only if the
    target's `residual_epilogue` allows it. Elementwise ops absorb activations only.
    """
    counts = graph.use_counts()
    position = {id(node): i for i, node in enumerate(graph.nodes)}

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        candidates = [
            (position[id(old.node)], i)
            for i, old in enumerate(node.inputs)
            if old is not None and counts[old] == 1 and inputs[i] is not None and _takes(inputs[i].node, node)  # type: ignore[union-attr]
        ]
        # Of two candidates the later producer absorbs the node, because the other operand is computed before it.
        for _, i in sorted(candidates, reverse=True):
            producer = inputs[i]
            assert producer is not None
            slot = activation(node)
            if slot is not None:
                return _absorb(producer.node, slot, (), node)
            others = [v for j, v in enumerate(inputs) if j != i]
            if target.residual_epilogue and others[0] is not None and others[0].type == node.types[0]:
                slot = EpilogueSlot("add", operand=len(producer.node.inputs))
                return _absorb(producer.node, slot, others, node)
        return None

    return graph.rewrite(change)


def _takes(producer: Node, node: Node) -> bool:
    """True if the producer can apply the node to its accumulator."""
    op = OPS.get(producer.op)
    if op is None or not op.takes_slots or producer.types[0] != node.types[0] or producer.types[0].dtype not in FUSED:
        return False
    slots: tuple[EpilogueSlot, ...] = producer.attrs["epilogue"]
    if len(slots) == MAX_SLOTS:
        return False
    if node.op == "cpu.add":
        return not node.attrs["epilogue"] and op.product is not None and all(s.operand is None for s in slots)
    return activation(node) is not None


def activation(node: Node) -> EpilogueSlot | None:
    """Returns the slot that applies the node's function to an accumulator, or None if no slot does."""
    record = OPS.get(node.op)
    if record is None or not record.elementwise or not record.kernel or len(record.inputs) != 1:
        return None
    numbers = tuple(node.attrs.items())
    fits = len(numbers) <= MAX_SLOT_NUMBERS and all(isinstance(v, float) for _, v in numbers)
    return EpilogueSlot(node.op, numbers) if fits else None


def _absorb(producer: Node, slot: EpilogueSlot, operands: Sequence[Value | None], node: Node) -> tuple[Value, ...]:
    attrs = {**producer.attrs, "epilogue": (*producer.attrs["epilogue"], slot)}
    return apply(OPS[producer.op], [*producer.inputs, *operands], attrs, joined_sources(producer, node))

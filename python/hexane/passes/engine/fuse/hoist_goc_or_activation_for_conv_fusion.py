"""Moves gains, offsets and activations up to the convolution before them, so that its slots absorb them."""

from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.ops import OPS, apply
from hexane.ops.match import joined_sources
from hexane.ops.records.engine.convolution import CONVOLUTIONS
from hexane.passes.engine.chain import ALIKE, TABLE, Readers, fused, put_affine, slots_of, takes
from hexane.passes.engine.channels import backward
from hexane.passes.engine.fuse.fold_scale import into_slot
from hexane.targets import Target

STAGE = "hoist_goc_or_activation_for_conv_fusion"
MOVES = ("anec.transpose", "anec.reshape")


def hoist_goc_or_activation_for_conv_fusion(graph: Graph, target: Target) -> Graph:
    """anec.gain_offset_control(anec.transpose(anec.convolution(%x, %w)), none, %b)  ->  anec.transpose(anec.convolution(%x, %w, none, %b))

    The node moves towards its producer, past transposes, reshapes and fusable concatenations (`is_fusable_concat`) that
    have no other reader. A moved gain and offset fill a slot of the producer. An activation stays a layer until
    `simple_activation` puts it into a slot.
    """  # noqa: E501
    if graph.ops.isdisjoint(ALIKE):
        return graph
    readers, decisions = Readers(graph), list[Decision]()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        readers.see(node, inputs)
        if node.op not in ALIKE or inputs[0] is None:
            return None
        if inputs[0].node.op == "anec.concat":
            return _into_concat(node, inputs, readers, decisions)
        path, source = past_moves(inputs[0], readers)
        if not readers.alone(source) or (source.node.op not in CONVOLUTIONS if path else source.node.op in ALIKE):
            return None
        axis = moved_axis(node, path)
        if axis is None:
            return None
        result = _done(node, inputs, source, axis, decisions)
        if result is None or (not path and result.node.op == "anec.neuron"):
            return None
        for step in reversed(path):
            result = apply(OPS[step.op], [result], step.attrs, joined_sources(step, node))[0]
        return (result,)

    return graph.rewrite(change).decided(*decisions)


def past_moves(value: Value, readers: Readers) -> tuple[list[Node], Value]:
    """Returns the chain of single-reader moves that ends in the value, last move first, and the chain's source."""
    path = []
    while value.node.op in MOVES and readers.alone(value) and value.node.inputs[0] is not None:
        path.append(value.node)
        value = value.node.inputs[0]
    return path, value


def moved_axis(node: Node, path: list[Node]) -> int | None:
    """Returns the axis of a gain and offset before the moves: 0 if it has no axis, None if a reshape merges its
    axis."""
    if node.op != "anec.gain_offset_control" or all(v is None or not v.shape for v in node.inputs[1:3]):
        return 0
    axis: int | None = int(node.attrs["axis"])
    for step in path:
        axis = None if axis is None else backward(step, axis)
    return axis


def _done(node: Node, inputs: tuple[Value | None, ...], x: Value, axis: int, decisions: list[Decision]) -> Value | None:
    """Applies the node to x. A gain and offset go into a slot of x's layer (None if it is filled). An activation
    becomes a layer."""
    if node.op == "anec.gain_offset_control":
        result = put_affine(node, inputs, x.node, axis) or into_slot(node, inputs, x.node, axis)
        if result is not None:
            decisions.append(fused(STAGE, node, x.node, "gain_offset"))
        return result
    if node.op == "anec.neuron" and not node.attrs["epilogue"]:
        return apply(OPS[node.op], [x], node.attrs, node.sources)[0]
    return None


def is_fusable_concat(node: Node, reader: Node, readers: Readers) -> bool:
    """True if a gain, an offset or an activation can be applied to the concatenation's operands instead of its result.

    The engine's compiler has a predicate of this name with unpublished conditions. The conditions here: each operand
    comes from a convolution with no other reader and with a free slot of this kind, and the reader treats all channels
    alike.
    """
    kind = "post_activation" if reader.op == "anec.neuron" else "gain_offset"
    alike = reader.op == "anec.neuron" or all(v is None or not v.shape for v in reader.inputs[1:3])
    return alike and all(
        v is not None and v.node.op in CONVOLUTIONS and readers.alone(v) and _room(v.node, kind) for v in node.inputs
    )


def _room(node: Node, kind: str) -> bool:
    """True if the layer has a free slot of this kind, or a gain and offset as its last slot, which absorbs another."""
    slots = slots_of(node)
    return takes(node, kind) or (kind == "gain_offset" and bool(slots) and slots[-1].op == "gain_offset")


def _into_concat(
    node: Node, inputs: tuple[Value | None, ...], readers: Readers, decisions: list[Decision]
) -> tuple[Value, ...] | None:
    value = inputs[0]
    assert value is not None
    concat = value.node
    if not readers.alone(value) or not is_fusable_concat(concat, node, readers) or node.attrs["epilogue"]:
        return None
    parts = [_done(node, inputs, v, 0, decisions) for v in concat.inputs if v is not None]
    if any(part is None for part in parts):
        return None
    decisions.append(
        Decision(STAGE, concat.where, "fused", "a concatenation of layers that all take what follows it", TABLE)
    )
    return apply(OPS[concat.op], parts, concat.attrs, joined_sources(concat, node))

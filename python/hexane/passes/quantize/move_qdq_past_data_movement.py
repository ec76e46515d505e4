"""Moves quantize and dequantize past ops that only move elements, next to the ops that compute with them."""

from collections.abc import Mapping

from hexane.graph import Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.ops.fold import fold_node
from hexane.ops.records.quant import BYTES
from hexane.ops.spec import moved_inputs
from hexane.passes.quantize.quantized import dequantized, grid
from hexane.targets import Target

_MAX_CHAIN = 16


def move_qdq_past_data_movement(graph: Graph, target: Target) -> Graph:
    """max_pool(dequantize(%x, %s))  ->  dequantize(max_pool(%x), %s)

    Applies to ops that only move elements, and to concatenations of tensors with one scale. In the other direction,
    quantize(concat(%x, %y), %s) becomes concat(quantize(%x, %s), quantize(%y, %s)) if the moved ops have no other
    reader. A tensor has one scale, or one per index of an axis that a transpose moves. For max_pool the scale is
    a positive constant. A dequantize with another reader is kept for that reader.
    """
    graph = graph.rewrite(_sunk, _MOVING)
    counts = graph.use_counts()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.inputs[1].type.rank or not _rises(node.inputs[0]):  # type: ignore[union-attr]
            return None
        return (_raised(node, inputs, node.inputs[0], inputs[0], counts, _MAX_CHAIN),)

    return graph.rewrite(change, ("quantize",))


def _raised(
    node: Node,
    inputs: tuple[Value | None, ...],
    old: Value | None,
    new: Value | None,
    counts: Mapping[Value, int],
    left: int,
) -> Value:
    """Returns `new` quantised. old: the same value in the original graph, whose readers are counted."""
    assert old is not None
    assert new is not None
    if left == 0 or counts[old] != 1 or not _rises(old) or (_picks(old) and grid(inputs[1], inputs[2]) is None):
        return apply(OPS["quantize"], [new, *inputs[1:]], node.attrs, node.sources)[0]
    operands = list(new.node.inputs)
    for i in _moved(old.node):
        operands[i] = _raised(node, inputs, old.node.inputs[i], operands[i], counts, left - 1)
    return apply(OPS[old.node.op], operands, new.node.attrs, new.node.sources)[0]


def _moved(node: Node) -> list[int]:
    """Returns the positions of the inputs whose elements the op moves into its only result."""
    if node.op not in _MOVING:
        return []
    return [0] if OPS[node.op].picks else moved_inputs(OPS[node.op], len(node.inputs))


# Excludes ops that fill in other elements or reinterpret the dtype.
_MOVING = {
    name
    for name, op in OPS.items()
    if (op.moves or op.picks) and not op.fills and len(op.outputs) == 1 and "dtype" not in (op.attrs or {})
}


def _rises(value: Value | None) -> bool:
    """True if quantising the operands instead of the value is no more work."""
    if value is None:
        return False
    operands = [value.node.inputs[i] for i in _moved(value.node)]
    return bool(operands) and (_picks(value) or sum(v.type.size for v in operands if v is not None) <= value.type.size)


def _picks(value: Value) -> bool:
    return OPS[value.node.op].picks


def _sunk(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
    moved = _moved(node)
    quantized_inputs = [dequantized(inputs[i]) for i in moved]
    first = quantized_inputs[0] if quantized_inputs else None
    if first is None or any(
        o is None or (len(quantized_inputs) > 1 and not o.same_grid(first)) for o in quantized_inputs
    ):
        return None
    if not first.single and node.op != "transpose":
        return None
    if OPS[node.op].picks and (first.grid is None or first.value.dtype not in BYTES):
        return None
    operands = list(inputs)
    for i, quantized in zip(moved, quantized_inputs, strict=True):
        operands[i] = None if quantized is None else quantized.value
    result = apply(OPS[node.op], operands, node.attrs, node.sources)
    source = (fold_node(result[0].node) or result)[0]
    axis = 0 if first.single else node.attrs["perm"].index(first.axis)
    attrs = {"axis": axis, "dtype": first.real}
    return apply(OPS["dequantize"], [source, first.scale, first.zero], attrs, node.sources)

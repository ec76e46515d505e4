"""Brings quantised tensors to where they are computed with: past the ops that only move elements."""

from hexane.graph import Graph, Node, Value
from hexane.match import use_counts
from hexane.ops import OPS, apply
from hexane.ops.fold import fold_node
from hexane.ops.records.quant import BYTES
from hexane.passes.quantize.quantized import dequantized, grid
from hexane.targets import Target

# Ops that choose among the elements of their first operand, whatever those mean.
_DOWN = ("reshape", "transpose", "slice_by_index", "reverse", "gather", "resize_nearest_neighbor", "max_pool")
_UP = ("reshape", "transpose", "reverse", "resize_nearest_neighbor", "max_pool", "concat")
_MAX_CHAIN = 16


def move_qdq_past_data_movement(graph: Graph, target: Target) -> Graph:
    """max_pool(dequantize(%x, %s))  ->  dequantize(max_pool(%x), %s)

    Likewise other ops that only move elements, and concatenations of tensors of one scale; in the other direction
    quantize(concat(%x, %y), %s) becomes concat(quantize(%x, %s), quantize(%y, %s)) where nothing else reads what is moved.
    The scale is one for the tensor, or belongs to an axis that a transpose takes along; for max_pool it is a constant above 0.
    A dequantize that has another reader stays for it.
    """
    graph = graph.rewrite(_sunk)
    counts = use_counts(graph)

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op != "quantize" or node.inputs[1].type.rank or not _rises(node.inputs[0]):  # type: ignore[union-attr]
            return None
        return (raised(node, inputs, node.inputs[0], inputs[0], _MAX_CHAIN),)

    def raised(node: Node, inputs: tuple[Value | None, ...], old: Value | None, new: Value | None, left: int) -> Value:
        """The quantised form of a value; `old` is what it was in the graph whose readers are counted."""
        assert old is not None
        assert new is not None
        if left == 0 or counts[old] != 1 or not _rises(old) or (_pools(old) and grid(inputs[1], inputs[2]) is None):
            return apply(OPS["quantize"], [new, *inputs[1:]], node.attrs, node.sources)[0]
        num = len(old.node.inputs) if old.node.op == "concat" else 1
        pairs = zip(old.node.inputs[:num], new.node.inputs[:num], strict=True)
        moved = [raised(node, inputs, a, b, left - 1) for a, b in pairs]
        return apply(OPS[old.node.op], [*moved, *new.node.inputs[num:]], new.node.attrs, new.node.sources)[0]

    return graph.rewrite(change)


def _rises(value: Value | None) -> bool:
    return value is not None and value.node.op in _UP


def _pools(value: Value) -> bool:
    return value.node.op == "max_pool"


def _sunk(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
    if node.op not in _DOWN and node.op != "concat":
        return None
    num = len(inputs) if node.op == "concat" else 1
    operands = [dequantized(v) for v in inputs[:num]]
    first = operands[0]
    if first is None or any(o is None or (num > 1 and not o.same_grid(first)) for o in operands):
        return None
    if not first.single and node.op != "transpose":
        return None
    if node.op == "max_pool" and (first.grid is None or first.value.dtype not in BYTES):
        return None
    values = [o.value for o in operands if o is not None]
    moved = apply(OPS[node.op], [*values, *inputs[num:]], node.attrs, node.sources)
    source = (fold_node(moved[0].node) or moved)[0]
    axis = 0 if first.single else node.attrs["perm"].index(first.axis)
    attrs = {"axis": axis, "dtype": first.real}
    return apply(OPS["dequantize"], [source, first.scale, first.zero], attrs, node.sources)

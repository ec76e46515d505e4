"""Replaces elementwise functions of an 8-bit tensor by a table of 256 results."""

import numpy as np

from hexane.graph import Array, Graph, Node, Value, constant
from hexane.ops import LEAVES, OPS, apply, evaluate
from hexane.ops.records.quant import BYTES
from hexane.passes.quantize.quantized import known
from hexane.targets import Target

MAX_NODES = 32


def fuse_lookup(graph: Graph, target: Target) -> Graph:
    """quantize(sigmoid(dequantize(%x, 0.1)), 0.05)  ->  lookup(%x, const uint8[256])

    Replaces elementwise ops between a dequantize and a quantize of 8-bit integers by a table. Further operands of
    replaced ops must be constants with one element, and scales and zero points must be constant. The result is x itself
    if the table is the identity, and clip(x) if it only clips.
    """

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.types[0].dtype not in BYTES:
            return None
        whole = apply(OPS["quantize"], inputs, node.attrs, node.sources)
        cone = _cone(whole[0])
        if cone is None:
            return None
        source, nodes = cone
        return (_applied(source, _table(source, nodes), node.sources),)

    return graph.rewrite(change, ("quantize",))


def _cone(root: Value) -> tuple[Value, list[Node]] | None:
    """Returns the one 8-bit value that an elementwise computation depends on, and its nodes in topological order."""
    source: Value | None = None
    order: list[Node] = []
    seen: set[Node] = set()
    stack = [(root.node, False)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
            continue
        if node in seen:
            continue
        seen.add(node)
        if len(seen) > MAX_NODES:
            return None
        if node is root.node or _elementwise(node):
            stack.append((node, True))
            operands = node.inputs[:1] if node.op == "lookup" else node.inputs
            stack += [(v.node, False) for v in operands if v is not None]
        elif node.op == "const":
            if node.types[0].size != 1:
                return None
            order.append(node)
        else:
            value = node.values[0]
            if len(node.types) > 1 or value.dtype not in BYTES or source not in (None, value):
                return None
            source = value
    return None if source is None or source.shape != root.shape else (source, order)


def _elementwise(node: Node) -> bool:
    """True if each element of the result depends on one element of each operand."""
    if node.op in LEAVES or (node.op in ("quantize", "quantized_add") and node.types[0].dtype in BYTES):
        return False  # the pass has kept this op: it depends on more than one byte
    if node.op == "lookup":
        return known(node.inputs[1]) is not None
    return node.op == "dequantize" or OPS[node.op].elementwise


def _table(source: Value, nodes: list[Node]) -> Array:
    """Returns the result of the last node for each byte."""
    by_value: dict[Value, Array] = {source: np.arange(256, dtype=np.uint8).view(source.dtype.numpy)}
    for node in nodes:
        if node.op == "const":
            assert node.data is not None
            by_value[node.values[0]] = node.data.reshape(())
        else:
            arrays = [by_value[v] if v in by_value else known(v) for v in node.inputs]
            by_value.update(zip(node.values, evaluate(node, arrays), strict=True))
    return by_value[nodes[-1].values[0]]


def _applied(source: Value, table: Array, sources: tuple[str, ...]) -> Value:
    if table.dtype == source.dtype.numpy:
        own = np.arange(256, dtype=np.uint8).view(table.dtype)
        if (table == own).all():
            return source
        low, high = int(table.min()), int(table.max())
        if (table == np.clip(own, low, high)).all():
            return apply(OPS["clip"], [source], {"alpha": low, "beta": high}, sources)[0]
    return apply(OPS["lookup"], [source, constant(table, sources)], {}, sources)[0]

"""Weights that an asset stores with few bits stay so in the graph, where a layer reads them as its weights."""

from typing import Any

from hexane.graph import Graph, Node, Value
from hexane.ops import OPS
from hexane.ops.compose import Operand, lift
from hexane.ops.encoded_moves import moved
from hexane.ops.encodings import encoding_of, is_encoded
from hexane.ops.fold import Folder, fold_node
from hexane.ops.valid_lengths import apply

# The operand that is a weight, or the rows of an embedding.
WEIGHTS = {"conv": 1, "conv_transpose": 1, "linear": 1, "matmul": 1, "gather": 0, "gather_nd": 0}


class EncodedFolder(Folder):
    """Folds constants. The elements of encoded ones move without being decoded."""

    __slots__ = ()

    def several(self, name: str, *inputs: Operand, **attrs: Any) -> tuple[Value, ...]:
        values = apply(OPS[name], lift(inputs, self.sources), attrs, self.sources)
        stored = moved(values[0].node)
        return (stored,) if stored is not None else fold_node(values[0].node) or values


def is_turned(node: Node) -> bool:
    """True if the node swaps the axes of a constant matrix, as programs do with the weight of a linear layer."""
    source = node.inputs[0] if node.op == "transpose" else None
    if source is None or source.dtype.kind != "float" or tuple(node.attrs["perm"]) != (1, 0):
        return False
    return source.node.op == "const" or is_encoded(source.node)


def settled(value: Value) -> Value:
    """A matrix that was left with its axes to be swapped, with its axes swapped; other values as they are."""
    if not is_turned(value.node):
        return value
    stored = moved(value.node)
    folded = fold_node(value.node) if stored is None else None
    return stored or (value if folded is None else folded[0])


def decoded(value: Value) -> Value:
    """A constant of the numbers that an encoded one stands for; other values as they are."""
    return encoding_of(value).decode() if is_encoded(value.node) else value


def decode_all_but_weights(graph: Graph) -> Graph:
    """mul(decode_palette(const, const), const)  ->  const

    Encoded constants that something else than a layer reads as its weights are decoded, and what depends on constants
    alone is computed.
    """
    if any(is_turned(node) for node in graph.nodes):
        graph = graph.rewrite(lambda node, inputs: (settled(node.values[0]),) if is_turned(node) else None)
    kept = _weights(graph)
    if not any(is_encoded(node) and node not in kept for node in graph.nodes):
        return graph

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        return None if node in kept else fold_node(node.with_inputs(inputs))

    return graph.rewrite(change)


def _weights(graph: Graph) -> set[Node]:
    """Encoded constants that layers read as their weights and nothing else reads."""
    readers: dict[Node, bool] = {}
    for node in graph.nodes:
        for i, value in enumerate(node.inputs):
            if value is not None and is_encoded(value.node):
                readers[value.node] = readers.get(value.node, True) and _is_weight(node, i)
    results = {value.node for value in (*[p.value for p in graph.outputs], *graph.updates)}
    return {node for node, are_layers in readers.items() if are_layers and node not in results}


def _is_weight(node: Node, place: int) -> bool:
    """True if a layer reads its weight there. A product of constants, or rows that constants pick, are no layer."""
    others = [v for i, v in enumerate(node.inputs) if v is not None and i != place]
    return WEIGHTS.get(node.op) == place and not all(v.node.op == "const" for v in others)

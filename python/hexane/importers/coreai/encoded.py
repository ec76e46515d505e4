"""Keeps the encoded weights of an asset encoded in the graph, if layers read them as weights."""

from typing import Any

from hexane.graph import Graph, Node, Value
from hexane.ops import OPS
from hexane.ops.compose import Operand, lift
from hexane.ops.encoded_moves import moved
from hexane.ops.encodings import encoding_of, is_encoded
from hexane.ops.fold import Folder, fold_node
from hexane.ops.valid_lengths import apply

# For each op, the position of its weight, or of an embedding's table.
WEIGHTS = {"conv": 1, "conv_transpose": 1, "linear": 1, "matmul": 1, "gather": 0, "gather_nd": 0}


class EncodedFolder(Folder):
    """Folds constants, and moves the elements of encoded constants without decoding them."""

    __slots__ = ()

    def several(self, name: str, *inputs: Operand, **attrs: Any) -> tuple[Value, ...]:
        values = apply(OPS[name], lift(inputs, self.sources), attrs, self.sources)
        stored = moved(values[0].node)
        return (stored,) if stored is not None else fold_node(values[0].node) or values


def is_turned(node: Node) -> bool:
    """True if the node transposes a constant matrix, such as the weight of a linear layer."""
    source = node.inputs[0] if node.op == "transpose" else None
    if source is None or source.dtype.kind != "float" or tuple(node.attrs["perm"]) != (1, 0):
        return False
    return source.node.op == "const" or is_encoded(source.node)


def settled(value: Value) -> Value:
    """Returns the transposed constant for a transpose of a constant matrix, and any other value unchanged."""
    if not is_turned(value.node):
        return value
    stored = moved(value.node)
    folded = fold_node(value.node) if stored is None else None
    return stored or (value if folded is None else folded[0])


def decoded(value: Value) -> Value:
    """Returns the decoded constant for an encoded one, and any other value unchanged."""
    return encoding_of(value).decode() if is_encoded(value.node) else value


def decode_all_but_weights(graph: Graph) -> Graph:
    """mul(decode_palette(const, const), const)  ->  const

    Decodes an encoded constant unless all its readers are layers that read it as their weight. Folds the ops whose
    operands are all constant after the decoding.
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
    """Returns the nodes of encoded constants that are read only as weights of layers."""
    readers: dict[Node, bool] = {}
    for node in graph.nodes:
        for i, value in enumerate(node.inputs):
            if value is not None and is_encoded(value.node):
                readers[value.node] = readers.get(value.node, True) and _is_weight(node, i)
    results = {value.node for value in (*[p.value for p in graph.outputs], *graph.updates)}
    return {node for node, are_layers in readers.items() if are_layers and node not in results}


def _is_weight(node: Node, place: int) -> bool:
    """True if operand `place` of the node is the weight of a layer. A product of constants and a gather with constant
    indices are no layers."""
    others = [v for i, v in enumerate(node.inputs) if v is not None and i != place]
    return WEIGHTS.get(node.op) == place and not all(v.node.op == "const" for v in others)

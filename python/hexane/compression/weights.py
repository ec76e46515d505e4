"""Finds the weights of a graph that may be stored with fewer bits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hexane.dtypes import FP16, FP32
from hexane.graph import Array, Graph, Node, Value, topological
from hexane.ops import OPS, apply
from hexane.ops.encodings import is_encoded
from hexane.ops.fold import fold_node

LEAST_NUMBERS = 4096  # elements; smaller weights save too little
_PRODUCTS = ("conv", "conv_transpose", "linear", "matmul", "einsum")
# Ops whose result has an operand's numbers in another order, shape or dtype, or with another sign.
_MOVES = (
    *("reshape", "expand_dims", "squeeze", "transpose", "broadcast_to", "tile", "identity", "cast", "neg", "concat"),
    *("split", "slice_by_size", "slice_by_index", "flatten", "flatten2d", "stack", "interleave", "gather"),
)
_OPERANDS = {"conv": 1, "conv_transpose": 1, "linear": 1, "matmul": 1, "gather": 0}


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight. `node` reads it as `value`, which equals the constant `whole`. axis: the axis of output channels (in a
    group of a transposed convolution), or of an embedding's rows. input_axis: the axis of input channels (in a group of
    a convolution), or of an embedding's columns."""

    node: Node
    value: Value
    whole: Value
    axis: int
    input_axis: int

    @property
    def is_kernel(self) -> bool:
        """True if a product reads the weight. False for the rows of an embedding."""
        return self.node.op != "gather"

    @property
    def bytes(self) -> int:
        """The size in fp16, as in a chip's program or in MIL."""
        return 2 * self.whole.type.size


def find_weights(graph: Graph) -> list[Weight]:
    """Returns the weights in order: float constants of at least LEAST_NUMBERS elements that a conv, conv_transpose,
    linear or matmul multiplies by, and tables of embeddings. A constant that several ops read is listed once, for the
    first of them. A weight that is encoded already keeps its encoding.

    A table whose rows are multiplied by activations is no embedding: the cosines and sines of rotary positions, or the
    scales of a conditional norm. An error in an embedding's row affects one token; an error in a factor affects all
    channels of all layers.
    """
    weights: dict[Value, Weight] = {}
    users = graph.users() if "gather" in graph.ops else {}
    for node in graph.nodes:
        place = _OPERANDS.get(node.op)
        value = None if place is None else node.inputs[place]
        if value is None or value in weights or value.type.rank < 2 or value.type.size < LEAST_NUMBERS:
            continue
        if value.dtype not in (FP16, FP32) or not _is_compressible(node, value):
            continue
        whole = _folded(value)
        if whole is not None and not (node.op == "gather" and _are_factors(node, users)):
            weights[value] = Weight(node, value, whole, *axes_of(node))
    return list(weights.values())


def left_whole(graph: Graph) -> dict[str, str]:
    """Returns the dtype of each weight that no encoding supports, by the op that reads it: fp64, and bf16 that is not
    widened."""
    result: dict[str, str] = {}
    for node in graph.nodes:
        place = _OPERANDS.get(node.op)
        value = None if place is None else node.inputs[place]
        if value is None or value.type.rank < 2 or value.type.size < LEAST_NUMBERS or not _is_compressible(node, value):
            continue
        if value.dtype.kind == "float" and value.dtype not in (FP16, FP32) and _folded(value) is not None:
            result[node.where] = value.dtype.name
    return result


def with_tied_weights(graph: Graph) -> Graph:
    """gather(%w, %ids), matmul(%x, transpose(%w))  ->  gather(%w, %ids), matmul(%x, %w) {transpose_y=True}

    Merges a constant that an embedding and a product share, if the product reads it transposed or reads a transposed
    copy. Embedding and product then read one weight, stored once.
    """
    tables = [node.inputs[0] for node in graph.nodes if node.op == "gather" and node.inputs[0] is not None]
    tables = [table for table in dict.fromkeys(tables) if table.type.rank == 2 and _folded(table) is not None]

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        operand = inputs[1]
        table = None if operand is None else next((t for t in tables if is_transposed(operand, t)), None)
        if table is None:
            return None
        attrs = {**node.attrs, "transpose_y": not node.attrs["transpose_y"]}
        return apply(OPS["matmul"], [inputs[0], table, *inputs[2:]], attrs, node.sources)

    return graph.rewrite(change, ("matmul",)) if tables else graph


def is_transposed(value: Value, matrix: Value) -> bool:
    """True if the value is the transposed matrix, by a transpose or as another constant."""
    if value.dtype is not matrix.dtype or value.shape != matrix.shape[::-1] or len(value.shape) != 2:
        return False
    if value.node.op == "transpose":
        return value.node.inputs[0] == matrix
    data, other = value.node.data, matrix.node.data
    return data is not None and other is not None and _equal(data, other.T)


def _equal(array: Array, other: Array) -> bool:
    """True if arrays of one shape are equal. The first row is compared first, because most unequal arrays differ
    there."""
    return np.array_equal(array[:1], other[:1], equal_nan=True) and np.array_equal(array, other, equal_nan=True)


def operand_of(node: Node) -> int | None:
    """Returns the index of this op's weight operand, or None if it has none."""
    return _OPERANDS.get(node.op)


def axes_of(node: Node) -> tuple[int, int]:
    """Returns the axes of the output channels and of the input channels in this op's weight."""
    weight = node.inputs[_OPERANDS[node.op]]
    assert weight is not None
    if node.op == "conv":
        return 0, 1  # conv weights have these axes for every layout of images
    if node.op == "conv_transpose":
        return 1, 0
    last = weight.type.rank - 1
    if node.op != "matmul":
        return 0, last
    return (last - 1, last) if node.attrs["transpose_y"] else (last, last - 1)


def _is_compressible(node: Node, value: Value) -> bool:
    if node.op != "gather":
        return True
    # A gather with constant indices is a constant, which may be an encoded form of the same weight.
    return node.attrs["axis"] == 0 and node.inputs[1] is not None and node.inputs[1].node.op != "const"


def _are_factors(node: Node, users: Mapping[Value, Sequence[Node]]) -> bool:
    """True if the rows of a gather are multiplied elementwise by the result of a product, or rotate positions."""
    waiting, seen = list(node.values), set(node.values)
    while waiting:
        value = waiting.pop()
        for user in users.get(value, ()):
            if user.op == "rotary_embedding" and user.inputs[0] != value:
                return True
            follows = user.op in _MOVES
            if user.op == "mul":
                (other,) = (v for v in user.inputs if v != value) if user.inputs.count(value) == 1 else (value,)
                assert other is not None
                follows = other.node.op == "const"
                if not follows and _is_computed_apart(other, value, node):
                    return True
            if follows:
                new = [result for result in user.values if result not in seen]
                seen.update(new)
                waiting += new
    return False


def _is_computed_apart(other: Value, rows: Value, gather: Node) -> bool:
    """True if a product computes the other factor independently of the gather, and the factor has at least as many
    elements as the rows. A mask, with one number per row, is not such a factor."""
    if other.type.size < rows.type.size:
        return False
    before = topological([other])
    return gather not in before and any(node.op in _PRODUCTS for node in before)


def _folded(value: Value) -> Value | None:
    """Returns the constant that equals a value, or None if it is computed, mutable or encoded."""
    became: dict[Value, Value] = {}
    for node in topological([value]):
        if node.op == "const":
            continue
        inputs = tuple(None if v is None else became.get(v, v) for v in node.inputs)
        known = node.with_inputs(inputs) if inputs else node
        folded = None if is_encoded(known) else fold_node(known)
        if folded is None:
            return None
        became.update(zip(node.values, folded, strict=True))
    return became.get(value, value)

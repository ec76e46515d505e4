"""The weights of a graph that may be stored with fewer bits."""

from dataclasses import dataclass

from hexane.dtypes import FP16, FP32
from hexane.graph import Graph, Node, Value, topological
from hexane.ops.encodings import is_encoded
from hexane.ops.fold import fold_node

LEAST_NUMBERS = 4096  # a weight that is smaller gains too little
_OPERANDS = {"conv": 1, "conv_transpose": 1, "linear": 1, "matmul": 1, "gather": 0}


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight: `node` reads it as `value`, whose numbers are those of the constant `whole`. axis: of its output
    channels (those of a group of a transposed convolution), or of the rows of an embedding. input_axis: of its input
    channels (those of a group of a convolution), or
    of the columns."""

    node: Node
    value: Value
    whole: Value
    axis: int
    input_axis: int

    @property
    def is_kernel(self) -> bool:
        """Whether a product reads it: rows of an embedding are no kernel of the engine."""
        return self.node.op != "gather"

    @property
    def bytes(self) -> int:
        """As it is stored now, in fp16: what a chip's program and MIL have of it."""
        return 2 * self.whole.type.size


def find_weights(graph: Graph) -> list[Weight]:
    """Weights in order: float constants of at least LEAST_NUMBERS that a conv, conv_transpose, linear or matmul
    multiplies by, and tables of an embedding. A constant that several ops read is listed for the first. What is encoded
    already stays so.
    """
    found: dict[Value, Weight] = {}
    for node in graph.nodes:
        place = _OPERANDS.get(node.op)
        value = None if place is None else node.inputs[place]
        if value is None or value in found or value.type.rank < 2 or value.type.size < LEAST_NUMBERS:
            continue
        if value.dtype not in (FP16, FP32) or not _is_compressible(node, value):
            continue
        whole = _folded(value)
        if whole is not None:
            found[value] = Weight(node, value, whole, *axes_of(node))
    return list(found.values())


def operand_of(node: Node) -> int | None:
    """Which operand of this op is the weight, if it may have one."""
    return _OPERANDS.get(node.op)


def axes_of(node: Node) -> tuple[int, int]:
    """Of the weight of this op: the axis of its output channels, and that of its input channels."""
    weight = node.inputs[_OPERANDS[node.op]]
    assert weight is not None
    if node.op == "conv":
        return 0, 1  # whatever the layout of images is
    if node.op == "conv_transpose":
        return 1, 0
    last = weight.type.rank - 1
    if node.op != "matmul":
        return 0, last
    return (last - 1, last) if node.attrs["transpose_y"] else (last, last - 1)


def _is_compressible(node: Node, value: Value) -> bool:
    if node.op != "gather":
        return True
    # A table that constants are picked from is a constant: another form of the same weight.
    return node.attrs["axis"] == 0 and node.inputs[1] is not None and node.inputs[1].node.op != "const"


def _folded(value: Value) -> Value | None:
    """The constant that a value is; None where it is computed, may change, or is encoded."""
    became: dict[Value, Value] = {}
    for node in topological([value]):
        if node.op == "const":
            continue
        inputs = tuple(None if v is None else became.get(v, v) for v in node.inputs)
        known = node.with_inputs(inputs) if inputs else node
        made = None if is_encoded(known) else fold_node(known)
        if made is None:
            return None
        became.update(zip(node.values, made, strict=True))
    return became.get(value, value)

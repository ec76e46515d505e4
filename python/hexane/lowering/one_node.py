"""Lowers one node by itself, for the checks of single ops."""

from collections.abc import Sequence

from hexane.graph import Node, Value, unique
from hexane.lowering.layers import Layers
from hexane.lowering.weights import WEIGHTS
from hexane.ops import LEAVES
from hexane.ops.encodings import is_encoded
from hexane.ops.records.engine.convolution import CONVOLUTIONS
from hexane.ops.verify import STATE_OPS


def lower_node(node: Node, constant: Sequence[bool]) -> list[Node]:
    """Returns the layers to which a node is lowered by itself, in topological order. constant: for each operand,
    whether it is known when the program is compiled. Raises Error for an op that no layer computes."""
    if node.op in STATE_OPS:
        return []
    operands = tuple([_alone(v, known) for v, known in zip(node.inputs, constant, strict=True)])
    values = Layers().lowered(node.with_inputs(operands), operands)
    parts: dict[Node, None] = {}
    stack = [v.node for v in values]
    ends = {v.node for v in operands if v is not None}
    while stack:
        part = stack.pop()
        if part in parts or part in ends or part.op in LEAVES:
            continue
        parts[part] = None
        stack += [v.node for v in part.inputs if v is not None]
    return [part for part in reversed(parts) if not _of_weights(part)]


def _alone(value: Value | None, constant: bool) -> Value | None:
    """Returns a placeholder for an operand: an input, or a weight without numbers, because the numbers of float weights
    do not affect the lowering. Constant integers and booleans, and encoded constants, are returned unchanged."""
    if value is None or (constant and (value.node.op == "const" or is_encoded(value.node)) and _decides(value)):
        return value
    return unique("param" if constant else "input", "x", value.type)


def _decides(value: Value) -> bool:
    return value.dtype.kind != "float" or is_encoded(value.node)


def _of_weights(node: Node) -> bool:
    """True if the node computes weights from weights, which the compiler does at compile time. A convolution is always
    treated as a layer, because its bias may be computed."""
    if node.op in CONVOLUTIONS:
        return False
    inputs = [v for v in node.inputs if v is not None]
    return bool(inputs) and all(v.node.op in WEIGHTS or _of_weights(v.node) for v in inputs)

"""Values that cross between devices, and the types in which they cross."""

from typing import Literal

from hexane.dtypes import FP16
from hexane.graph import Node, TensorType, Value
from hexane.ops import LEAVES
from hexane.validate import is_constant

Device = Literal["ane", "host"]


def crossing_type(kind: TensorType) -> TensorType:
    """Returns the type of a value that crosses between devices: floats become fp16, the engine's only float dtype."""
    return TensorType(FP16, kind.shape) if kind.dtype.kind == "float" else kind


def is_leaf(node: Node) -> bool:
    """True if no device computes the node: an input, a constant or a node that folds to one, a param, or a state."""
    return node.op in LEAVES or is_constant(node)


def crosses(value: Value) -> bool:
    """True if the value has to be passed on when another segment reads it. Leaves and states lie in memory that all
    segments can read."""
    return value.node.op != "write_state" and not is_leaf(value.node)

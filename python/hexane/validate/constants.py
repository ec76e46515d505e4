"""Nodes that are computed when a program is compiled, because they read only constants."""

from hexane.graph import Node
from hexane.ops.checkpoints import CHECKPOINTED
from hexane.validate.rule import judged

FOLDED = judged("native", "computed when the program is compiled", "constants fold")


def is_constant(node: Node) -> bool:
    """True if a node reads only constants, so that it is computed when the program is compiled. A checkpoint's result
    is constant if its first operand is; the start operands are not read."""
    result = node.inputs[0] if node.op == CHECKPOINTED else None
    return node.is_constant or (result is not None and result.node.is_constant)


def constant_inputs(node: Node) -> tuple[bool, ...]:
    """For each input, whether it is constant. An absent input counts as constant."""
    return tuple([v is None or v.node.is_constant for v in node.inputs])

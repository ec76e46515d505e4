"""Nodes that are computed when a program is compiled, because they read only constants."""

from hexane.graph import Node
from hexane.validate.rule import judged

FOLDED = judged("native", "computed when the program is compiled", "constants fold")


def is_constant(node: Node) -> bool:
    """True if a node reads only constants, so that it is computed when the program is compiled."""
    return node.is_constant


def constant_inputs(node: Node) -> tuple[bool, ...]:
    """For each input, whether it is constant. An absent input counts as constant."""
    return tuple([v is None or v.node.is_constant for v in node.inputs])

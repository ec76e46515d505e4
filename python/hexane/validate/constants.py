"""Nodes that are computed when a program is compiled, because they read constants alone."""

from weakref import WeakKeyDictionary

from hexane.graph import Node
from hexane.validate.rule import judged

FOLDED = judged("native", "computed when the program is compiled", "constants fold")
_constant: "WeakKeyDictionary[Node, bool]" = WeakKeyDictionary()


def is_constant(node: Node) -> bool:
    """Whether a node is computed when the program is compiled: from constants alone."""
    stack = [] if node in _constant else [node]
    while stack:
        last = stack[-1]
        operands = [v.node for v in last.inputs if v is not None]
        if unknown := [n for n in operands if n not in _constant]:
            stack.extend(unknown)
            continue
        _constant[stack.pop()] = last.op == "const" or (bool(operands) and all(_constant[n] for n in operands))
    return _constant[node]


def constant_inputs(node: Node) -> tuple[bool, ...]:
    """For each input, whether it is constant. An absent one is."""
    return tuple([v is None or is_constant(v.node) for v in node.inputs])

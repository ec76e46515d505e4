"""Networks that quantise with scales computed at run time (dynamic quantisation): finds the ops that are not worth a
program of the engine.

The engine has no integer products with computed scales, so the host computes them. The engine could compute a tensor's
range or an activation between two products of the host, but the second product would have to wait for this program.
"""

from collections.abc import Callable, Sequence

from hexane.graph import Node
from hexane.ops import LEAVES
from hexane.targets.floors import op_unit
from hexane.validate.constants import is_constant

REASON = (
    "scales of quantisation are computed at run time, so the host multiplies; a program of the engine without a product"
    " of its own costs more to enter than it saves"
)


def between_products(nodes: Sequence[Node], runs: Callable[[Node], bool]) -> dict[int, str]:
    """For each node that the engine could run, but that has no product of the engine next to it, by id, the reason why
    the host computes it. Empty if all scales of the network are constants. `nodes` are in order, operands first; runs:
    whether the engine computes a node.

    A node is next to a product if it reads the product's result, or gives it an operand, through nodes of the engine
    only.
    """
    if not scales_of_run_time(nodes):
        return {}
    near: set[int] = set()
    for order, neighbours in ((nodes, _operands), (reversed(nodes), _readers(nodes))):
        reached: set[int] = set()
        for node in order:
            if runs(node) and (op_unit(node.op) == "mac" or any(id(n) in reached for n in neighbours(node))):
                reached.add(id(node))
        near |= reached
    return {id(n): REASON for n in nodes if n.op not in LEAVES and runs(n) and id(n) not in near}


def scales_of_run_time(nodes: Sequence[Node]) -> bool:
    """True if a network quantises with a computed scale."""
    scales = (node.inputs[1] for node in nodes if node.op == "quantize")
    return any(s is not None and s.node.op not in LEAVES and not is_constant(s.node) for s in scales)


def _operands(node: Node) -> list[Node]:
    return [v.node for v in node.inputs if v is not None]


def _readers(nodes: Sequence[Node]) -> Callable[[Node], list[Node]]:
    readers: dict[int, list[Node]] = {}
    for node in nodes:
        for operand in _operands(node):
            readers.setdefault(id(operand), []).append(node)
    return lambda node: readers.get(id(node), [])

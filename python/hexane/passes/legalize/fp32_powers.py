"""Finds chains of squares, exponentials and sums that end in a root, a logarithm or a division. Intermediate values of
a chain may overflow or underflow fp16 although the result does not, so they are computed in fp32.

    %x : fp16  ->  square : fp32  ->  reduce_sum : fp32  ->  rsqrt : fp32  ->  mul(%x, ..) : fp16
"""

from collections.abc import Sequence

from hexane.graph import Node, Value

POWERS = ("square", "exp", "reduce_sum", "reduce_sum_square", "reduce_l1_norm", "reduce_l2_norm")
CARRIES = frozenset((
    *POWERS, "reduce_mean", "reduce_max", "add", "sub", "mul", "real_div", "inverse", "maximum", "minimum", "clip",
    "neg", "abs", "sqrt", "rsqrt", "log", "pow", "cast", "reshape", "expand_dims", "squeeze", "transpose",
))  # fmt: skip
RATIOS = ("mul", "real_div")


def fp32_powers(nodes: Sequence[Node]) -> set[int]:
    """Returns the ids of the nodes in chains of powers, including the last node of each. nodes: in topological
    order."""
    powers: set[Value] = set()
    result: set[int] = set()
    for node in nodes:
        if node.op not in CARRIES or node.types[0].dtype.kind != "float":
            continue
        read = [value in powers for value in node.inputs if value is not None]
        begins = _is_power(node)
        if not (begins or any(read)):
            continue
        result.add(id(node))
        if begins or node.op not in RATIOS:
            powers.update(node.values)
    return result


def _is_power(node: Node) -> bool:
    if node.op == "mul":
        return node.inputs[0] == node.inputs[1]
    if node.op == "pow":
        by = node.inputs[1]
        return by is None or by.node.data is None or bool((by.node.data > 1).any())
    return node.op in POWERS

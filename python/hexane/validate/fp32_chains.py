"""Chains of small ops for whose numbers fp16 has too few digits, whatever their size. The host computes them in fp32.

  input positions  ->  cast  ->  mul(.., frequencies)  ->  sin  ->  engine
             host            host               host

Angles: fp16 holds whole numbers up to 2048, so the angle of position 40,000 is off by up to 16 radians. The logarithm
of a running sum of exp(x): the sum's first terms are too small for fp16 next to its last terms.
"""

from collections.abc import Sequence

from hexane.graph import Node, Value
from hexane.ops import LEAVES, OPS
from hexane.ops.match import made_by

MOST_SUMMED = 3  # most products summed to an angle, as for a point's coordinates
ANGLES = "fp16 has too few digits for angles that are computed: a position of 40,000 would be off by 16"
RUNNING = "fp16 does not hold the running sum of exponentials"
ARITHMETIC = ("mul", "real_div", "add", "sub", "neg", "cast", "matmul", "linear", "cumsum", "einsum")
SCALES = ("mul", "real_div", "matmul", "linear", "einsum")


def fp32_chains(nodes: Sequence[Node]) -> dict[int, str]:
    """For each node of such a chain, by id, the reason why the host computes it."""
    result: dict[int, str] = {}
    for node in nodes:
        if node.op in ("sin", "cos"):
            chain = _angle(node.inputs[0])
            if chain is not None:
                result |= {id(n): ANGLES for n in (*chain, node)}
        elif node.op == "log":
            total = made_by(node.inputs[0], "cumsum")
            exp = made_by(total.inputs[0], "exp") if total is not None else None
            if total is not None and exp is not None:
                result |= {id(n): RUNNING for n in (exp, total, node)}
    return result


def _angle(value: Value | None) -> list[Node] | None:
    """The nodes that compute an angle from inputs and constants by products. None if the chain has ops outside
    ARITHMETIC, or if no input is multiplied by frequencies. A single number is treated as a frequency only if it
    multiplies integers, which are positions."""
    chain: dict[Node, None] = {}
    stack = [value]
    scales = reads = whole = False
    while stack:
        current = stack.pop()
        if current is None or current.node in chain:
            continue
        node = current.node
        if node.op in LEAVES:
            reads = reads or node.op == "input"
            whole = whole or (node.op == "input" and current.dtype.kind in ("int", "uint"))
            continue
        if node.op not in ARITHMETIC and not OPS[node.op].moves:
            return None
        if node.op in ("matmul", "linear") and (node.inputs[0] is None or node.inputs[0].shape[-1] > MOST_SUMMED):
            return None
        scales = scales or (node.op in SCALES and any(v is not None and v.type.size > 1 for v in _constants(node)))
        whole = whole or node.op == "cumsum"
        chain[node] = None
        stack += node.inputs
    multiplied = scales or (whole and any(node.op in SCALES for node in chain))
    return list(chain) if multiplied and reads else None


def _constants(node: Node) -> list[Value]:
    return [v for v in node.inputs if v is not None and v.node.op in ("const", "param")]

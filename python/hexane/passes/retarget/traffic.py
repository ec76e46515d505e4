"""Ops that cost a chip far more than they seem to: their rewritten form moves many times the bytes of their own
tensors."""

from collections.abc import Iterable

from hexane.dtypes import FP16
from hexane.graph import Node, TensorType
from hexane.graph.printer import size_text
from hexane.ops import OPS

SEVERAL = 4  # times the bytes of the op's own tensors: worth reporting
LEAST = 1 << 20  # bytes: less traffic takes no noticeable time


def said_of_traffic(node: Node, nodes: Iterable[Node]) -> str:
    """How many bytes the ops written for a node read and write, where these are several times the bytes of the node's
    own tensors; else ""."""
    own, moved = _moved([node]), _moved(n for n in nodes if not OPS[n.op].view)
    if moved < LEAST or moved <= SEVERAL * own:
        return ""
    return f"it moves {size_text(moved)} on this chip, and its own tensors have {size_text(own)}"


def _moved(nodes: Iterable[Node]) -> int:
    return sum(
        _bytes(t)
        for node in nodes
        for t in (*node.types, *[v.type for v in node.inputs if v is not None and v.node.op != "const"])
    )


def _bytes(t: TensorType) -> int:
    """On the engine, where floats are fp16."""
    return t.size * FP16.bits // 8 if t.dtype.kind == "float" else t.bytes

"""Ops that cost a chip far more than they seem to: their rewritten form moves many times the bytes of their own
tensors."""

from collections.abc import Iterable

from hexane.dtypes import FP16
from hexane.graph import Node, TensorType
from hexane.graph.printer import size_text
from hexane.ops import OPS

SEVERAL = 4  # times the bytes of the op's own tensors: worth reporting
LEAST = 1 << 20  # bytes: less traffic takes no noticeable time


def said_of_traffic(node: Node, made: Iterable[Node]) -> str:
    """How many bytes the ops written for a node read and write, where these are several times the bytes of the node's
    own tensors; else ""."""
    own, moved = _moved([node]), _moved(n for n in made if not OPS[n.op].view)
    if moved < LEAST or moved <= SEVERAL * own:
        return ""
    return f"it moves {size_text(moved)} on this chip, and its own tensors have {size_text(own)}"


def instead_of(node: Node) -> str:
    """The advised replacement for an op that moves too much; "" if none is known."""
    x, y = node.inputs[0], node.types[0]
    if x is None or ("resize" not in node.op and "upsample" not in node.op) or x.type.rank != y.rank:
        return ""
    factors = {large // small for large, small in zip(y.shape, x.shape, strict=True) if small and large % small == 0}
    factors.discard(1)
    factor = factors.pop() if len(factors) == 1 else 0
    if factor < 4 or factor & (factor - 1):
        return ""
    return (
        f"resize by 2, {factor.bit_length() - 1} times (close to the same numbers, not equal), or by the nearest pixel"
    )


def _moved(nodes: Iterable[Node]) -> int:
    return sum(
        _bytes(t)
        for node in nodes
        for t in (*node.types, *[v.type for v in node.inputs if v is not None and v.node.op != "const"])
    )


def _bytes(t: TensorType) -> int:
    """On the engine, where floats are fp16."""
    return t.size * FP16.bits // 8 if t.dtype.kind == "float" else t.bytes

"""Reports ops whose rewritten form moves many times the bytes of their own tensors, so that they cost a chip far more
than expected."""

from collections.abc import Iterable

from hexane.dtypes import FP16
from hexane.graph import Node, TensorType
from hexane.graph.printer import size_text
from hexane.ops import OPS

SEVERAL = 4  # the least reported ratio of moved bytes to the op's own bytes.
LEAST = 1 << 20  # Bytes: less traffic takes no noticeable time.


def said_of_traffic(node: Node, nodes: Iterable[Node]) -> str:
    """Returns a text with the bytes that a node's replacement reads and writes, if it moves several times the bytes of
    the node's own tensors, else ""."""
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
    """Returns a tensor's size on the engine, where floats are fp16."""
    return t.size * FP16.bits // 8 if t.dtype.kind == "float" else t.bytes

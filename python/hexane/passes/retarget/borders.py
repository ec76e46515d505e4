"""Ops that only cut, join, repeat or view tensors: the host runs them if a tensor is too large for the chip."""

from hexane.graph import Node
from hexane.targets import Chip
from hexane.validate.extents import fits
from hexane.validate.node import judge

BORDER = "the host cuts, joins and views what the engine does not take"  # Reason why the host runs a border.
FIT = "use tensors that the chip takes whole"  # Advice for the user.
BORDERS = frozenset(("slice_by_index", "slice_by_size", "split", "crop", "concat", "stack", "reshape"))
BORDERS |= {"expand_dims", "squeeze", "flatten", "flatten2d", "identity", "broadcast_to"}


def is_border(node: Node, chip: Chip) -> bool:
    """True if the node only cuts, joins, repeats or views tensors and one of them is too large for the chip, so that
    the host runs it."""
    if node.op not in BORDERS or judge(node, chip).verdict == "native":
        return False
    tensors = (*[v.type for v in node.inputs if v is not None], *node.types)
    return not all(fits(t, chip) for t in tensors)

"""Arrays rounded to fp16, and what keeps its digits there."""

import numpy as np

from hexane import _core
from hexane.dtypes import BF16
from hexane.graph import Array, Graph, Node
from hexane.mil.forms.products import PRODUCTS
from hexane.system.large_pages import LargePages

_NORMAL = 0x0400  # the bits of the smallest number of fp16 with all digits


def half(array: Array, room: LargePages | None = None) -> Array:
    """Rounded to fp16. Finite numbers stay finite: a mask of -3.4e38 times 0 is 0, not NaN. A single number does not
    vanish: an epsilon of 1e-12 keeps 0 from being divided by 0. room: where the result may lie."""
    if array.dtype == BF16.numpy:
        array = array.astype(np.float32)
    limits = np.finfo(np.float16)
    halves = np.empty(array.shape, np.float16) if room is None else room.array(array.shape, np.float16)
    if array.dtype == np.float32:
        finite = _core.convert(np.ascontiguousarray(array), halves)
        if finite and array.size > 1:  # the usual case, in one pass: no number is too large
            return halves
    else:
        with np.errstate(over="ignore"):
            halves[...] = array
    infinite = (halves.view(np.uint16) & 0x7FFF) == 0x7C00  # by their bits: NumPy compares halves one by one
    if infinite.any():
        halves = np.where(infinite & np.isfinite(array), np.copysign(limits.max, halves), halves)
    if array.size == 1 and array.any() and not halves.any():
        return np.where(array == 0, halves, np.copysign(limits.smallest_subnormal, array)).astype(np.float16)
    return halves


def keeps_scale(scale: Array) -> bool:
    """True if each number is normal in fp16, or 0, or exact in fp16. Other scales would lose digits that a weight
    keeps."""
    limits = np.finfo(np.float16)
    size = np.abs(scale.astype(np.float64))
    with np.errstate(over="ignore"):
        same = scale.astype(np.float16).astype(np.float64) == scale
    return bool((same | (size >= float(limits.tiny)) & (size <= float(limits.max))).all())


def weights_of_products(graph: Graph) -> set[Node]:
    """The weight operands of products; a chip's programs have their scales in fp16."""
    return {v.node for node in graph.nodes if node.op in PRODUCTS for v in node.inputs[1:2] if v is not None}

"""Rounds arrays to fp16, and finds scales and weights that keep their digits in fp16."""

import numpy as np

from hexane import _core
from hexane.dtypes import BF16
from hexane.graph import Array, Graph, Node
from hexane.mil.forms.products import PRODUCTS
from hexane.system.large_pages import LargePages

_NORMAL = 0x0400  # the bits of the smallest normal number of fp16


def half(array: Array, room: LargePages | None = None) -> Array:
    """Returns the array rounded to fp16. Finite numbers stay finite, so that a mask of -3.4e38 times 0 is 0, not NaN. A
    single nonzero number stays nonzero, so that an epsilon of 1e-12 still prevents a division by 0. room: memory for
    the result."""
    if array.dtype == BF16.numpy:
        array = array.astype(np.float32)
    limits = np.finfo(np.float16)
    halves = np.empty(array.shape, np.float16) if room is None else room.array(array.shape, np.float16)
    if array.dtype == np.float32:
        finite = _core.convert(np.ascontiguousarray(array), halves)
        if finite and array.size > 1:  # the usual case: no number overflows
            return halves
    else:
        with np.errstate(over="ignore"):
            halves[...] = array
    infinite = (halves.view(np.uint16) & 0x7FFF) == 0x7C00  # compares bits, because NumPy compares fp16 numbers slowly
    if infinite.any():
        halves = np.where(infinite & np.isfinite(array), np.copysign(limits.max, halves), halves)
    if array.size == 1 and array.any() and not halves.any():
        return np.where(array == 0, halves, np.copysign(limits.smallest_subnormal, array)).astype(np.float16)
    return halves


def keeps_scale(scale: Array) -> bool:
    """True if each scale is 0, exact or normal in fp16. A subnormal, inexact scale would lose more digits than the
    weight itself."""
    limits = np.finfo(np.float16)
    size = np.abs(scale.astype(np.float64))
    with np.errstate(over="ignore"):
        same = scale.astype(np.float16).astype(np.float64) == scale
    return bool((same | (size >= float(limits.tiny)) & (size <= float(limits.max))).all())


def weights_of_products(graph: Graph) -> set[Node]:
    """Returns the nodes that are weights of products. In a chip's programs, the scales of encoded weights are fp16."""
    return {v.node for node in graph.nodes if node.op in PRODUCTS for v in node.inputs[1:2] if v is not None}

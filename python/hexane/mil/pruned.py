"""Weights of which half or more are 0: MIL stores a bit for each, and the numbers that are not 0."""

from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from hexane.dtypes import FP16
from hexane.graph import Node, Value

LEAST = 1024  # elements of a weight that is stored so

_counts: "WeakKeyDictionary[Node, int]" = WeakKeyDictionary()


def kept(data: NDArray[np.float16]) -> NDArray[np.bool_]:
    """Where the numbers are that are not 0; -0.0 is a number."""
    found: NDArray[np.bool_] = data.view(np.uint16) != 0
    return found


def numbers_kept(weight: Value) -> int | None:
    """How many numbers are not 0. None where the weight is stored whole: it is no constant in fp16, is small, has more
    numbers than zeros, or zeros alone."""
    node = weight.node
    if node.op != "const" or node.data is None or weight.dtype is not FP16 or node.data.size < LEAST:
        return None
    if node not in _counts:
        _counts[node] = int(np.count_nonzero(kept(node.data)))
    count = _counts[node]
    return count if count > 0 and 2 * count <= node.data.size else None

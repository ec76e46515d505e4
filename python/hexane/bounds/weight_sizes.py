"""Magnitudes of weights: the largest sum and the largest L2 norm of one output's weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from hexane.graph import Array, Node, Value

_read: ContextVar[dict[tuple[Node, str], tuple[float, float]] | None] = ContextVar("sizes of weights", default=None)


@contextmanager
def remembered() -> Iterator[None]:
    """Caches the magnitudes of weights within the block, so that each weight is read once."""
    before = _read.set({})
    try:
        yield
    finally:
        _read.reset(before)


def weight_sizes(node: Node, data: Array, weight: Value) -> tuple[float, float]:
    """Returns the largest sum of magnitudes, and the largest L2 norm, of the weights of one output. For a convolution
    the L2 norms of the taps are added."""
    known, key = _read.get(), (weight.node, _way(node))
    if known is not None and key in known:
        return known[key]
    w = np.asarray(data, np.float32)
    if node.op == "conv":
        w = np.moveaxis(w, 1, -1)
    elif _way(node) == "columns":
        w = w.T
    rows = w.reshape(w.shape[0], -1)
    sums = float(np.abs(rows).sum(-1, dtype=np.float64).max(initial=0))
    squares = np.einsum("...i,...i->...", w, w, dtype=np.float64)
    lengths = float(np.sqrt(squares).reshape(w.shape[0], -1).sum(-1).max(initial=0))
    if known is not None:
        known[key] = sums, lengths
    return sums, lengths


def _way(node: Node) -> str:
    """Returns whether the weights of one output are a row or a column of the matrix."""
    return "columns" if node.op == "matmul" and not node.attrs["transpose_y"] else "rows"

"""Rewrites indices that count from the end, because Core ML leaves their result undefined from iOS 17 on."""

from typing import Any

import numpy as np

from hexane.dtypes import INT32
from hexane.emit.coreml.control import in_bodies
from hexane.graph import Graph, Node, Value
from hexane.ops.compose import Builder, cast
from hexane.ops.encodings import is_encoded
from hexane.ops.rewriter import Rewriter

SINCE = 17  # The first iOS version that leaves negative indices undefined.
_ALONG_AN_AXIS = ("gather", "gather_along_axis", "scatter_along_axis")
_OF_PLACES = ("gather_nd", "scatter_nd")
_FINDS = ("argsort", "topk", "reduce_argmax", "reduce_argmin")  # Ops whose indices are never negative.


def with_positive_indices(graph: Graph) -> Graph:
    """gather(%x : [5], %i)  ->  gather(%x, select(less(%i, 0), add(%i, 5), %i))

    Constants are converted to non-negative indices. Results of sorts and searches are unchanged, because they are never
    negative.
    """

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op not in (*_ALONG_AN_AXIS, *_OF_PLACES) or is_encoded(node):
            return None
        x, indices = inputs[:2]
        assert x is not None
        assert indices is not None
        if indices.dtype.kind == "uint" or indices.node.op in _FINDS:
            return None
        positive = _from_the_start(Rewriter(*node.sources, folds=True), indices, _extent(node, x, indices))
        return node.with_inputs((x, positive, *inputs[2:])).values if positive is not indices else None

    return in_bodies(graph.rewrite(change), with_positive_indices)


def _extent(node: Node, x: Value, indices: Value) -> Any:
    """Returns the number of elements on the axis, or on each axis that an index names."""
    if node.op in _ALONG_AN_AXIS:
        return np.int32(x.shape[int(node.attrs["axis"])])
    first = int(node.attrs["batch_dims"]) if node.op == "gather_nd" else 0
    return np.array(x.shape[first : first + indices.shape[-1]], np.int32)


def _from_the_start(b: Builder, indices: Value, extent: Any) -> Value:
    if indices.node.data is not None and not (indices.node.data < 0).any():
        return indices
    given = cast(b, indices, INT32)
    return b.select(b.less(given, np.zeros((), np.int32)), b.add(given, np.asarray(extent)), given)

"""Recognises root mean square normalisation written as separate ops."""

from hexane.graph import Graph
from hexane.ops.match import rewrite
from hexane.passes.fuse.fuse_layer_norm import applied, normalised, over_root, squared
from hexane.targets import Target


def fuse_rms_norm(graph: Graph, target: Target) -> Graph:
    """x * rsqrt(mean(x^2) + epsilon) * %gamma  ->  rms_norm(x, %gamma)

    The mean is over the last axes. The usual spellings of the square and of the division are recognised. %gamma is
    absorbed if it has one element per normalised element and if the value that it is applied to has no other reader.
    """
    if graph.ops.isdisjoint(("reduce_mean", "rms_norm")):
        return graph
    return rewrite(graph, _NORM, lambda m: normalised(m, "rms_norm"))


_NORM = over_root("x", squared("x")) | applied("mul")

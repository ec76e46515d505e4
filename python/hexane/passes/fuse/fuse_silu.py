"""Recognises SiLU written with sigmoid."""

from hexane.graph import Graph
from hexane.ops.match import op, rewrite
from hexane.targets import Target


def fuse_silu(graph: Graph, target: Target) -> Graph:
    """x * sigmoid(x)  ->  silu(x)"""
    return rewrite(graph, _SILU, lambda m: m.make("silu", [m["x"]]))


_SILU = op("mul", "x", op("sigmoid", "x"))

"""Replaces clips by relu or relu6 if their limits match."""

import math

from hexane.graph import Graph, Value
from hexane.ops.match import Found, op, rewrite
from hexane.targets import Target

_NAMED = {(0.0, 6.0): "relu6", (0.0, math.inf): "relu"}


def fuse_clip(graph: Graph, target: Target) -> Graph:
    """clip(x) {alpha=0.0, beta=6.0}  ->  relu6(x)

    A clip at 0 without an upper limit becomes relu. Only clips of floats are changed.
    """
    return rewrite(graph, op("clip", "x"), _named)


def _named(m: Found) -> tuple[Value, ...] | None:
    # -0.0 is not 0.0: a lower limit of -0.0 keeps the sign that relu drops.
    bounds = (float(m.node.attrs["alpha"]), float(m.node.attrs["beta"]))
    name = _NAMED.get(bounds) if math.copysign(1, bounds[0]) > 0 and m["x"].dtype.kind == "float" else None
    return None if name is None else m.make(name, [m["x"]])

"""Gives clips that have a name their name."""

import math

from hexane.graph import Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.targets import Target

_NAMED = {(0.0, 6.0): "relu6", (0.0, math.inf): "relu"}


def fuse_clip(graph: Graph, target: Target) -> Graph:
    """clip(x) {alpha=0.0, beta=6.0}  ->  relu6(x)

    And relu where there is no upper limit. Floats only.
    """

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op != "clip" or node.types[0].dtype.kind != "float":
            return None
        # -0.0 is not 0.0: a lower limit of -0.0 keeps the sign that relu drops.
        bounds = (float(node.attrs["alpha"]), float(node.attrs["beta"]))
        name = _NAMED.get(bounds) if math.copysign(1, bounds[0]) > 0 else None
        return None if name is None else apply(OPS[name], inputs, {}, node.sources)

    return graph.rewrite(change)

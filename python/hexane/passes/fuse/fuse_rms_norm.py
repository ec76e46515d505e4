"""Recognises root mean square normalisation written out."""

from hexane.graph import Graph, Node, Value
from hexane.match import use_counts
from hexane.ops import OPS, apply
from hexane.passes.fuse.fuse_layer_norm import absorb, over_root, squared
from hexane.targets import Target


def fuse_rms_norm(graph: Graph, target: Target) -> Graph:
    """x * rsqrt(mean(x^2) + epsilon) * %gamma  ->  rms_norm(x, %gamma)

    Over the last axes, in the usual spellings of the square and of the division. %gamma joins if it has one element for each
    that is normalised and nothing else reads what it is applied to.
    """
    counts = use_counts(graph)

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        found = over_root(node, inputs)
        if found is not None and squared(found[1].inputs[0]) == found[0] and found[0].type == node.types[0]:
            attrs = {"axes": found[1].attrs["axes"], "epsilon": found[2]}
            return apply(OPS["rms_norm"], [found[0]], attrs, node.sources)
        return absorb(node, inputs, "rms_norm", "mul", 1, counts)

    return graph.rewrite(change)

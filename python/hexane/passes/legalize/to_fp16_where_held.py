"""Stores a network for the host in fp16, except for ops that overflow fp16 or lose digits in it."""

from hexane.graph import Graph
from hexane.passes.legalize.fp32_powers import fp32_powers
from hexane.passes.legalize.to_fp16 import to_fp16
from hexane.targets import Target
from hexane.validate.small_constants import loses_digits
from hexane.validate.wide_values import wide_readers

SCALES = ("mul", "real_div", "batch_norm")  # ops whose constants are factors; scales of other ops stay fp32 anyway


def to_fp16_where_held(graph: Graph, target: Target) -> Graph:
    """mul(mul(%x, 1e6), 1e-6)  ->  cast(mul(mul(cast(%x) : fp32, 1e6), 1e-6)) : fp16

    Like to_fp16. Ops stay in the model's dtype if fp16 cannot hold their constants or their results. The readers of
    results that fp16 cannot hold keep the model's dtype too. So do chains of squares, exponentials and sums, up to the
    root, logarithm or division that ends the chain.
    """
    wide = wide_readers(graph.nodes, lambda node: True, graph.use_counts()).keys()
    lossy = {id(node) for node in graph.nodes if node.op in SCALES and loses_digits(node)}
    return to_fp16(graph, target, wide | lossy | fp32_powers(graph.nodes))

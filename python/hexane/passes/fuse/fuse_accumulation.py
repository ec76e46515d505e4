"""Adds matrix products directly to an accumulated gradient, so that the products are never stored."""

from hexane.dtypes import FP32
from hexane.graph import Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.ops.match import joined_sources, made_by
from hexane.ops.records.accumulating_product import ACCUMULATING_MATMUL
from hexane.targets import Target


def fuse_accumulation(graph: Graph, target: Target) -> Graph:
    """accumulate_step(%s, cpu.matmul(%x, %y), %first)  ->  cpu.accumulating_matmul(%x, %y, %s, %first)

    Requires that the product has no other reader, no bias and no epilogue. No bit of the result changes.
    """
    counts = graph.use_counts()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        s, gradient, first = inputs
        product, old = made_by(gradient, "cpu.matmul"), node.inputs[1]
        if product is None or old is None or counts[old] != 1 or node.types[0].dtype is not FP32:
            return None
        attrs = dict(product.attrs)
        if attrs.pop("epilogue") or any(v is not None for v in product.inputs[2:]):
            return None
        sources = joined_sources(product, node)
        return apply(OPS[ACCUMULATING_MATMUL], [*product.inputs[:2], s, first], attrs, sources)

    return graph.rewrite(change, ("accumulate_step",))

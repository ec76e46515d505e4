"""Moves the addition of a per-column or per-channel constant into the op before it."""

from hexane.graph import Graph, Node, Value
from hexane.match import channel_axis, joined_sources, only_along, use_counts
from hexane.ops import OPS, apply
from hexane.ops.records.quant import BYTES
from hexane.targets import Target


def fuse_bias(graph: Graph, target: Target) -> Graph:
    """matmul(%x, %w) + %b  ->  matmul(%x, %w, %b)

    Where %b has one element for each output column (matmul) or channel (convolutions), nothing else
    reads the product, and it has no bias yet. Not where the product is rounded to 8 bits, which happens before the addition.
    """
    counts = use_counts(graph)

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op != "add" or node.types[0].dtype in BYTES:
            return None
        for i in (0, 1):
            product, bias = inputs[i], inputs[1 - i]
            maker = product.node if product is not None else None
            if maker is None or bias is None or maker.op not in OPS or OPS[maker.op].product is None:
                continue
            place = OPS[maker.op].inputs.index("bias?")
            if maker.inputs[place] is not None:
                continue
            old = node.inputs[i]
            if old is None or counts[old] != 1:
                continue
            if maker.types[0] != node.types[0] or not only_along(bias, channel_axis(maker), maker.types[0].shape):
                continue
            flat = apply(OPS["reshape"], [bias], {"shape": (-1,)}, bias.node.sources)[0]
            sources = joined_sources(maker, node)
            operands = [flat if k == place else v for k, v in enumerate(maker.inputs)]
            return apply(OPS[maker.op], operands, maker.attrs, sources)
        return None

    return graph.rewrite(change)

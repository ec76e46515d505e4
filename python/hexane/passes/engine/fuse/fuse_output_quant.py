"""Moves the quantisation of a layer's result into the layer's slots."""

from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.ops.slots import slot
from hexane.passes.engine.chain import LISTING, Readers, fused, put, takes
from hexane.targets import Target

STAGE = "fuse_output_quant"


def fuse_output_quant(graph: Graph, target: Target) -> Graph:
    """anec.quant(anec.convolution(%x, %w), %s)  ->  anec.convolution(%x, %w, none, %s) {epilogue=(quant(dtype=int8, scale=3, ..))}

    Quantisation is the last of the seven slots (listing 22.3). Requires that nothing else reads the layer. The result
    is still rounded to fp16 before it is quantised.
    """  # noqa: E501
    if "anec.quant" not in graph.ops:
        return graph
    readers, decisions = Readers(graph), list[Decision]()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        readers.see(node, inputs)
        if node.op != "anec.quant" or inputs[0] is None or not readers.alone(inputs[0]):
            return None
        x, scale, zero = inputs
        assert x is not None
        assert scale is not None
        if not takes(x.node, "quant"):
            return None
        operands = [scale] if zero is None else [scale, zero]
        places = {"scale": -2, "zero": -1 if zero is None else -3}
        decisions.append(fused(STAGE, node, x.node, "quant", LISTING))
        last = slot("quant", dtype=str(node.attrs["dtype"]), **places, axis=node.attrs["axis"])
        return put(x.node, last, operands, node)

    return graph.rewrite(change).decided(*decisions)

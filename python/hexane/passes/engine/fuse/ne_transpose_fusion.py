"""Puts transposes, and the quantisation of results, into the slots of the layers they follow."""

from hexane.decisions import Decision
from hexane.graph import Graph, Node, Value
from hexane.ops.slots import slot
from hexane.passes.engine.chain import LISTING, Readers, fused, put, slots_of, takes
from hexane.passes.engine.legalize.transposes import is_valid_ne_transpose_configuration
from hexane.targets import Chip

STAGE = "ne_transpose_fusion"


def ne_transpose_fusion(graph: Graph, chip: Chip) -> Graph:
    """anec.transpose(anec.convolution(%x, %w)) {perm=(0, 2, 3, 1)}  ->  anec.convolution(%x, %w) {epilogue=(transpose(perm=(0, 2, 3, 1)))}

    Where nothing else reads the layer, the slot is free and the chip transposes such an image at once
    (`is_valid_ne_transpose_configuration`).
    """
    readers, decisions = Readers(graph), list[Decision]()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        readers.see(node, inputs)
        if node.op != "anec.transpose" or inputs[0] is None or not readers.alone(inputs[0]):
            return None
        producer = inputs[0].node
        if not takes(producer, "transpose") or not is_valid_ne_transpose_configuration(
            inputs[0].type, node.attrs["perm"], chip
        ):
            return None
        decisions.append(fused(STAGE, node, producer, "transpose"))
        return put(producer, slot("transpose", perm=node.attrs["perm"]), (), node)

    return graph.rewrite(change).decided(*decisions)


def fuse_output_quant(graph: Graph, chip: Chip) -> Graph:
    """anec.quant(anec.convolution(%x, %w), %s)  ->  anec.convolution(%x, %w, none, %s) {epilogue=(quant(dtype=int8, scale=3, ..))}

    The last of the seven slots (listing 22.3), where nothing else reads the layer. Its numbers are rounded to fp16 first, as before.
    """
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
        decisions.append(fused("fuse_output_quant", node, x.node, "quant", LISTING))
        last = slot("quant", dtype=str(node.attrs["dtype"]), **places, axis=node.attrs["axis"])
        assert not slots_of(x.node) or slots_of(x.node)[-1].op != "quant"
        return put(x.node, last, operands, node)

    return graph.rewrite(change).decided(*decisions)

"""Moves transposes into the slots of the layers that produce their operands."""

from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.ops import OPS, apply
from hexane.ops.match import joined_sources
from hexane.ops.records.engine.mac import SDPA_RESULT
from hexane.ops.slots import slot
from hexane.passes.engine.chain import Readers, fused, put, takes
from hexane.passes.engine.legalize.split_transposes import is_valid_ne_transpose_configuration
from hexane.passes.engine.moves import swaps_rows
from hexane.targets import Chip

STAGE = "ne_transpose_fusion"


def ne_transpose_fusion(graph: Graph, chip: Chip) -> Graph:
    """anec.transpose(anec.convolution(%x, %w)) {perm=(0, 2, 3, 1)}  ->  anec.convolution(%x, %w) {epilogue=(transpose(perm=(0, 2, 3, 1)))}

    Requires that nothing else reads the layer, that its slot is free, and that the chip can transpose an image of this
    size in a slot (`is_valid_ne_transpose_configuration`). An attention absorbs an exchange of rows and columns as an
    attribute.
    """  # noqa: E501
    if "anec.transpose" not in graph.ops:
        return graph
    readers, decisions = Readers(graph), list[Decision]()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        readers.see(node, inputs)
        if node.op != "anec.transpose" or inputs[0] is None or not readers.alone(inputs[0]):
            return None
        producer = inputs[0].node
        if producer.op == "anec.sdpa" and swaps_rows(("transpose", node.attrs["perm"])):
            decisions.append(fused(STAGE, node, producer, "transpose"))
            attrs = {**producer.attrs, SDPA_RESULT: not producer.attrs[SDPA_RESULT]}
            return apply(OPS[producer.op], producer.inputs, attrs, joined_sources(producer, node))
        if not takes(producer, "transpose") or not is_valid_ne_transpose_configuration(
            inputs[0].type, node.attrs["perm"], chip
        ):
            return None
        decisions.append(fused(STAGE, node, producer, "transpose"))
        return put(producer, slot("transpose", perm=node.attrs["perm"]), (), node)

    return graph.rewrite(change).decided(*decisions)

"""Replaces the dequantisations of a concatenation's operands by one dequantisation of its result."""

from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.ops import OPS, apply
from hexane.passes.engine.chain import TABLE, Readers
from hexane.targets import Target

STAGE = "deduplicate_standalone_dequant_gocs_across_concat"


def deduplicate_standalone_dequant_gocs_across_concat(graph: Graph, target: Target) -> Graph:
    """anec.concat(anec.dequant(%a, %s), anec.dequant(%b, %s))  ->  anec.dequant(anec.concat(%a, %b), %s)

    Requires that all operands share one scale and zero point per tensor, and that they have no other reader.
    """
    if not graph.ops >= {"anec.concat", "anec.dequant"}:
        return graph
    readers, decisions = Readers(graph), list[Decision]()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        readers.see(node, inputs)
        if node.op != "anec.concat":
            return None
        makers = [v.node for v in inputs if v is not None]
        first = makers[0]
        if first.op != "anec.dequant" or first.inputs[1] is None or first.inputs[1].shape:
            return None
        if any(m.op != first.op or m.inputs[1:] != first.inputs[1:] or m.attrs != first.attrs for m in makers):
            return None
        if len({m.inputs[0].dtype for m in makers if m.inputs[0] is not None}) > 1 or len(makers) < 2:
            return None
        if not all(readers.alone(v) for v in inputs if v is not None):
            return None
        joined = apply(OPS[node.op], [m.inputs[0] for m in makers], node.attrs, node.sources)
        reason = f"{len(makers)} tensors of one scale are dequantised after their concatenation"
        decisions.append(Decision(STAGE, node.where, "fused", reason, TABLE))
        return apply(OPS[first.op], [joined[0], *first.inputs[1:]], first.attrs, first.sources)

    return graph.rewrite(change).decided(*decisions)

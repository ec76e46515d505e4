"""Records for each layer that could have been fused into another why it was not."""

from hexane.graph import Graph, Node
from hexane.graph.decisions import Decision
from hexane.lowering.weights import is_weight
from hexane.ops import OPS
from hexane.passes.engine.chain import TABLE, slots_of
from hexane.targets import Target

STAGE = "record_barriers"
GUARD = 'the guard "Must have 2 inputs when convert EW to GOC" wants one computed operand and one constant'
_FUSABLE = ("anec.neuron", "anec.gain_offset_control", "anec.transpose", "anec.quant")
_AFFINE = ("anec.add", "anec.sub", "anec.mul", "anec.div")


def record_barriers(graph: Graph, target: Target) -> Graph:
    """Returns the graph unchanged, with a decision for each layer that was not fused.

    Elementwise layers of two computed operands, concatenations and attention are the barriers of table 22.3. An
    activation, a gain and offset, a transpose or a quantisation is not fused if its operand has other readers or comes
    from a layer without a free slot.
    """
    counts = graph.use_counts()
    barriers = []
    for node in graph.nodes:
        reason = ""
        if node.op == "anec.sdpa":
            reason = "attention is a hard cut between programs"
        elif node.op == "anec.concat":
            reason = "a concatenation ends fusion, unless each layer that it joins can absorb what follows"
        elif node.op in _AFFINE and node.types[0].dtype.kind == "float":
            live = [v for v in node.inputs[:2] if not is_weight(v)]
            reason = (
                f"both operands are computed: {GUARD}"
                if len(live) == 2
                else "its constant is neither one number nor one for each channel"
            )
        elif node.op in _FUSABLE and node.inputs[0] is not None:
            reason = _stays(node.inputs[0].node, node, counts[node.inputs[0]])
        if reason:
            barriers.append(Decision(STAGE, node.where, "barrier", reason, TABLE))
    return graph.decided(*barriers)


def _stays(producer: Node, node: Node, readers: int) -> str:
    op = OPS.get(producer.op)
    if op is None or op.level != "engine" or not op.takes_slots:
        return f"{producer.op.rpartition('.')[2]} in front of it has no slots"
    if readers > 1:
        return f"{producer.where} has {readers} readers, a slot would change what the others read"
    if node.op == "anec.transpose":
        return "the chip does not transpose such an image in a slot"
    if slots_of(producer):
        return f"the slot {slots_of(producer)[-1].op} of {producer.where} is filled, and slots have one order"
    return f"{producer.where} has no slot for it"

"""Moves activations into the slots of the layers that produce their operands."""

from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.ops.slots import activation
from hexane.passes.engine.chain import ALIKE, Readers, fused, put, put_affine, slots_of, takes
from hexane.targets import Target

STAGE = "simple_activation"


def simple_activation(graph: Graph, target: Target) -> Graph:
    """anec.neuron(anec.convolution(%x, %w)) {mode=relu}  ->  anec.convolution(%x, %w) {epilogue=(post_activation(mode=relu, ..))}

    Requires that nothing else reads the layer and that no later slot is filled. The activation fills the slot before
    the gain and offset if the activation's only reader is a gain and offset or another activation. Any other activation
    fills the slot after the gain and offset. A gain and offset that follow the activation then fill their own slot.
    """  # noqa: E501
    if graph.ops.isdisjoint(ALIKE):
        return graph
    readers, decisions = Readers(graph), list[Decision]()
    users = graph.users()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        readers.see(node, inputs)
        x = inputs[0] if inputs else None
        if x is None or not readers.alone(x) or node.op not in ALIKE:
            return None
        if node.op == "anec.gain_offset_control":
            result = put_affine(node, inputs, x.node, node.attrs["axis"])
            if result is not None:
                decisions.append(fused(STAGE, node, x.node, "gain_offset"))
            return None if result is None else (result,)
        then = users.get(node.values[0], [])
        kind = "pre_activation" if len(then) == 1 and then[0].op in ALIKE else "post_activation"
        kind = kind if takes(x.node, kind) else "post_activation"
        if slots_of(node) or not takes(x.node, kind):
            return None
        a = node.attrs
        decisions.append(fused(STAGE, node, x.node, kind))
        return put(x.node, activation(kind, a["mode"], a["alpha"], a["beta"]), (), node)

    return graph.rewrite(change).decided(*decisions)

"""Clamps masks that are inputs of the network."""

from hexane.graph import Graph, Node, Value, make_node
from hexane.lowering.masks import FLOOR, HIDDEN, mask_operands
from hexane.ops import OPS, apply
from hexane.ops.match import made_by
from hexane.ops.spec import moved_inputs


def clamp_mask_inputs(graph: Graph) -> tuple[Graph, list[Node]]:
    """softmax(%scores + mask)  ->  softmax(clip(%scores + clip(mask, -49152), -32768)), and the sums that changed

    Applies to float inputs that are added to computed scores before a softmax. Callers pass -1e9 or the smallest number
    of fp32, which is -infinity in fp16, so a row whose keys are all hidden would be NaN. After the clamp all hidden
    scores have the same value, as in fp32. The list has the nodes that add a clamped mask.
    """
    masks = mask_operands([node for node in graph.nodes if node.op not in ("exp", "exp2")])
    clamped: dict[Value, Value] = {}
    sums: list[Node] = []

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op not in ("add", "scaled_dot_product_attention") or id(node) not in masks:
            return None
        places = [i for i in masks[id(node)] if (v := node.inputs[i]) is not None and from_port(v) is not None]
        computed = [v for i, v in enumerate(node.inputs) if i not in places and v is not None]
        if not places or (node.op == "add" and all(v.node.op == "const" for v in computed)):
            return None
        operands = list(inputs)
        for i in places:
            value = inputs[i]
            assert value is not None
            if value not in clamped:
                clamped[value] = apply(OPS["clip"], [value], {"alpha": -HIDDEN, "beta": HIDDEN}, node.sources)[0]
            operands[i] = clamped[value]
        sums.append(node)
        values = make_node(node.op, tuple(operands), node.attrs, node.types, node.sources).values
        return values if node.op != "add" else apply(OPS["clip"], values, {"alpha": FLOOR}, node.sources)

    return graph.rewrite(change), sums


def from_port(value: Value) -> Node | None:
    """Returns the float input whose elements the value has, after moves and casts, or None."""
    while value.node.op != "input":
        moved = moved_inputs(OPS[value.node.op], len(value.node.inputs)) if value.node.op in OPS else ()
        inner = value.node.inputs[next(iter(moved), 0)] if value.node.inputs and len(moved) == 1 else None
        if (cast := made_by(value, "cast")) is not None:
            inner = cast.inputs[0]
        if inner is None:
            return None
        value = inner
    return value.node if value.dtype.kind == "float" else None

"""Clamps masks to numbers that fp16 holds."""

from collections.abc import Mapping
from math import copysign, isfinite
from typing import Any

from hexane.bounds.interval import LARGEST
from hexane.graph import Graph, Node, Value, constant, make_node
from hexane.lowering.masks import FLOOR, HIDDEN, hiding, levels, mask_operands
from hexane.ops import OPS, apply


def clamp_masks(graph: Graph, target: object = None) -> Graph:
    """softmax(select(%m, -3.4e38, %scores))  ->  softmax(select(%m, -49152, %scores))

    Changes constants that hide keys from a softmax, and the attribute `hidden` of attention. In fp16, -3.4e38 becomes
    -infinity, and so does the sum of -65504 and a score. A row whose keys are all hidden would be NaN. The weights of
    hidden keys are 0 before and after. A sum of scores and one mask is clipped, so that all hidden scores are equal, as
    in fp32. Infinite masks are kept: a row of infinite masks is NaN on the host too.
    """
    masks = mask_operands(graph.nodes)
    known = levels(graph.nodes, masks)
    by_value: dict[Value, Value] = {}

    def clamped(value: Value | None, old: Value | None) -> Value | None:
        if value is None or old is None or old.node.op != "const":
            return value
        if old not in by_value:
            assert old.node.data is not None
            data = hiding(old.node.data)
            by_value[old] = old if data is old.node.data else constant(data, old.node.sources)
        return by_value[old]

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        places = masks.get(id(node), ())
        operands = tuple(
            clamped(v, old) if i in places else v for i, (v, old) in enumerate(zip(inputs, node.inputs, strict=True))
        )
        attrs = _attributes(node)
        scores = node.inputs[0]
        if node.op in ("softmax", "log_softmax") and scores is not None and known.get(scores) == (1, True):
            operands = apply(OPS["clip"], operands, {"alpha": FLOOR}, node.sources)
        if operands == inputs and attrs is node.attrs:
            return None
        return make_node(node.op, operands, attrs, node.types, node.sources).values

    return graph.rewrite(change) if masks else graph


def _attributes(node: Node) -> Mapping[str, Any]:
    if node.op != "scaled_dot_product_attention":
        return node.attrs
    hidden = node.attrs["hidden"]
    if not isfinite(hidden) or abs(hidden) < LARGEST:
        return node.attrs
    return {**node.attrs, "hidden": copysign(HIDDEN, hidden)}

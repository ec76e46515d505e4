"""Merges pad ops into the padding of convolutions and pools."""

import math
from typing import Any

from hexane.errors import Error
from hexane.graph import Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.ops.match import made_by
from hexane.targets import Target


def fold_pad(graph: Graph, target: Target) -> Graph:
    """conv(pad(%x) {begin=(0, 0, 1, 1), end=(0, 0, 2, 2)}, %w) {pad=(0, 0, 0, 0)}  ->  conv(%x, %w) {pad=(1, 2, 1, 2)}

    The pad must add a constant to spatial axes only, equal to the op's own padding value: 0 for conv and avg_pool, -inf
    for max_pool (or 0 if the pooled tensor is nonnegative). The new avg_pool counts padding as elements, so an avg_pool
    with padding that excludes it is skipped. A pad with other readers is kept for them.
    """

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        pad = made_by(inputs[0], "pad")
        attrs = None if pad is None else _padded(node, pad, _PADDING[node.op])
        if pad is None or attrs is None:
            return None
        try:
            result = apply(OPS[node.op], [pad.inputs[0], *inputs[1:]], attrs, node.sources)
        except Error:  # a pool's padding must be less than its kernel
            return None
        return result if result[0].type == node.types[0] else None  # a window may begin in the end padding

    return graph.rewrite(change, _PADDING)


_PADDING = {name: op.padding for name, op in OPS.items() if op.padding is not None}


def _padded(node: Node, pad: Node, fill: float) -> dict[str, Any] | None:
    """Returns the node's attributes with the padding of `pad` added, or None if they cannot be merged. fill: the op's
    own padding value."""
    begin, end, value = pad.attrs["begin"], pad.attrs["end"], pad.attrs["value"]
    fill = 0.0 if _zeros_lose(node, pad) else fill
    same_fill = value == fill and math.copysign(1, value) == math.copysign(1, fill)
    if pad.attrs["mode"] != "constant" or not same_fill or pad.types[0].dtype.kind != "float":
        return None
    rank = len(begin)
    spatial = range(1, rank - 1) if node.attrs["layout"] == "nhwc" else range(2, rank)
    if min(*begin, *end) < 0 or any(begin[i] or end[i] for i in range(rank) if i not in spatial):
        return None
    own: tuple[int, ...] = node.attrs["pad"]
    added = tuple(p for i in spatial for p in (begin[i], end[i]))
    attrs = {**node.attrs, "pad": tuple(a + b for a, b in zip(own, added, strict=True))}
    if "exclude_padding" in node.attrs:
        if node.attrs["exclude_padding"] and any(own):
            return None
        attrs["exclude_padding"] = False
    return attrs


def _zeros_lose(node: Node, pad: Node) -> bool:
    """True if max_pool never prefers a padded zero to an element, because each undilated window reads a nonnegative
    element."""
    x = pad.inputs[0]
    dense = OPS[node.op].picks and set(node.attrs["dilations"]) == {1}
    positive = x is not None and x.node.op in OPS and OPS[x.node.op].not_negative and x.type.size > 0
    return dense and pad.attrs["value"] == 0 and positive

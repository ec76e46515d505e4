"""Makes slices along the width overflow to infinity as they do on the chip."""

import numpy as np

from hexane.dtypes import FP16
from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.ops import OPS, apply
from hexane.ops.compose import lift
from hexane.targets import Chip

_LARGEST = float(np.finfo(np.float16).max)


def saturate_slices(graph: Graph, chip: Chip) -> Graph:
    """anec.input_view(%x) {axis=3, offset=2}  ->  mul(mul(anec.input_view(%x) {axis=3, offset=2}, 16), 0.0625)

    Applies only to programs in the chip's arithmetic. Some chips compute a slice of rows that does not begin at 0 in
    fixed point with four fractional bits, so a number becomes infinite if 16 times it overflows fp16. No change of
    smaller numbers has been observed.
    """
    limit = chip.hazards.width_slice_limit
    if limit is None:
        return graph
    fact, scale, decisions = chip.facts["hazards.width_slice_limit"], _LARGEST / limit, []

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        kind, attrs = node.types[0], node.attrs
        if not attrs["offset"] or attrs["axis"] != kind.rank - 1 or kind.dtype is not FP16:
            return None
        values = apply(OPS[node.op], inputs, attrs, node.sources)
        for factor in (scale, 1 / scale):
            values = apply(OPS["mul"], lift([*values, factor], node.sources), {}, node.sources)
        reason = f"numbers above {limit} become infinity, because the slice of the last axis does not begin at 0"
        decisions.append(Decision("saturate_slices", node.where, "saturates", reason, f"{fact.source}, {fact.status}"))
        return values

    return graph.rewrite(change, ("anec.input_view",)).decided(*decisions)

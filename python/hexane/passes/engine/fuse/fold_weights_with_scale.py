"""Multiplies the weights of a layer by its gain if the products are exact."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hexane.graph import Graph, Node, Value, constant
from hexane.graph.decisions import Decision
from hexane.lowering.weights import is_constant
from hexane.ops import OPS, apply
from hexane.ops.slots import moved, slot
from hexane.passes.engine.chain import TABLE, slots_of
from hexane.targets import Target

STAGE = "fold_weights_with_scale"


def fold_weights_with_scale(graph: Graph, target: Target) -> Graph:
    """anec.convolution(%x, %w, none, %g) {epilogue=(gain_offset(gain=3, ..))}  ->  anec.convolution(%x, %w * %g)

    Requires that the gain is the first slot, that weights and gain are constants, and that every product is exact in
    the weights' dtype. Any other gain keeps its slot (table 22.3).
    """
    decisions: list[Decision] = []

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        slots = slots_of(node)
        if not slots or slots[0].op != "gain_offset":
            return None
        values = dict(slots[0].attributes)
        if values["gain"] < 0 or inputs[2] is not None:
            return None
        weight, gain = inputs[1], inputs[values["gain"]]
        scaled = _scaled(weight, gain)
        if scaled is None:
            reason = "the gain keeps its slot: the weights are stored encoded, or products with it would be rounded"
            decisions.append(Decision(STAGE, node.where, "kept", reason, TABLE))
            return None
        decisions.append(Decision(STAGE, node.where, "fused", "the gain is in the weights", TABLE))
        return _without_gain(node, inputs, scaled, values)

    return graph.rewrite(change, ("anec.convolution", "anec.linear")).decided(*decisions)


def _scaled(weight: Value | None, gain: Value | None) -> Value | None:
    if (
        weight is None
        or gain is None
        or not (is_constant(weight) and is_constant(gain))
        or weight.dtype.kind != "float"
    ):
        return None
    numbers, factors = weight.node.data, gain.node.data
    assert numbers is not None
    assert factors is not None
    factors = factors.reshape(-1, *[1] * (weight.type.rank - 1)) if factors.ndim else factors
    wide = numbers.astype(np.float64) * factors.astype(np.float64)
    with np.errstate(all="ignore"):
        narrow = wide.astype(weight.dtype.numpy)
    return constant(narrow, weight.node.sources) if (narrow.astype(np.float64) == wide).all() else None


def _without_gain(
    node: Node, inputs: tuple[Value | None, ...], weight: Value, values: Mapping[str, Any]
) -> tuple[Value, ...]:
    gone = values["gain"]
    place = {i: i - (i > gone) for i in range(len(inputs))}
    first = slot("gain_offset", **{**values, "gain": -1})
    rest = [moved(s, place) for s in (first, *slots_of(node)[1:])]
    slots = rest if values["offset"] >= 0 else rest[1:]
    operands = [weight if i == 1 else v for i, v in enumerate(inputs) if i != gone]
    return apply(OPS[node.op], operands, {**node.attrs, "epilogue": tuple(slots)}, node.sources)

"""Computes the concatenation of a tensor and its negative as one product with (1, -1)."""

from math import prod

import numpy as np

from hexane.graph import Graph, Node, Value, constant
from hexane.lowering.weights import is_constant
from hexane.ops import OPS, apply
from hexane.ops.match import joined_sources, made_by
from hexane.passes.engine.chain import slots_of
from hexane.passes.engine.legalize.check_layers import refusal
from hexane.targets import Chip


def mirror_by_product(graph: Graph, chip: Chip) -> Graph:
    """anec.concat(%x : [1, 64, 1, 32], anec.gain_offset_control(%x, -1, none)) {axis=1}
      ->  anec.reshape(anec.mul(anec.reshape(%x) : [1, 1, 64, 32], const [1, 2, 1, 1])) : [1, 128, 1, 32]

    Models write an RMS norm as the layer norm of this concatenation, whose mean is 0. Concatenations along the last
    axis are kept, because the reshapes would be layers of their own.
    """
    if "anec.concat" not in graph.ops:
        return graph

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op != "anec.concat" or len(inputs) != 2 or node.attrs["axis"] == node.types[0].rank - 1:
            return None
        x, negative = inputs
        negation = made_by(negative, "anec.gain_offset_control")
        if x is None or negation is None or not _negates(negation, x):
            return None
        axis, sources = node.attrs["axis"], joined_sources(negation, node)
        outer, inner = prod(x.shape[:axis]), prod(x.shape[axis:-1])
        flat = apply(OPS["anec.reshape"], [x], {"shape": (outer, 1, inner, x.shape[-1])}, sources)[0]
        signs = constant(np.array([1, -1]).reshape(1, 2, 1, 1).astype(x.dtype.numpy), sources, x.dtype)
        both = apply(OPS["anec.mul"], [flat, signs], {}, sources)[0]
        if refusal(flat.node, chip) is not None or refusal(both.node, chip) is not None:
            return None
        mirrored = apply(OPS["anec.reshape"], [both], {"shape": node.types[0].shape}, sources)[0]
        return None if refusal(mirrored.node, chip) is not None else (mirrored,)

    return graph.rewrite(change)


def _negates(node: Node, x: Value) -> bool:
    """True if the node multiplies the tensor by -1. The product may follow reshapes that keep the last axis."""
    source = node.inputs[0]
    gain = node.inputs[1] if len(node.inputs) > 1 else None
    if source is None or gain is None or any(v is not None for v in node.inputs[2:]) or slots_of(node):
        return False
    if not is_constant(gain) or gain.node.data is None or not (gain.node.data == -1).all():
        return False
    same_rows = source.type.size == x.type.size and source.shape[-1:] == x.shape[-1:]
    return same_rows and _below_reshapes(source) == _below_reshapes(x)


def _below_reshapes(value: Value) -> Value:
    """Returns the source of the reshapes that made the value and kept its last axis."""
    while (node := made_by(value, "anec.reshape")) is not None:
        source = node.inputs[0]
        if source is None or source.shape[-1:] != value.shape[-1:]:
            break
        value = source
    return value

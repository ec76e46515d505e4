"""Turns elementwise layers with one constant operand, and constant batch norms, into layers of gain and offset."""

import numpy as np

from hexane.graph import Array, Graph, Node, Value, constant
from hexane.lowering.weights import is_constant, is_weight
from hexane.ops import OPS, apply
from hexane.ops.predicates import only_along
from hexane.passes.engine.channels import Channels
from hexane.targets import Target

STAGE = "scaled_ew_or_ew_with_const_in_to_goc"
_AFFINE = ("anec.add", "anec.sub", "anec.mul", "anec.div", "anec.batch_norm")


def scaled_ew_or_ew_with_const_in_to_goc(graph: Graph, target: Target) -> Graph:
    """anec.add(%x, const [C, 1, 1])  ->  anec.gain_offset_control(%x, none, const [C]) {axis=1}

    Requires one computed operand with the shape of the result, and a constant with one number or one number per channel
    (the compiler's guard "Must have 2 inputs when convert EW to GOC"). A division is rewritten only if every reciprocal
    is exact, so that no result changes. A batch norm is rewritten if its parameters are constants.
    """

    channels = Channels()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op == "anec.batch_norm":
            return _batch_norm(node, inputs, channels) if all(map(is_constant, inputs[1:])) else None
        if node.types[0].dtype.kind != "float":
            return None
        for i in (0, 1):
            affine = _affine(node, inputs, i, channels)
            if affine is not None:
                x, gain, offset, axis = affine
                attrs = {"axis": axis, "epilogue": node.attrs["epilogue"], "rounds": node.attrs["rounds"]}
                return apply(OPS["anec.gain_offset_control"], [x, gain, offset], attrs, node.sources)
        return None

    return graph.rewrite(change, _AFFINE)


def _affine(
    node: Node, inputs: tuple[Value | None, ...], i: int, channels: Channels
) -> tuple[Value, Value | None, Value | None, int] | None:
    """Returns (x, gain, offset, axis) with input i as the computed operand x, or None if the layer does not qualify."""
    x, other = inputs[i], inputs[1 - i]
    assert x is not None
    assert other is not None
    if is_weight(x) or not is_weight(other) or x.type != node.types[0] or len(inputs) != 2:
        return None
    axis = 0
    if other.type.size != 1:
        found = channels.axis(x)
        if found is None or not only_along(other, found, x.shape):
            return None
        axis = found
    shape = (-1,) if other.type.size != 1 else ()
    if not is_constant(other):  # a param: its values are unknown at compile time, but its shape is known
        if node.op not in ("anec.add", "anec.mul"):
            return None
        flat = other
        if other.type.rank != len(shape):
            flat = apply(OPS["anec.reshape"], [other], {"shape": shape}, other.node.sources)[0]
        return (x, flat, None, axis) if node.op == "anec.mul" else (x, None, flat, axis)
    data = other.node.data
    assert data is not None
    flat = constant(data.reshape(-1 if data.size != 1 else ()), other.node.sources)
    match node.op, i:
        case "anec.add", _:
            return x, None, flat, axis
        case "anec.sub", 0:
            return x, None, constant(-flat.node.data, other.node.sources), axis  # type: ignore[operator]
        case "anec.sub", _:
            return x, constant(np.array(-1, data.dtype)), flat, axis
        case "anec.mul", _:
            return x, flat, None, axis
        case "anec.div", 0:
            inverse = _exact_inverse(flat.node.data)  # type: ignore[arg-type]
            return None if inverse is None else (x, constant(inverse, other.node.sources), None, axis)
    return None


def _exact_inverse(data: Array) -> Array | None:
    """Returns 1 / data if every element is a power of two, so that multiplying rounds as dividing does, else None."""
    fractions, _ = np.frexp(data.astype(np.float64))
    if not (np.abs(fractions) == 0.5).all():
        return None
    with np.errstate(over="ignore"):
        inverse = (1 / data.astype(np.float64)).astype(data.dtype)
    return inverse if np.isfinite(inverse).all() and (np.abs(inverse) >= np.finfo(data.dtype).tiny).all() else None


def _batch_norm(node: Node, inputs: tuple[Value | None, ...], channels: Channels) -> tuple[Value, ...] | None:
    axis, x = int(node.attrs["axis"]), inputs[0]
    assert x is not None
    if channels.axis(x) != axis:
        return None
    mean, variance, gamma, beta = (None if v is None else v.node.data.astype(np.float64) for v in inputs[1:])  # type: ignore[union-attr]
    with np.errstate(all="ignore"):
        gain = (1 if gamma is None else gamma) / np.sqrt(variance + node.attrs["epsilon"])
        offset = (0 if beta is None else beta) - mean * gain
        constants = [constant(a.astype(np.float32), node.sources) for a in (gain, offset)]
    if not all(np.isfinite(c.node.data).all() for c in constants):  # type: ignore[arg-type]
        return None
    return apply(OPS["anec.gain_offset_control"], [x, *constants], {"axis": axis}, node.sources)

"""Lets layers read their weights in the stored encoding: integers and a scale, or indices of a table."""

import numpy as np

from hexane.graph import Graph, Node, Value, constant
from hexane.graph.decisions import Decision
from hexane.lowering.weights import is_constant
from hexane.ops import OPS, apply
from hexane.ops.encodings import encoding_of, is_encoded
from hexane.ops.fold import fold_node
from hexane.ops.match import joined_sources, made_by
from hexane.ops.slots import slot
from hexane.passes.engine.chain import TABLE, fused, slots_of
from hexane.passes.engine.legalize.compression import is_valid_for_compression
from hexane.targets import Chip

STAGE = "collapse_quant_dequant"
_WEIGHTED = ("anec.convolution", "anec.linear", "anec.deconvolution")


def collapse_quant_dequant(graph: Graph, chip: Chip) -> Graph:
    """anec.convolution(%x, anec.dequant(const int8, %s))  ->  anec.convolution(%x, const int8, none, %s) {epilogue=(kernel_scale(scale=3, ..))}

    Requires a zero point of 0, and one scale or one scale per output channel. The slot multiplies the accumulator by
    the scale, before the activation's table; in the chip's arithmetic, `scale_weights` moves the scale to the weights.
    If weights are gathered from a table, the layer reads the indices and the table. anec.quant(anec.dequant(%q, %s),
    %s) becomes %q. All other encoded constants are dequantised at compile time.
    """  # noqa: E501
    decisions: list[Decision] = []

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op == "anec.quant":
            return _same(node, inputs)
        weight = inputs[1]
        if weight is None or not is_encoded(weight.node):
            return None
        maker = weight.node
        if encoding_of(weight).kind == "palette":
            return _from_table(node, inputs, maker, decisions)
        reason = _refused(node, maker, chip)
        if reason:
            decisions.append(Decision(STAGE, node.where, "kept", reason, TABLE))
            return None
        decisions.append(fused(STAGE, maker, node, "kernel_scale"))
        own = len(OPS[node.op].inputs)
        scale = maker.inputs[1]
        axis = node.types[0].rank - 1 if node.op == "anec.linear" else 1
        assert not slots_of(node) or slots_of(node)[0].op == "gain_offset"
        place = len(inputs)
        chain = (slot("kernel_scale", scale=place, axis=axis), *slots_of(node))
        operands = [inputs[0], maker.inputs[0], *inputs[2:own], *inputs[own:], scale]
        return apply(OPS[node.op], operands, {**node.attrs, "epilogue": chain}, joined_sources(node, maker))

    def folded(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        return fold_node(node) if all(map(is_constant, inputs)) else None

    changed = graph.rewrite(change, ("anec.quant", *_WEIGHTED))
    return changed.rewrite(folded, ("anec.dequant", "anec.gather")).decided(*decisions)


def _refused(node: Node, maker: Node, chip: Chip) -> str:
    q, scale, zero = maker.inputs
    assert q is not None
    assert scale is not None
    if node.op == "anec.deconvolution":
        return "a transposed convolution reads its weights in the input's dtype"
    if zero is not None and zero.node.data is not None and zero.node.data.any():
        return "the weights have a zero point, but the engine reads only symmetric weights"
    if q.dtype.name not in ("int8", "uint8"):
        return f"the weights are {q.dtype}"
    if scale.shape and (maker.attrs["axis"] != 0 or scale.shape != q.shape[:1]):
        return "the weights have neither one scale nor one scale per output channel"
    if not is_valid_for_compression(q.dtype.bits, chip):
        return f"kernels of {q.dtype.bits} bits do not stream"
    return ""


def _from_table(
    node: Node, inputs: tuple[Value | None, ...], maker: Node, decisions: list[Decision]
) -> tuple[Value, ...] | None:
    table, indices = maker.inputs
    assert table is not None
    assert indices is not None
    data = indices.node.data
    if node.op == "anec.deconvolution" or data is None or table.type.size > 256 or data.min() < 0:
        return None
    decisions.append(fused(STAGE, maker, node, "kernel_palettized_LUT"))
    packed = constant(data.astype(np.uint8), indices.node.sources)
    return apply(OPS[node.op], [inputs[0], packed, table, *inputs[3:]], node.attrs, joined_sources(node, maker))


def _same(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
    """Returns the integers if they are dequantised and quantised again with the same scale, else None."""
    maker = made_by(inputs[0], "anec.dequant")
    if maker is None or maker.inputs[1:] != inputs[1:] or maker.attrs["axis"] != node.attrs["axis"]:
        return None
    source = maker.inputs[0]
    # In fp16 integer * scale / scale is not always the integer.
    fits = source is not None and source.type == node.types[0] and maker.types[0].dtype.bits >= 32
    return (source,) if fits and source is not None else None

"""Keeps the weights of matrix products, convolutions and embeddings in their stored encoding."""

from collections.abc import Callable

import numpy as np

from hexane.compression.weights import LEAST_NUMBERS
from hexane.dtypes import FP16, FP32, INT32, DType
from hexane.graph import AttrValue, Graph, Node, Value, constant
from hexane.graph.decisions import Decision
from hexane.ops import OPS, apply
from hexane.ops.encoded_moves import moved
from hexane.ops.encodings import encoding_of
from hexane.ops.records.encoded_product import (
    ENCODED_CONV,
    ENCODED_MATMUL,
    ENCODED_PIXELS,
    ENCODED_ROWS_MATMUL,
    can_be_encoded,
    multiplies_pixels,
)
from hexane.passes.quantize.stored import (
    Stored,
    before_rounding,
    comes_of_integers,
    encoded,
    fits_rounded,
    held,
    scales_follow,
    stored_rows,
    within_halves,
)
from hexane.targets import Target


def keep_encoded_halves(graph: Graph, target: Target) -> Graph:
    """conv(%x, dequantize(const : int8[96, 64, 3, 3], const))  ->  cpu.encoded_conv(%x, const, const, none)

    Like keep_encoded, for a network that becomes fp16: each decoded number is rounded to fp16. Skips a weight with a
    number that overflows fp16, because a decoded weight would clamp it to the largest fp16. Skips rows of an embedding
    if fp16 does not hold their scales exactly, because the scales would be rounded first.
    """
    return _kept(graph, fits_rounded, ("conv", "gather", "linear", "matmul"), rounds=True)


def keep_encoded_fp16(graph: Graph, target: Target) -> Graph:
    """linear(%x : fp16, dequantize(const, const) : fp16)  ->  cpu.encoded_matmul(%x, const, const, none) : fp16

    Like keep_encoded_halves, for weights that are fp16 in the model or cast to fp16. Requires that fp16 holds the
    scales of integers exactly, or that the model decodes them in fp32 first, as the kernels do.
    """
    return _kept(graph, fits_rounded, ("conv", "gather", "linear", "matmul"), FP16, rounds=True)


def keep_encoded(graph: Graph, target: Target) -> Graph:
    """linear(%x, decode_palette(const, const), %b)  ->  cpu.encoded_matmul(%x, const, const, %b) {bits=4, palette=True}
    conv(%x, dequantize(const : int8[96, 64, 1, 1], const))  ->  cpu.encoded_pixels(%x, const, const, none)
    conv(%x, dequantize(const : int8[96, 64, 3, 3], const))  ->  cpu.encoded_conv(%x, const, const, none)
    gather(decode_blocks(%x, %s), %i)             ->  decode_blocks(gather(%x, %i), gather(%s, %i))

    Applies to fp32 products, convolutions with one group, and embedding rows. The weight must have at least
    LEAST_NUMBERS numbers, as integers with scales or as palette indices, in a form that the kernels read. Skipped if x
    is dequantised, because the product may become an integer product. Products are skipped if constants scale the
    result's columns next, because another pass multiplies them into decoded weights.
    """
    return _kept(graph, lambda encoding, _: encoding.numbers.ndim == 2, ("conv", "gather", "linear", "matmul"))


def keep_encoded_vectors(graph: Graph, target: Target) -> Graph:
    """linear(%x, decode_vectors(const, const), %b)  ->  cpu.encoded_matmul(%x, const, const, %b) {bits=4, palette=True}

    Like keep_encoded, for vector palettes, in which each index stands for 2 or 4 numbers: adjacent columns of a
    product, or adjacent output channels of a convolution.
    """
    return _kept(graph, lambda encoding, _: encoding.numbers.ndim == 3, ("conv", "linear", "matmul"))


def keep_encoded_rows(graph: Graph, target: Target) -> Graph:
    """matmul(%g, dequantize(const, const))  ->  cpu.encoded_rows_matmul(%g, const, const, none)

    Like keep_encoded, for an fp32 product that sums over the rows of the stored weight: the gradient of a linear layer.
    A linear layer and its gradient share one stored weight. Skipped if the transposed weight can be stored and no other
    product reads the weight untransposed, because the kernel for the transposed form is faster.
    """
    as_columns = {
        encoding
        for node in graph.nodes
        if node.op == "linear" or (node.op == "matmul" and node.attrs["transpose_y"])
        if (encoding := _encoded_weight(node.inputs[1])) is not None
    }
    stored: dict[Value, Stored | None] = {}
    decisions: list[Decision] = []

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x, y, bias = inputs
        assert x is not None
        if node.attrs["transpose_y"] or x.type.rank < 2 or x.dtype is not FP32:
            return None
        weight = _encoded_weight(y)
        if weight is None or comes_of_integers(x):
            return None
        if weight not in as_columns and _is_stored(_in_rows(weight, False)):
            return None
        if weight not in stored:
            stored[weight] = stored_rows(weight)
        encoding = stored[weight]
        if encoding is None:
            return None
        kind = encoding_of(weight).kind
        decisions.append(Decision("keep_encoded", node.where, f"{kind}, {encoding.bits} bits", "decoded as it is read"))
        sources = weight.node.sources
        operands = [x, constant(encoding.weight, sources), constant(encoding.numbers, sources), bias]
        attrs = {"bits": encoding.bits, "palette": encoding.palette, "width": weight.shape[1]}
        attrs["transpose_x"] = bool(node.attrs["transpose_x"])
        return apply(OPS[ENCODED_ROWS_MATMUL], operands, attrs, node.sources)

    return graph.rewrite(change, ("matmul",)).decided(*decisions)


def _encoded_weight(value: Value | None) -> Value | None:
    """Returns the encoded constant behind this fp32 matrix, or None."""
    return None if value is None or not _is_weight(value, FP32) else encoded(value)


def _is_stored(weight: Value | None) -> bool:
    return weight is not None and stored_rows(weight) is not None


def _kept(
    graph: Graph, fits: Callable[[Stored, DType], bool], ops: tuple[str, ...], dtype: DType = FP32, rounds: bool = False
) -> Graph:
    """Rewrites ops whose weights have this dtype. fits: tests an encoding, given the dtype in which it is decoded.
    rounds: decoded numbers are rounded to fp16."""
    readers = graph.users()
    stored: dict[Value, Stored | None] = {}
    decisions: list[Decision] = []

    def decided(node: Node, weight: Value, bits: int) -> None:
        kind = encoding_of(weight).kind
        decisions.append(Decision("keep_encoded", node.where, f"{kind}, {bits} bits", "decoded as it is read"))

    def product(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x, y, bias = inputs[0], inputs[1], inputs[2]
        assert x is not None
        assert y is not None
        if x.type.rank < 2 or not _is_weight(y, dtype, node.op == "conv") or x.dtype is not dtype:
            return None
        if comes_of_integers(x) or scales_follow(node.values[0], readers):
            return None
        y = before_rounding(y)
        if node.op == "conv":
            weight = _of_windows(node, y)
        else:
            weight = _in_rows(y, node.op == "linear" or bool(node.attrs["transpose_y"]))
        if weight is None:
            return None
        if weight not in stored:
            stored[weight] = stored_rows(weight)
        encoding = stored[weight]
        if encoding is None or not fits(encoding, weight.dtype):
            return None
        decided(node, weight, encoding.bits)
        operands = [x, constant(encoding.weight, y.node.sources), constant(encoding.numbers, y.node.sources), bias]
        attrs = {"bits": encoding.bits, "palette": encoding.palette}
        if node.op == "conv":
            attrs["layout"] = node.attrs["layout"]
            if multiplies_pixels(node):
                return apply(OPS[ENCODED_PIXELS], operands, attrs, node.sources)
            window = {name: node.attrs[name] for name in ("strides", "dilations", "pad")}
            return apply(OPS[ENCODED_CONV], operands, {**attrs, **window, "kernel_sizes": y.shape[2:]}, node.sources)
        transposed = node.op == "matmul" and bool(node.attrs["transpose_x"])
        return apply(OPS[ENCODED_MATMUL], operands, {**attrs, "transpose_x": transposed}, node.sources)

    def embedding(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        table, ids = inputs[0], inputs[1]
        assert table is not None
        assert ids is not None
        if node.attrs["axis"] != 0 or ids.node.op == "const" or not _is_weight(table, dtype):
            return None
        weight = encoded(table)
        rows = None if weight is None or (rounds and not _rows_fit(weight.node)) else _rows(weight, ids, node)
        if weight is None or rows is None:
            return None
        decided(node, weight, 8)
        return (rows,)

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        return embedding(node, inputs) if node.op == "gather" else product(node, inputs)

    return graph.rewrite(change, ops).decided(*decisions)


def _is_weight(value: Value, dtype: DType, of_pixels: bool = False) -> bool:
    return (value.type.rank == 2 or of_pixels) and value.type.size >= LEAST_NUMBERS and value.dtype is dtype


def _in_rows(value: Value, rows: bool) -> Value | None:
    """Returns the encoded constant with one row per column of the product, moving its elements if needed, or None."""
    result = encoded(value)
    if result is None or rows:
        return result
    return moved(apply(OPS["transpose"], [result], {"perm": (1, 0)})[0].node)


def _of_windows(conv: Node, weight: Value) -> Value | None:
    """Returns a convolution's encoded weight as (out, kernel.., in), or as (out, in) for a kernel of one tap, or
    None."""
    encoded_weight = encoded(weight) if can_be_encoded(conv) else None
    if encoded_weight is None:
        return None
    if multiplies_pixels(conv):
        return moved(apply(OPS["reshape"], [encoded_weight], {"shape": weight.shape[:2]})[0].node)
    perm = (0, *range(2, weight.type.rank), 1)
    return moved(apply(OPS["transpose"], [encoded_weight], {"perm": perm})[0].node)


def _rows_fit(table: Node) -> bool:
    """True if rows decoded in fp16 have the same bits as the decoded table: integer * scale is rounded once, or the
    numbers are palette entries."""
    scales = table.inputs[1]
    if table.op not in ("dequantize", "decode_blocks"):
        return True
    assert scales is not None
    assert scales.node.data is not None
    return held(scales.node.data) and within_halves(scales.node.data, 8)


def _name_entries(indices: Value, entries: int) -> bool:
    data = indices.node.data
    assert data is not None
    return bool(data.max(initial=0) < entries)


def _rows(weight: Value, ids: Value, node: Node) -> Value | None:
    """Returns these rows of an encoded table, gathered first and then decoded, or None if the encoding prevents
    that."""

    def make(op: str, *operands: Value, **attrs: AttrValue) -> Value:
        return apply(OPS[op], operands, attrs, node.sources)[0]

    def picked(value: Value) -> Value:
        return make("gather", value, ids, axis=0)

    first, second, *more = weight.node.inputs
    assert first is not None
    assert second is not None
    rows = weight.shape[0]
    match weight.node.op:
        case "dequantize":
            if (more and more[0] is not None) or (second.type.rank and weight.node.attrs["axis"] != 0):
                return None
            scale = make("reshape", picked(second), shape=(*ids.shape, 1)) if second.type.rank else second
            return make("mul", make("cast", picked(first), dtype=weight.dtype), make("cast", scale, dtype=weight.dtype))
        case "decode_blocks" if second.shape[0] == rows:
            return make("decode_blocks", picked(first), picked(second))
        case "gather" if weight.node.attrs["axis"] == 0 and first.shape[0] <= 256:
            indices = second.node.data
            assert indices is not None
            if indices.min() < 0 or indices.max() >= first.shape[0]:
                return None
            codes = constant(indices.astype(np.uint8), weight.node.sources)
            return make("gather", first, make("cast", picked(codes), dtype=INT32), axis=0)
        case "decode_palette":
            table = second.node.data
            assert table is not None
            if table.size == table.shape[-1] and _name_entries(first, table.size):
                entries = constant(table.reshape(-1), weight.node.sources)
                return make("gather", entries, make("cast", picked(first), dtype=INT32), axis=0)
            groups = constant((np.arange(rows) * second.shape[0] // rows).astype(np.int32), weight.node.sources)
            return make("decode_palette", picked(first), make("gather", second, picked(groups), axis=0))
    return None

"""Replaces float ops on quantised tensors, written between dequantize and quantize, by integer ops."""

from math import prod

import numpy as np

from hexane.dtypes import FP32, INT32
from hexane.graph import EpilogueSlot, Graph, Node, Value
from hexane.ops import KERNEL_FORMS, OPS, apply
from hexane.ops.fold import fold_node
from hexane.ops.match import Found, Pattern, joined_sources, made_by, op, rewrite
from hexane.ops.predicates import channel_axis, only_along
from hexane.ops.records.quant import BYTES
from hexane.ops.records.quant_mean import MOST_TERMS
from hexane.passes.fuse.fuse_epilogue import activation
from hexane.passes.quantize.quantized import Grid, Quantized, dequantized, grid, known
from hexane.passes.quantize.subpixel import convolution, interleaved
from hexane.system.limits import MAX_SLOTS
from hexane.targets import Target

PRODUCTS = ("quantized_conv", "quantized_matmul")
_INT32_LIMIT = 2**31 - 1
_SAME_SCALE = 2.0**-22  # two scales that differ by rounding only


def fold_qdq(graph: Graph, target: Target) -> Graph:
    """quantize(relu(conv(dequantize(%x), dequantize(%w), %b)))  ->  quantized_conv(%x, %w, %s, %b) {dtype=int8, ..}

    Applies to convolutions, matrix products, sums and means. Activations are 8-bit integers with one scale. Weights may
    also have one scale per output channel. Sums must not overflow int32. A product gives fp32 if no quantize with one
    constant scale follows it, or if its result has another reader. A transposed convolution with constant weights
    becomes a convolution of stride 1 whose channels are then interleaved, unless that needs more than four times the
    multiplications. An int32 product that is cast and scaled (dynamic quantisation) becomes one op. A mean is computed
    in integers and rounded once. A dequantize with other readers is kept. If its operands are constants, it is computed
    at compile time.
    """
    return _stored(_products(graph))


# ---- products in fp32 ----


def _products(graph: Graph) -> Graph:
    def build(m: Found) -> tuple[Value, ...] | None:
        if "scale" in m.bound:
            return _rescaled(m)
        return (_transposed_product if m.node.op == "conv_transpose" else _product)(m.node, m.inputs)

    return rewrite(graph, _PRODUCT, build)


_SCALED = op("mul", op("cast", Pattern(name="product", alone=True), name="cast", alone=True), "scale")
_PRODUCT = op("conv") | op("matmul") | op("conv_transpose") | _SCALED


def _product(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
    x, weight, bias = dequantized(inputs[0]), dequantized(inputs[1]), inputs[2]
    if x is None or weight is None or not x.single or not _bytes(x) or not _bytes(weight):
        return None
    if node.op == "conv" and node.types[0].rank > 4:
        return None
    rank = weight.value.type.rank
    columns = 0 if node.op == "conv" else rank - 2 if node.attrs["transpose_y"] else rank - 1
    if not weight.single and weight.axis != columns:
        return None
    terms = _terms(node, weight.value)
    room = _INT32_LIMIT - terms * 255 * _largest(weight)
    if room < 0:
        return None
    scale = apply(OPS["mul"], [x.scale, weight.scale], {}, node.sources)[0]
    bias = _bias(bias, scale, room)
    left = x.value
    attrs = {k: v for k, v in node.attrs.items() if k != "transpose_x"}
    if node.attrs.get("transpose_x"):
        swapped = (*range(left.type.rank - 2), left.type.rank - 1, left.type.rank - 2)
        left = apply(OPS["transpose"], [left], {"perm": swapped}, node.sources)[0]
    operands = [left, weight.value, scale, bias, x.zero, weight.zero]
    return apply(OPS[f"quantized_{node.op}"], operands, {**attrs, "dtype": FP32}, node.sources)


def _transposed_product(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
    x, weight = dequantized(inputs[0]), dequantized(inputs[1])
    if x is None or weight is None or not _bytes(x) or not _bytes(weight) or node.types[0].rank > 4:
        return None
    same = convolution(node, inputs)
    product = None if same is None else _product(same, same.inputs)
    return None if product is None else (interleaved(product[0], node),)


def _bytes(x: Quantized) -> bool:
    return x.value.dtype in BYTES and x.real is FP32


def _terms(node: Node, weight: Value) -> int:
    """Returns the number of products in the sum for one element."""
    return prod(weight.shape[1:]) if node.op == "conv" else weight.shape[-1 if node.attrs["transpose_y"] else -2]


def _largest(weight: Quantized) -> int:
    """Returns the largest magnitude of weight - zero, or 255 if the weight is not constant."""
    data, zero = known(weight.value), 0 if weight.zero is None else known(weight.zero)
    if data is None or zero is None or not weight.single or not data.size:
        return 255
    return int(np.abs(data.astype(np.int64) - np.int64(zero)).max())


def _bias(bias: Value | None, scale: Value, room: int) -> Value | None:
    """Returns the int32 integers of a bias if its scale is the product's and the integers fit, else the unchanged
    bias."""
    quantized = dequantized(bias)
    if quantized is None or quantized.value.dtype is not INT32 or quantized.zero is not None:
        return bias
    folded = fold_node(scale.node)
    numbers, own, need = known(quantized.value), known(quantized.scale), None if folded is None else known(folded[0])
    if numbers is None or own is None or need is None or np.abs(numbers.astype(np.int64)).max(initial=0) > room:
        return bias
    return quantized.value if np.allclose(own, need, rtol=_SAME_SCALE, atol=0) else bias


def _rescaled(m: Found) -> tuple[Value, ...] | None:
    """Rewrites mul(cast(an int32 product), %scale) as a product with fp32 results."""
    product, scale = made_by(m["product"], *PRODUCTS), m["scale"]
    if product is None or m["cast"].dtype is not FP32 or product.attrs["dtype"] is not INT32:
        return None
    kind = product.types[0]
    axis = channel_axis(product)
    if m.node.types[0].shape != kind.shape or not (scale.type.size == 1 or only_along(scale, axis, kind.shape)):
        return None
    shape = () if scale.type.size == 1 else (kind.shape[axis],)
    flat = apply(OPS["reshape"], [scale], {"shape": shape}, scale.node.sources)
    operands = [*product.inputs[:2], (fold_node(flat[0].node) or flat)[0], *product.inputs[3:]]
    sources = joined_sources(product, m.node)
    return apply(OPS[product.op], operands, {**product.attrs, "dtype": FP32}, sources)


# ---- results that are quantised again ----


def _stored(graph: Graph) -> Graph:
    counts = graph.use_counts()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        to = grid(inputs[1], inputs[2]) if node.types[0].dtype in BYTES else None
        if to is None:
            return None
        old, new = node.inputs[0], inputs[0]
        slots: list[EpilogueSlot] = []
        moves: list[Node] = []
        while old is not None and new is not None and counts[old] == 1:
            if slot := activation(new.node):
                slots.insert(0, slot)
            elif new.node.op in OPS and (OPS[new.node.op].view or new.node.op == "interleave"):
                moves.insert(0, new.node)
            else:
                break
            old, new = old.node.inputs[0], new.node.inputs[0]
        if old is None or new is None or counts[old] != 1:
            return None
        result = _requantised(new.node, slots, to, node)
        if result is not None:
            for move in moves:
                result = apply(OPS[move.op], result, move.attrs, move.sources)
        return result

    return graph.rewrite(change, ("quantize",))


def _requantised(maker: Node, slots: list[EpilogueSlot], to: Grid, node: Node) -> tuple[Value, ...] | None:
    """Returns `maker` as an op with 8-bit results, or None if there is no such op."""
    if len(slots) > MAX_SLOTS:
        return None
    attrs: dict[str, object] = {"dtype": node.types[0].dtype, "output_zero": to.zero, "epilogue": tuple(slots)}
    sources = joined_sources(maker, node)
    if maker.op in PRODUCTS and maker.types[0].dtype is FP32:
        inputs, step = _undivided(maker, slots)
        attrs = {**maker.attrs, **attrs, "output_scale": to.scale / step}
        return apply(KERNEL_FORMS[maker.op], inputs, attrs, sources)
    if maker.op == "reduce_mean":
        return None if slots else _mean(maker, attrs, to, sources)
    if maker.op != "add":
        return None
    x, y = (dequantized(v) for v in maker.inputs[:2])
    first, second = x and x.grid, y and y.grid
    if x is None or y is None or first is None or second is None:
        return None
    grids = {"x_scale": first.scale, "x_zero": first.zero, "y_scale": second.scale, "y_zero": second.zero}
    attrs = {**grids, **attrs, "output_scale": to.scale}
    return apply(KERNEL_FORMS["quantized_add"], [x.value, y.value], attrs, sources)


def _mean(maker: Node, attrs: dict[str, object], to: Grid, sources: tuple[str, ...]) -> tuple[Value, ...] | None:
    x = dequantized(maker.inputs[0])
    terms = 0 if x is None or not maker.types[0].size else x.value.type.size // maker.types[0].size
    if x is None or x.grid is None or not 1 <= terms <= MOST_TERMS:
        return None
    grids = {"x_scale": x.grid.scale, "x_zero": x.grid.zero, "output_scale": to.scale, "output_zero": to.zero}
    kept = {name: maker.attrs[name] for name in ("axes", "keep_dims")}
    return apply(OPS["quantized_mean"], [x.value], {**kept, **grids, "dtype": attrs["dtype"]}, sources)


def _undivided(maker: Node, slots: list[EpilogueSlot]) -> tuple[list[Value | None], float]:
    """Returns the product's operands without the scale of x, and the scale of x: no product of two scales is rounded.

    If the bias or the epilogue depends on x's scale, the operands stay unchanged and the scale is 1. Otherwise the sums
    are in units of x's scale.
    """
    inputs = list(maker.inputs)
    product = made_by(inputs[2], "mul")
    step = None if product is None else grid(product.inputs[0], None)
    bias = inputs[3]
    if (
        product is None
        or step is None
        or (bias is not None and bias.dtype is not INT32)
        or any(s.op != "relu" for s in slots)
    ):
        return inputs, 1.0
    inputs[2] = product.inputs[1]
    return inputs, step.scale

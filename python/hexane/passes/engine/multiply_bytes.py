"""Computes products of int8 with int8 in integer arithmetic, as chips with int8 multipliers do."""

from itertools import pairwise

import numpy as np

from hexane.dtypes import DTYPES, FP16, INT32
from hexane.graph import Array, Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.ops.compose import Builder
from hexane.ops.match import made_by
from hexane.ops.slot_steps import run_chain
from hexane.passes.engine.chain import slots_of
from hexane.passes.engine.steps import Steps
from hexane.targets import Chip

INT8, FP64 = DTYPES["int8"], DTYPES["fp64"]
LIMIT = 2.0**31  # a sum of this size becomes infinite before it is scaled (measured on M6)


def multiply_bytes(graph: Graph, chip: Chip) -> Graph:
    """anec.convolution(anec.dequant(%q, %a), const int8, none, %s) {epilogue=(kernel_scale(scale=3, ..))}  ->  dequantize(quantized_conv(%q, const int8), %a * %s)

    Requires the chip's arithmetic, a chip that multiplies int8 at twice the rate (0x55d), and int8 operands without a
    zero point. The sum is a 32-bit integer. The product of the operands' scales is rounded to fp16 and applied after
    the accumulator. The sum starts from the bias, so the bias is rounded to an integer. That the compiler fuses a
    preceding dequantisation into the layer is inferred, not published.
    """  # noqa: E501
    if chip.gates.double_int8 is not True:
        return graph

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x = inputs[0]
        path: list[Node] = []
        while x is not None and x.node.op in ("anec.reshape", "anec.transpose") and not slots_of(x.node):
            path.append(x.node)
            x = x.node.inputs[0]
        maker = made_by(x, "anec.dequant")
        scale = None if maker is None else _scale(node, inputs, maker)
        if maker is None or scale is None:
            return None
        q = maker.inputs[0]
        for step in reversed(path):
            (q,) = apply(OPS[step.op], [q], step.attrs, step.sources)
        assert q is not None
        product = _multiplied(node, inputs, q, scale)
        return None if product is None else (product,)

    return graph.rewrite(change, ("anec.convolution", "anec.linear"))


def _scale(node: Node, inputs: tuple[Value | None, ...], maker: Node) -> Array | None:
    """Returns the scale of the integer sum, one number or one per output channel, or None if the layer does not
    multiply int8 by int8."""
    chain, weight = slots_of(node), inputs[1]
    if weight is None or not chain or chain[0].op != "kernel_scale":
        return None
    q, left, zero = maker.inputs
    right = inputs[dict(chain[0].attributes)["scale"]]
    assert q is not None
    assert left is not None
    assert right is not None
    if q.dtype is not INT8 or weight.dtype is not INT8 or inputs[2] is not None or left.shape:
        return None
    if any(v is not None and v.node.data is None for v in (weight, left, zero, right)):
        return None
    if zero is not None and np.any(zero.node.data):
        return None
    with np.errstate(over="ignore"):
        scale = np.asarray(np.float32(left.node.data) * np.float32(right.node.data)).astype(np.float16)
    return scale.astype(np.float32) if np.isfinite(scale).all() and scale.all() else None


def _multiplied(node: Node, inputs: tuple[Value | None, ...], q: Value, scale: Array) -> Value | None:
    b, chain, weight = Steps(*node.sources), slots_of(node)[1:], inputs[1]
    assert weight is not None
    axis = node.types[0].rank - 1 if node.op == "anec.linear" else 1
    start = np.zeros(weight.shape[0], np.int64)
    if chain and chain[0].op == "gain_offset":
        v = dict(chain[0].attributes)
        offset = None if v["gain"] >= 0 else inputs[v["offset"]]
        if offset is not None and offset.node.data is not None and v["axis"] == axis:
            exact = np.broadcast_to(np.asarray(offset.node.data, np.float64) / np.float64(scale), start.shape)
            if not (np.abs(exact) < LIMIT / 2).all():
                return None
            start, chain = (np.sign(exact) * np.floor(np.abs(exact) + 0.5)).astype(np.int64), chain[1:]
    sizes = 128 * np.abs(np.asarray(weight.node.data).astype(np.int64)).reshape(len(start), -1).sum(1)
    if (sizes + np.abs(start) < LIMIT).all():
        total = _sums(b, node, q, weight, b.const(start.astype(np.int32)) if start.any() else None)
        y = b.dequantize(total, scale, None, axis=axis, dtype=FP16)
    elif node.attrs.get("groups", 1) == 1:
        y = _long(b, node, q, weight, start, scale, -(-int(sizes.max()) // 2**30))
    else:
        return None
    return run_chain(b, y, chain, inputs, node.attrs["rounds"], FP16)  # type: ignore[no-any-return]


def _sums(b: Builder, node: Node, q: Value, weight: Value, bias: Value | None) -> Value:
    if node.op == "anec.linear":
        return b.quantized_matmul(q, weight, None, bias, transpose_y=True, dtype=INT32)
    a = node.attrs
    window = {"strides": a["strides"], "dilations": a["dilation_rates"], "pad": a["explicit_padding"]}
    return b.quantized_conv(q, weight, None, bias, **window, groups=a["groups"], layout="nchw", dtype=INT32)


def _long(b: Builder, node: Node, q: Value, weight: Value, start: Array, scale: Array, count: int) -> Value:
    """Computes sums that may overflow int32: splits the input channels and adds the partial sums in fp64, which is
    exact."""
    channels, rank, linear = weight.shape[1], len(q.shape), node.op == "anec.linear"
    ends = [channels * i // count for i in range(count + 1)]
    shape = (-1,) if linear else (-1, *[1] * (rank - 2))
    total: Value = b.reshape(b.const(start.astype(np.float64)), shape=shape)
    for first, end in pairwise(ends):
        parts = []
        for v, at in ((q, rank - 1 if linear else 1), (weight, 1)):
            low, high = [0] * len(v.shape), list(v.shape)
            low[at], high[at] = first, end
            parts.append(b.slice_by_index(v, begin=tuple(low), end=tuple(high)))
        total = b.add(total, b.cast(_sums(b, node, parts[0], parts[1], None), dtype=FP64))
    over = b.greater_equal(b.abs(total), np.float64(LIMIT))
    kept = b.select(over, b.mul(total, np.float64(np.inf)), total)
    factor = b.reshape(b.const(scale.astype(np.float64)), shape=shape) if scale.ndim else b.const(np.float64(scale))
    return b.cast(b.mul(kept, factor), dtype=FP16)

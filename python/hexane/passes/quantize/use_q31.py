"""Rewrites quantised ops in the integer arithmetic of TFLite's kernels, and of devices that follow TFLite."""

from collections.abc import Callable, Sequence

import numpy as np

from hexane.dtypes import FP32, INT32
from hexane.errors import Error
from hexane.graph import Array, EpilogueSlot, Graph, Node, Value, constant
from hexane.graph.decisions import Decision
from hexane.ops import OPS, apply
from hexane.ops.fold import fold_node
from hexane.ops.match import joined_sources
from hexane.ops.records.q31 import LEAST_SHIFT, SUM_SHIFT, quantize_multiplier
from hexane.ops.records.quant import BYTES
from hexane.ops.records.quant_mean import mean_terms
from hexane.passes.fuse.fuse_epilogue import activation
from hexane.passes.quantize.quantized import Grid, dequantized, grid, known
from hexane.targets import Target

_PRODUCTS = {"quantized_conv": "q31_conv", "quantized_matmul": "q31_matmul"}
_NAMES = (*_PRODUCTS, "quantized_add", "quantized_mean")
_OPS = (*_NAMES, *(f"cpu.{name}" for name in _NAMES), "quantize")


class _Refused(Exception):
    """The reason why TFLite has no integer arithmetic for a node."""


def use_q31(graph: Graph, target: Target) -> Graph:
    """quantized_conv(%x, %w, %scale, %bias) {output_scale=s, ..}  ->  q31_conv(%x, %w, %multiplier, %bias, _, _, %shift) {low=.., high=.., ..}

    multiplier / 2^31 * 2^shift is scale / s, rounded as in TFLite's converter. A bias of real numbers is converted to
    integers, and the clamps of an epilogue become the bounds low and high. Sums, products and pooled means between
    dequantize and quantize become integer ops too. An op is kept if TFLite has no integer arithmetic for it, or if its
    constants are computed at run time. The decisions name each kept op and the reason.
    """  # noqa: E501
    counts = graph.use_counts()
    kept: list[Decision] = []

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        name = node.op.removeprefix("cpu.")
        try:
            if name in _PRODUCTS:
                return _product(node, inputs) if node.types[0].dtype in BYTES else None
            if name == "quantized_add":
                return _sum(node, inputs)
            if name == "quantized_mean":
                return _mean(node, inputs)
            return _requantised(node, inputs, counts)
        except _Refused as refused:
            kept.append(Decision("use_q31", node.where, "kept in ieee arithmetic", str(refused)))
            return None

    result = graph.rewrite(change, _OPS)
    if not kept and result is graph:
        kept.append(Decision("use_q31", "the graph", "unchanged", "no op is quantised as TFLite quantises"))
    return result.decided(*kept)


# ---- numbers ----


def _exact(value: Value | None) -> Array:
    """Returns a constant, or a product or quotient of constants, in fp64, before any rounding to fp32."""
    node = None if value is None else value.node
    if node is not None and node.op in ("mul", "div") and node.types[0].dtype is FP32:
        first, second = (_exact(v) for v in node.inputs)
        return first * second if node.op == "mul" else first / second
    folded = None if node is None else known(value) if node.op == "const" else fold_node(node)
    if isinstance(folded, tuple):
        folded = known(folded[0])
    if folded is None:
        raise _Refused("its scale is computed at run time, need a constant")
    return np.asarray(folded, np.float64)


def _multiplier(real: float) -> tuple[int, int]:
    if not 0 < real < np.inf:
        raise _Refused(f"got the multiplier {real}, need a positive number")
    try:
        return quantize_multiplier(real)
    except Error as error:
        raise _Refused(str(error)) from None


def _away(x: Array) -> Array:
    """Returns x rounded to integers, halves away from 0."""
    return np.sign(x) * np.floor(np.abs(x) + 0.5)


def _bounds(slots: Sequence[EpilogueSlot], output_scale: float, zero: int) -> dict[str, int]:
    """Returns the smallest and the largest integer that the clamps of the slots allow."""
    low, high = -np.inf, np.inf
    for slot in slots:
        if slot.op not in ("relu", "relu6", "clip"):
            raise _Refused(f"{slot.op} is applied to its sums before they are rounded, need a quantize before it")
        numbers = [float(value) for _, value in slot.attributes]
        least, most = {"relu": [0.0, np.inf], "relu6": [0.0, 6.0]}.get(slot.op, numbers)
        low, high = (min(max(bound, least), most) for bound in (low, high))
    steps = [
        float(_away(np.asarray(bound / output_scale))) + zero if np.isfinite(bound) else bound for bound in (low, high)
    ]
    return {"low": int(np.clip(steps[0], -128, 255)), "high": int(np.clip(steps[1], -128, 255))}


def _slots(node: Node) -> Sequence[EpilogueSlot]:
    slots: Sequence[EpilogueSlot] = node.attrs.get("epilogue", ())
    return slots


# ---- ops ----


def _product(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...]:
    x, weight, scale, bias, x_zero, weight_zero = inputs[:6]
    real, step = _exact(scale), float(node.attrs["output_scale"])
    attrs = {k: v for k, v in node.attrs.items() if k not in ("epilogue", "output_scale")}
    attrs |= _bounds(_slots(node), step, node.attrs["output_zero"])
    pairs = [_multiplier(float(number)) for number in np.atleast_1d(real / step)]
    multiplier, shift = (
        np.array(numbers, dtype).reshape(real.shape)
        for numbers, dtype in zip(zip(*pairs, strict=True), (np.int32, np.int8), strict=True)
    )
    if bias is not None and bias.dtype is not INT32:
        bias = _whole(bias, real)
    operands = [x, weight, constant(multiplier), bias, x_zero, weight_zero, constant(shift)]
    return apply(OPS[_PRODUCTS[node.op.removeprefix("cpu.")]], operands, attrs, node.sources)


def _whole(bias: Value, scale: Array) -> Value:
    """Returns a bias of real numbers as integers in units of the product's scale."""
    steps = _away(_exact(bias) / scale)
    if np.abs(steps).max(initial=0) >= 2**31:
        raise _Refused("its bias has more steps than int32 holds")
    return constant(steps.astype(np.int32))


def _sum(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...]:
    a = node.attrs
    twice = 2 * max(a["x_scale"], a["y_scale"])
    numbers = {
        "x": a["x_scale"] / twice,
        "y": a["y_scale"] / twice,
        "output": twice / (2.0**SUM_SHIFT * a["output_scale"]),
    }
    attrs = {name: a[name] for name in ("x_zero", "y_zero", "dtype", "output_zero")}
    for name, number in numbers.items():
        attrs[f"{name}_multiplier"], attrs[f"{name}_shift"] = _multiplier(number)
    attrs |= _bounds(_slots(node), a["output_scale"], a["output_zero"])
    return apply(OPS["q31_add"], inputs[:2], attrs, node.sources)


def _mean(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...]:
    """Divides the multiplier of a mean's scales by the number of its terms. The multiplier is shifted up first, to keep
    as many bits as possible."""
    x = inputs[0]
    assert x is not None
    a = node.attrs
    count = mean_terms(x.shape, a["axes"])
    multiplier, shift = _multiplier(a["x_scale"] / a["output_scale"])
    up = min(count.bit_length() - 1, 32, shift - LEAST_SHIFT)
    attrs = {name: a[name] for name in ("axes", "keep_dims", "x_zero", "dtype", "output_zero")}
    attrs |= {"multiplier": (multiplier << up) // count, "shift": shift - up}
    return apply(OPS["q31_mean"], [x], attrs, node.sources)


def _requantised(node: Node, inputs: tuple[Value | None, ...], counts: dict[Value, int]) -> tuple[Value, ...] | None:
    """Rewrites quantize(clip(mul(dequantize(%x), dequantize(%y)))), or quantize(avg_pool(dequantize(%x))), in
    integers."""
    to = grid(inputs[1], inputs[2]) if node.types[0].dtype in BYTES else None
    old, new = node.inputs[0], inputs[0]
    slots: list[EpilogueSlot] = []
    while old is not None and new is not None and counts[old] == 1 and (slot := activation(new.node)) is not None:
        slots.insert(0, slot)
        old, new = old.node.inputs[0], new.node.inputs[0]
    if to is None or old is None or new is None or counts[old] != 1:
        return None
    made: Callable[[Node, Grid, list[EpilogueSlot], Node], tuple[Value, ...] | None] | None
    made = {"mul": _scaled, "avg_pool": _pooled}.get(new.node.op)
    return None if made is None else made(new.node, to, slots, node)


def _scaled(maker: Node, to: Grid, slots: list[EpilogueSlot], node: Node) -> tuple[Value, ...] | None:
    x, y = (dequantized(v) for v in maker.inputs[:2])
    first, second = x and x.grid, y and y.grid
    if x is None or y is None or first is None or second is None:
        return None
    product = np.float32(first.scale) * np.float32(second.scale)  # TFLite multiplies the scales in fp32
    multiplier, shift = _multiplier(float(product / np.float32(to.scale)))
    attrs = {"x_zero": first.zero, "y_zero": second.zero, "multiplier": multiplier, "shift": shift}
    attrs |= _bounds(slots, to.scale, to.zero)
    stored = {"dtype": node.types[0].dtype, "output_zero": to.zero}
    return apply(OPS["q31_mul"], [x.value, y.value], {**attrs, **stored}, joined_sources(maker, node))


def _pooled(maker: Node, to: Grid, slots: list[EpilogueSlot], node: Node) -> tuple[Value, ...] | None:
    x = dequantized(maker.inputs[0])
    if x is None or x.grid is None:
        return None
    if x.grid != to or x.value.dtype is not node.types[0].dtype:
        raise _Refused("its input and its result have different scales or zero points, need the same")
    if not maker.attrs["exclude_padding"] and any(maker.attrs["pad"]):
        raise _Refused("its means count the padding, which TFLite's means leave out")
    if slots:
        raise _Refused("an activation follows it, need a quantize before the activation")
    attrs = {k: v for k, v in maker.attrs.items() if k != "exclude_padding"}
    return apply(OPS["q31_avg_pool"], [x.value], attrs, joined_sources(maker, node))

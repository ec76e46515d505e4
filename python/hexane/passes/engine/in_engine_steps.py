"""Expands layers into steps that have kernels in the chip's arithmetic; each step rounds to fp16."""

from collections.abc import Callable
from functools import partial
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from hexane.dtypes import FP16, FP32
from hexane.graph import EpilogueSlot, Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.ops.compose import Builder, Operand, cast, lift
from hexane.ops.records.engine.form import is_finished
from hexane.ops.records.engine.mac import deconv_attrs, sdpa_core, swapped_rows
from hexane.ops.records.engine.planar import REDUCTIONS
from hexane.ops.records.norm import expand_batch_norm
from hexane.ops.rewriter import Rewriter
from hexane.ops.slot_steps import run_chain
from hexane.passes.engine.chain import slots_of
from hexane.targets import Target

_KERNELS = {
    "anec.convolution": "conv", "anec.cross_correlation": "conv", "anec.matmul": "matmul", "anec.linear": "matmul", "anec.add": "add", "anec.sub": "sub", "anec.mul": "mul", "anec.div": "real_div",  # noqa: E501
}  # fmt: skip
_COMPOUND = ("anec.min_max_norm", "anec.dynamic_goc", "anec.scaled_elementwise")
_SCALED = ("quantize", "dequantize")  # scales stay fp32


def in_engine_steps(graph: Graph, target: Target) -> Graph:
    """anec.matmul(%x, %y, %gain) {epilogue=(gain_offset(gain=2, ..), post_activation(mode=relu, ..))}  ->  relu(mul(matmul(%x, %y), %gain))

    In programs in the chip's arithmetic, a layer that one kernel does not compute completely becomes steps in fp16.
    Each step is rounded unless the hardware is known not to round after it. A gain and its offset are rounded
    once together, and so are a reduction's squares, sum, gain and offset. Constants are fp16.
    """  # noqa: E501

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        op = OPS[node.op]
        if (
            not (op.takes_slots or node.op in _COMPOUND or node.op in _STEPS)
            or op.level != "engine"
            or op.expand is None
        ):
            return None
        if not any(v is not None and v.dtype is FP16 for v in inputs):
            return None
        steps = Steps(*node.sources)
        if node.op in _STEPS and (node.op != "anec.deconvolution" or node.types[0].rank == 4):
            return (_STEPS[node.op](steps, *inputs, **node.attrs),)
        if slots_of(node) and is_finished(_KERNELS.get(node.op, ""), inputs[:2], slots_of(node), inputs):
            return None
        result = op.expand(steps, *inputs, **node.attrs)
        return (result,) if isinstance(result, Value) else tuple(result)

    return graph.rewrite(change)


def _has_kernel(node: Node) -> bool:
    return bool(OPS[node.op].kernel)


class Steps(Rewriter):
    """Builds ops in fp16 even where an expansion asks for fp32, the accumulator's dtype."""

    __slots__ = ("_products",)

    def __init__(self, *sources: str) -> None:
        super().__init__(*sources, legal=_has_kernel)
        self._products: dict[Value, list[Value | None]] = {}  # operands: product and sum round once together

    def several(self, name: str, *inputs: Operand, **attrs: Any) -> tuple[Value, ...]:
        operands = lift(inputs, self.sources)
        if name == "cast" and attrs["dtype"] is FP32:
            return (self._narrow(operands[0]),)  # type: ignore[return-value]
        if name not in _SCALED:
            operands = [self._narrow(v) for v in operands]
        if name == "add" and operands[0] in self._products:
            product = self._apply("mul", *(self._wide(v) for v in self._products[operands[0]]))
            return (cast(self, self._apply("add", product, self._wide(operands[1])), FP16),)
        values = super().several(name, *operands, **attrs)
        if name == "mul":
            self._products[values[0]] = operands
        return values

    def wide(self, name: str, *inputs: Operand, **attrs: Any) -> Value:
        """Applies the op in fp32 without rounding its result to fp16. Constants are still rounded to fp16."""
        operands = [v if v is None or v.node.op != "const" else self._narrow(v) for v in lift(inputs, self.sources)]
        return self._apply(name, *(self._wide(v) for v in operands), **attrs)

    def _apply(self, name: str, *operands: Value | None, **attrs: Any) -> Value:
        (value,) = apply(OPS[name], operands, attrs, self.sources)
        return value

    def _narrow(self, x: Value | None) -> Value | None:
        return x if x is None or x.dtype is not FP32 else apply(OPS["cast"], [x], {"dtype": FP16}, self.sources)[0]

    def _wide(self, x: Value | None) -> Value | None:
        return x if x is None or x.dtype is FP32 else apply(OPS["cast"], [x], {"dtype": FP32}, self.sources)[0]


# ---- layers that round at other steps than their record's expansion ----


def _softmax(b: Builder, x: Value, axis: int) -> Value:
    return b.softmax(x, axis=axis)


def _sdpa(b: Builder, *inputs: Value | None, subtract_max: bool, **attrs: Any) -> Value:
    if subtract_max:
        attend = partial(b.apply, "scaled_dot_product_attention")
        result = sdpa_core(attend, *inputs, turn=partial(swapped_rows, b), **attrs)
    else:
        result = OPS["anec.sdpa"].expand(b, *inputs, subtract_max=subtract_max, **attrs)  # type: ignore[misc]
    assert isinstance(result, Value)
    return result


def _instance_norm(b: Builder, x: Value, gamma: Value | None, beta: Value | None, epsilon: float, layout: str) -> Value:
    """Computes an instance norm as a group norm with one channel per group."""
    assert layout == "nchw"
    result = OPS["group_norm"].expand(b, x, gamma, beta, num_groups=x.shape[1], epsilon=epsilon)  # type: ignore[misc]
    assert isinstance(result, Value)
    return result


def _reduction(
    b: Builder,
    *inputs: Value | None,
    kind: str,
    operand: str,
    axes: tuple[int, ...],
    keep_dims: bool,
    epilogue: tuple[EpilogueSlot, ...],
    rounds: tuple[str, ...],
) -> Value:
    """Rounds the squares or magnitudes, their sum, and a directly following gain and offset once together."""
    assert isinstance(b, Steps)
    affine = dict(epilogue[0].attributes) if epilogue and epilogue[0].op == "gain_offset" else None
    if kind not in ("sum", "avg") or (operand == "none" and affine is None) or "accumulate" in rounds:
        result = OPS["anec.reduction"].expand(
            b, *inputs, kind=kind, operand=operand, axes=axes, keep_dims=keep_dims, epilogue=epilogue, rounds=rounds
        )  # type: ignore[misc]
        assert isinstance(result, Value)
        return result
    x = inputs[0]
    if operand != "none":
        x = b.wide("mul", x, x) if operand == "sqr" else b.wide("abs", x)
    y = b.wide(REDUCTIONS[kind], x, axes=axes, keep_dims=keep_dims)
    if affine is not None:
        for name, op in (("gain", "mul"), ("offset", "add")):
            if affine[name] >= 0:
                y = b.wide(op, y, _along(b, inputs[affine[name]], len(y.shape) - 1 - affine["axis"]))
        epilogue = epilogue[1:]
    return run_chain(b, cast(b, y, FP16), epilogue, inputs, rounds, FP16)  # type: ignore[no-any-return]


def _along(b: Builder, constant: Value | None, trailing: int) -> Value | None:
    """Reshapes a vector along an axis for broadcasting; `trailing` is the number of axes after it. A scalar is returned
    unchanged."""
    return constant if constant is None or not constant.shape else b.reshape(constant, shape=(-1, *[1] * trailing))


def _l2_norm(b: Builder, x: Value, axes: tuple[int, ...], epsilon: float) -> Value:
    """Multiplies x by the rsqrt of its sum of squares plus epsilon. The chip holds the sum with the precision of fp16
    but a wider exponent. If the sum overflows fp16, the rsqrt table reads sum * 2^-16 or sum * 2^-32, and the product
    is multiplied by 2^-8 or 2^-16 to compensate.
    """
    assert isinstance(b, Steps)
    total = b.wide("reduce_sum", b.wide("mul", x, x), axes=axes, keep_dims=True)
    total = b.wide("add", total, b.const(np.array(epsilon, np.float32)))
    narrow = cast(b, total, FP16)
    root, down, fits = b.rsqrt(narrow), b.const(np.float16(1)), b.less(narrow, np.inf)
    for scale in (2.0**-8, 2.0**-16):
        total = b.wide("mul", total, 2.0**-16)
        narrow = cast(b, total, FP16)
        root, down = b.select(fits, root, b.rsqrt(narrow)), b.select(fits, down, b.const(np.float16(scale)))
        fits = b.less(narrow, np.inf)
    return b.mul(b.mul(x, root), down)


def _over_root(b: Builder, x: Value, v: Value) -> Value:
    return b.mul(x, b.rsqrt(v))


def _deconvolution(
    b: Builder, *inputs: Value | None, epilogue: tuple[EpilogueSlot, ...], rounds: tuple[str, ...], **attrs: Any
) -> Value:
    """Computes a transposed convolution as one convolution per phase. A phase is the set of output pixels with equal
    remainders modulo the strides, which use the same taps.

    The accumulators start from the bias, as in a convolution.
    """
    x, weight = inputs[:2]
    assert x is not None
    assert weight is not None
    bias = None
    if epilogue and epilogue[0].op == "gain_offset" and is_finished("conv_transpose", inputs[:2], epilogue[:1], inputs):
        bias, epilogue = inputs[dict(epilogue[0].attributes)["offset"]], epilogue[1:]
    groups, (inner, outer, *kernel) = attrs["groups"], weight.shape
    out = OPS["conv_transpose"].shape(x.shape, weight.shape, None, **deconv_attrs(attrs))[2:]
    by_output = b.reshape(weight, shape=(groups, inner // groups, outer, *kernel))
    by_output = b.reshape(
        b.transpose(by_output, perm=(0, 2, 1, 3, 4)), shape=(groups * outer, inner // groups, *kernel)
    )
    strides, rates, pads = attrs["strides"], attrs["dilation_rates"], attrs["explicit_padding"][::2]
    axes = [
        [_phase(r, *axis) for r in range(axis[1])]
        for axis in zip(x.shape[2:], strides, rates, pads, kernel, out, strict=True)
    ]
    rows = []
    for row in axes[0]:
        columns = [b.conv(*_phase_operands(b, x, by_output, row, column), bias, dilations=(row.rate, column.rate), groups=groups)  # noqa: E501
                   for column in axes[1]]  # fmt: skip
        n, c, h, w = columns[0].shape
        rows.append(_side_by_side(b, [b.reshape(y, shape=(n, c, h, 1, w, 1)) for y in columns], 5))
    y = _side_by_side(b, rows, 3)
    y = b.reshape(y, shape=(n, c, h * strides[0], w * strides[1]))
    y = y if y.shape[2:] == out else b.slice_by_index(y, begin=(0, 0, 0, 0), end=(n, c, *out))
    return run_chain(b, y, epilogue, inputs, rounds, FP16)  # type: ignore[no-any-return]


class _Phase(NamedTuple):
    """One phase of a stride along one axis: its taps (of the reversed kernel), the spacing of the inputs that they
    read, and the padding before and after. The outputs of a phase without taps are zero."""

    taps: range
    rate: int
    before: int
    after: int


def _phase(r: int, extent: int, stride: int, rate: int, pad: int, kernel: int, out: int) -> _Phase:
    taps = [t for t in range(kernel) if (r + pad - t * rate) % stride == 0]
    count = -(-out // stride)
    if not taps:
        return _Phase(range(0), 1, 0, count - extent)
    step, first = stride // gcd(stride, rate), (r + pad - taps[-1] * rate) // stride
    rate = rate // gcd(stride, rate)
    last = first + rate * (len(taps) - 1) + count - 1
    return _Phase(range(taps[-1], taps[0] - 1, -step), rate, -first, last - (extent - 1))


def _phase_operands(b: Builder, x: Value, weight: Value, row: _Phase, column: _Phase) -> tuple[Value, Value]:
    x = b.pad(x, begin=(0, 0, row.before, column.before), end=(0, 0, row.after, column.after))
    for axis, phase in ((2, row), (3, column)):
        if phase.taps:
            weight = b.gather(weight, b.const(np.array(phase.taps)), axis=axis)
        else:
            shape = [1 if i == axis else e for i, e in enumerate(weight.shape)]
            weight = b.const(np.zeros(shape, np.float16))
    return x, weight


def _side_by_side(b: Builder, values: list[Value], axis: int) -> Value:
    return values[0] if len(values) == 1 else b.concat(*values, axis=axis)


_STEPS: dict[str, Callable[..., Value]] = {
    "anec.softmax": _softmax,
    "anec.sdpa": _sdpa,
    "anec.instance_norm": _instance_norm,
    "anec.reduction": _reduction,
    "anec.l2_norm": _l2_norm,
    "anec.batch_norm": partial(expand_batch_norm, over_root=_over_root),
    "anec.deconvolution": _deconvolution,
}

"""A transposed convolution as steps: one convolution for each phase of its strides."""

from math import gcd
from typing import Any, NamedTuple

import numpy as np

from hexane.dtypes import FP16
from hexane.graph import EpilogueSlot, Value
from hexane.ops import OPS
from hexane.ops.compose import Builder
from hexane.ops.records.engine.convolution import deconv_attrs
from hexane.ops.records.engine.form import is_finished
from hexane.ops.slot_steps import run_chain


def deconvolution(
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

"""onnxruntime's ops on quantised tensors (domain com.microsoft). Elementwise ops, pools and similar ones are imported
between DequantizeLinear and QuantizeLinear, which the compiler fuses into integer kernels. Products are sums of
integers."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hexane.dtypes import FP32, INT32
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.onnx.foreign import MICROSOFT
from hexane.importers.onnx.handlers import quantization
from hexane.importers.onnx.handlers.microsoft_fused import CONVOLUTION, WINDOWS, channels_first, channels_last
from hexane.importers.onnx.handlers.quantization import centred, integer_product, product_fits, vector
from hexane.importers.onnx.node import Builder, OnnxNode, Result, axis_of
from hexane.importers.onnx.registry import domain_op
from hexane.importers.onnx.standard import given, several, standard
from hexane.ops.compose import cast


def real(b: Builder, n: OnnxNode, index: int) -> Value:
    """Dequantises an input by the scale and zero point that follow it."""
    return standard(b, n, "DequantizeLinear", n.value(index), n.value(index + 1), n.optional(index + 2))


def _stored(b: Builder, n: OnnxNode, x: Value, index: int, like: int = 0) -> Value:
    """Quantises x by the scale and zero point at an index. Without a zero point the dtype is that of input `like`."""
    zero = n.optional(index + 1)
    if zero is None:
        zero = b.const(np.zeros((), n.value(like).dtype.numpy))
    return standard(b, n, "QuantizeLinear", x, n.value(index), zero)


@domain_op(MICROSOFT, "QuantizeLinear", inputs=(2, 3), attributes={"axis": 1})
def quantize_linear(b: Builder, n: OnnxNode) -> Result:
    return standard(b, n, "QuantizeLinear", n.value(0), n.value(1), n.optional(2), axis=n.attrs["axis"])


@domain_op(MICROSOFT, "DequantizeLinear", inputs=(2, 3), attributes={"axis": 1})
def dequantize_linear(b: Builder, n: OnnxNode) -> Result:
    return standard(b, n, "DequantizeLinear", n.value(0), n.value(1), n.optional(2), axis=n.attrs["axis"])


@domain_op(MICROSOFT, "QLinearAdd", "QLinearMul", inputs=(7, 8), attributes={})
def binary(b: Builder, n: OnnxNode) -> Result:
    result = {"QLinearAdd": b.add, "QLinearMul": b.mul}[n.op](real(b, n, 0), real(b, n, 3))
    return _stored(b, n, result, 6)


@domain_op(MICROSOFT, "QLinearSigmoid", inputs=(4, 5), attributes={})
def sigmoid(b: Builder, n: OnnxNode) -> Result:
    return _stored(b, n, b.sigmoid(real(b, n, 0)), 3)


@domain_op(MICROSOFT, "QLinearLeakyRelu", inputs=(4, 5), attributes={"alpha": 0.01})
def leaky_relu(b: Builder, n: OnnxNode) -> Result:
    return _stored(b, n, b.leaky_relu(real(b, n, 0), alpha=n.attrs["alpha"]), 3)


_POOL = {**WINDOWS, "ceil_mode": 0, "count_include_pad": 0}


@domain_op(MICROSOFT, "QLinearAveragePool", inputs=(4, 5), attributes={**_POOL, "channels_last": 0})
def average_pool(b: Builder, n: OnnxNode) -> Result:
    options = given(n, list(_POOL))
    return _by_channels(b, n, lambda x: standard(b, n, "AveragePool", x, **options))


@domain_op(MICROSOFT, "QLinearGlobalAveragePool", inputs=(5, 5), attributes={"channels_last": 0})
def global_average_pool(b: Builder, n: OnnxNode) -> Result:
    return _by_channels(b, n, lambda x: standard(b, n, "GlobalAveragePool", x))


def _by_channels(b: Builder, n: OnnxNode, pool: Callable[[Value], Value]) -> Value:
    """Returns the pooled image. channels_last: channels are its last axis."""
    x = real(b, n, 0)
    pooled = channels_last(b, pool(channels_first(b, x))) if n.attrs["channels_last"] else pool(x)
    return _stored(b, n, pooled, 3)


@domain_op(
    MICROSOFT, "QLinearReduceMean", inputs=(4, 5), attributes={"axes": tuple[int, ...], "keepdims": 1},
    required=("axes",),
)  # fmt: skip
def reduce_mean(b: Builder, n: OnnxNode) -> Result:
    result = b.reduce_mean(real(b, n, 0), axes=n.attrs["axes"], keep_dims=bool(n.attrs["keepdims"]))
    return _stored(b, n, result, 3)


@domain_op(MICROSOFT, "QLinearConcat", inputs=(5, 1 << 16), attributes={"axis": int}, required=("axis",))
def concat(b: Builder, n: OnnxNode) -> Result:
    """Concatenates tensors. The inputs are scale and zero point of the result, then three for each tensor."""
    if len(n.inputs) % 3 != 2:
        raise Error(f"got {len(n.inputs)} inputs, need a scale, a zero point, and 3 for each tensor")
    parts = [real(b, n, i) for i in range(2, len(n.inputs), 3)]
    return _stored(b, n, b.concat(*parts, axis=n.attrs["axis"]), 0, like=2)


@domain_op(
    MICROSOFT, "QLinearSoftmax", inputs=(5, 5), attributes={"axis": -1, "opset": int}, required=("opset",)
)  # fmt: skip
def softmax(b: Builder, n: OnnxNode) -> Result:
    """Returns softmax, before opset 13 over all axes from `axis` on, later over one axis. onnxruntime's kernel rounds
    the inverse of the scale down to a whole number of steps."""
    x = real(b, n, 0)
    axis = axis_of(n.attrs["axis"], len(x.shape))
    if n.attrs["opset"] >= 13:
        shares = b.softmax(x, axis=axis)
    else:
        shares = b.reshape(b.softmax(b.reshape(x, shape=(*x.shape[:axis], -1)), axis=-1), shape=x.shape)
    whole = b.real_div(1.0, b.floor(b.real_div(1.0, n.value(3))))
    return standard(b, n, "QuantizeLinear", shares, whole, n.value(4))


@domain_op(MICROSOFT, "QLinearWhere", inputs=(9, 9), attributes={})
def where(b: Builder, n: OnnxNode) -> Result:
    return _stored(b, n, b.select(n.value(0), real(b, n, 1), real(b, n, 4)), 7, like=1)


@domain_op(MICROSOFT, "QLinearConv", inputs=(8, 9), attributes={**CONVOLUTION, "channels_last": 0})
def conv(b: Builder, n: OnnxNode) -> Result:
    last, options = n.attrs["channels_last"], given(n, list(CONVOLUTION))
    x = channels_first(b, n.value(0)) if last else n.value(0)
    rest = [n.optional(i) for i in range(1, len(n.inputs))]
    out = standard(b, n, "QLinearConv", x, *rest, **options)
    return channels_last(b, out) if last else out


def scaled_product(
    b: Builder,
    x: Value,
    y: Value,
    scales: tuple[Value, Value],
    zeros: tuple[Value | None, Value | None],
    bias: Value | None = None,
    factor: float = 1.0,
) -> Value:
    """Returns the product of integers times both scales, in fp32, plus a bias. Scale and zero point of y are single
    numbers, or have one number per column. An int32 bias is added to the integer sums, any other bias to the result."""
    first, second = (b.reshape(s, shape=()) if s.type.size == 1 else s for s in scales)
    ratio = b.mul(cast(b, first, FP32), cast(b, second, FP32))
    if factor != 1:
        ratio = b.mul(ratio, factor)
    out: Value
    if product_fits(x, zeros[0], y, zeros[1], -1) and len(ratio.shape) < 2:
        flat = None if bias is None or bias.shape != y.shape[-1:] else bias
        operands = vector(b, zeros[0]), vector(b, zeros[1])
        if flat is not None or bias is None or bias.dtype is not INT32:
            out = b.quantized_matmul(x, y, ratio, flat, *operands, dtype=FP32)
            return out if bias is flat else b.add(out, bias)
    if len(y.shape) > 2 and second.shape and len(second.shape) == 2:  # each column of a matrix has its own scale
        ratio = b.reshape(ratio, shape=(*second.shape[:-1], 1, second.shape[-1]))
    total = integer_product(b, centred(b, x, zeros[0], -2), _columns_centred(b, y, zeros[1]))
    if bias is not None and bias.dtype is INT32:
        total, bias = b.add(total, bias), None
    out = b.mul(cast(b, total, FP32), ratio)
    return out if bias is None else b.add(out, bias)


def _columns_centred(b: Builder, y: Value, zero: Value | None) -> Value:
    if zero is not None and len(zero.shape) == 2 and zero.type.size > 1:
        zero = b.reshape(zero, shape=(*zero.shape[:-1], 1, zero.shape[-1]))
        result: Value = b.sub(cast(b, y, FP32), cast(b, zero, FP32))
        return result
    result = centred(b, y, zero, -1)
    return result


@domain_op(MICROSOFT, "MatMulIntegerToFloat", inputs=(4, 7), attributes={})
def matmul_integer_to_float(b: Builder, n: OnnxNode) -> Result:
    scales, zeros = (n.value(2), n.value(3)), (n.optional(4), n.optional(5))
    return scaled_product(b, n.value(0), n.value(1), scales, zeros, n.optional(6))


@domain_op(MICROSOFT, "DynamicQuantizeMatMul", inputs=(3, 5), attributes={})
def dynamic_quantize_matmul(b: Builder, n: OnnxNode) -> Result:
    """Multiplies. A is quantised to uint8 by its range, as in DynamicQuantizeLinear."""
    x, scale, zero = dynamically_quantised(b, n.value(0))
    return scaled_product(b, x, n.value(1), (scale, n.value(2)), (zero, n.optional(3)), n.optional(4))


def dynamically_quantised(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """Returns x in uint8, its scale and its zero point."""
    low, high = b.minimum(b.reduce_min(x, keep_dims=False), 0.0), b.maximum(b.reduce_max(x, keep_dims=False), 0.0)
    scale = b.real_div(b.sub(high, low), 255.0)
    scale = b.select(b.equal(scale, 0.0), b.const(np.float32(1)), scale)  # the scale is 0 if x is all zeros
    zero = b.round(b.clip(b.real_div(b.neg(low), scale), alpha=0.0, beta=255.0))
    zero = cast(b, zero, quantization.UINT8)
    return b.quantize(x, scale, zero, dtype=quantization.UINT8), scale, zero


@domain_op(MICROSOFT, "MatMulInteger16", inputs=(2, 2), attributes={})
def matmul_integer16(b: Builder, n: OnnxNode) -> Result:
    """Returns the int32 product of 16-bit integers."""
    x, y = n.value(0), n.value(1)
    return standard(b, n, "MatMul", cast(b, x, INT32), cast(b, y, INT32))


@domain_op(MICROSOFT, "QGemm", inputs=(6, 9), attributes={"alpha": 1.0, "transA": 0, "transB": 0})
def qgemm(b: Builder, n: OnnxNode) -> Result:
    """Returns alpha * (A @ B + C). C is int32 with the product's scale. The result is quantised if y_scale is given,
    else fp32."""
    x, y = n.value(0), n.value(3)
    if len(x.shape) != 2 or len(y.shape) != 2:
        raise Error(f"got the shapes {x.shape} and {y.shape}, need matrices")
    x = b.transpose(x, perm=(1, 0)) if n.attrs["transA"] else x
    y = b.transpose(y, perm=(1, 0)) if n.attrs["transB"] else y
    bias = n.optional(6)
    if bias is not None and bias.type.size == y.shape[-1]:
        bias = b.reshape(bias, shape=(y.shape[-1],))
    scales, zeros, alpha = (n.value(1), n.value(4)), (n.value(2), n.value(5)), n.attrs["alpha"]
    if not n.has(7):
        return scaled_product(b, x, y, scales, zeros, bias, alpha)
    stored: dict[str, Any] | None = quantization.stored_as(n.value(1), n.value(4), n.value(7), n.value(8), y.shape[-1])
    if stored is not None and product_fits(x, zeros[0], y, zeros[1], -1) and (bias is None or len(bias.shape) == 1):
        ratio = quantization.ratio_of(b, *scales, n.value(7))
        ratio = ratio if alpha == 1 else b.mul(ratio, alpha)
        return b.quantized_matmul(x, y, ratio, bias, vector(b, zeros[0]), vector(b, zeros[1]), **stored)
    return _stored(b, n, scaled_product(b, x, y, scales, zeros, bias, alpha), 7)


_LSTM = {
    "activation_alpha": tuple[float, ...],
    "activation_beta": tuple[float, ...],
    "activations": tuple[str, ...],
    "clip": float,
    "direction": "forward",
    "hidden_size": int,
    "input_forget": 0,
}


@domain_op(MICROSOFT, "DynamicQuantizeLSTM", inputs=(12, 12), attributes=_LSTM)
def dynamic_quantize_lstm(b: Builder, n: OnnxNode) -> Result:
    """Returns an LSTM whose weights are transposed integers: W (directions, input, 4 * hidden). onnxruntime rounds
    inputs and state to 8 bits in each step; Hexane does not."""
    weights = []
    for i, scale in ((1, 8), (2, 10)):
        whole, factor, zero = n.value(i), n.value(scale), n.optional(scale + 1)
        wide = cast(b, whole, FP32)
        if zero is not None:
            wide = b.sub(wide, cast(b, _by_direction(b, zero, whole), FP32))
        weights.append(b.transpose(b.mul(wide, _by_direction(b, factor, whole)), perm=(0, 2, 1)))
    options = given(n, list(_LSTM))
    operands = [n.value(0), *weights, *(n.optional(i) for i in range(3, 8))]
    return list(several(b, n, "LSTM", *operands, **options))


def _by_direction(b: Builder, v: Value, weight: Value) -> Value:
    """Reshapes a scale or zero point, which is given for each direction, or for each direction and column."""
    if v.type.size not in (weight.shape[0], weight.shape[0] * weight.shape[2]):
        raise Error(f"got a scale or zero point of shape {v.shape} for a weight {weight.shape}, need one per direction")
    result: Value = b.reshape(v, shape=(weight.shape[0], 1, -1))
    return result

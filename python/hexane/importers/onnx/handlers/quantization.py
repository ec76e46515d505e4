"""Quantised tensors and integer products, as quantised ops of the catalogue if these support the operands, else as
exact fp32 arithmetic.

A product of two centred 8-bit integers is at most 255 * 255, so fp32 sums 256 of them exactly. Longer sums of
matrix products are split, and the parts are added in int32. Longer int32 sums of convolutions need a quantised op. Sums
of MatMulInteger and ConvInteger, whose result is int32, may overflow, as ONNX allows. The results of QLinearMatMul and
QLinearConv have 8 bits, so their sums are computed in floats if they might overflow int32.
"""

from math import prod

import numpy as np

from hexane.dtypes import DTYPES, FP16, FP32, FP64, INT32, DType
from hexane.errors import Error
from hexane.graph import Value, constant
from hexane.importers.onnx.encoded import decode_blocks
from hexane.importers.onnx.handlers.windows import convolution_options, read_by_windows
from hexane.importers.onnx.node import Builder, OnnxNode, Result, axis_of
from hexane.importers.onnx.registry import onnx_op
from hexane.importers.onnx.tensors import element_type
from hexane.ops import OPS, apply
from hexane.ops.compose import cast

EXACT_TERMS = 256
INT32_LIMIT = 2**31 - 1
INT8, UINT8 = DTYPES["int8"], DTYPES["uint8"]
BYTES = (INT8, UINT8)
QUANTISED = (*BYTES, DTYPES["int16"], DTYPES["uint16"])
NIBBLES = {DTYPES["int4"]: INT8, DTYPES["uint4"]: UINT8}


@onnx_op("QuantizeLinear", ignores=("saturate",))
def quantize_linear(b: Builder, n: OnnxNode) -> Result:
    x, scale, zero = n.value(0), n.value(1), n.optional(2)
    kind = zero.dtype if zero is not None else UINT8
    if n.attrs.get("output_dtype", 0):
        kind = element_type(n.attrs["output_dtype"])
        if zero is not None and zero.dtype is not kind:
            raise Error(f"output_dtype: got {kind} beside a zero point of {zero.dtype}, need the same")
    precision = FP32 if x.dtype.kind != "float" or scale.dtype is FP32 else x.dtype
    if n.attrs.get("precision", 0):
        precision = element_type(n.attrs["precision"])
    if kind in BYTES and precision is FP32 and not n.attrs.get("block_size", 0):
        whole = x if x.dtype is FP16 else cast(b, x, FP32)
        return b.quantize(whole, *_vectors(b, n, x, scale, zero), axis=_axis(n, x, scale), dtype=kind)
    scale = _spread(b, n, scale, x)
    zero = None if zero is None else _spread(b, n, zero, x)
    return quantised(b, b.real_div(cast(b, x, precision), cast(b, scale, precision)), zero, kind)


def _axis(n: OnnxNode, x: Value, scale: Value) -> int:
    axis = n.attrs.get("axis", 1)
    return 0 if scale.type.size == 1 else axis_of(axis, len(x.shape))


def _vectors(b: Builder, n: OnnxNode, x: Value, scale: Value, zero: Value | None) -> tuple[Value, Value | None]:
    """Returns the scale in fp32 and the zero point, each a scalar or a vector along an axis. A zero point of 0 is
    returned as None."""
    shape = () if scale.type.size == 1 else (x.shape[_axis(n, x, scale)],)
    for v in (scale, zero):
        if v is not None and v.shape != shape and (shape or v.type.size != 1):
            raise Error(f"got a scale or zero point of shape {v.shape}, need {shape}")
    if zero is not None and zero.node.data is not None and not zero.node.data.any():
        zero = None
    return cast(b, b.reshape(scale, shape=shape), FP32), None if zero is None else b.reshape(zero, shape=shape)


def quantised(b: Builder, x: Value, zero: Value | None, kind: DType) -> Result:
    """Returns x, which is in units of the scale, as quantised integers: rounded half to even, moved by the zero point
    and saturated."""
    if kind not in QUANTISED:
        raise Error(f"got the quantised dtype {kind}, need int8, uint8, int16 or uint16")
    x = cast(b, b.round(x), FP32)
    if zero is not None:
        x = b.add(x, cast(b, zero, FP32))
    info = np.iinfo(kind.numpy)
    return cast(b, b.clip(x, alpha=float(info.min), beta=float(info.max)), kind)


@onnx_op("DequantizeLinear")
def dequantize_linear(b: Builder, n: OnnxNode) -> Result:
    """Dequantises x. A `dequantize` of constants is not folded, because the pass `fold_qdq` needs the integers."""
    x, scale, zero = n.value(0), n.value(1), n.optional(2)
    if x.dtype in NIBBLES:
        x, zero = _wide(x), None if zero is None else _wide(zero)
    if x.dtype not in (*QUANTISED, INT32):
        raise Error(f"got the quantised dtype {x.dtype}, need int8, uint8, int16, uint16, int32 or constants of 4 bits")
    kind = scale.dtype
    if n.attrs.get("output_dtype", 0):
        kind = element_type(n.attrs["output_dtype"])
    if kind in (FP32, FP16) and not n.attrs.get("block_size", 0):
        attrs = {"axis": _axis(n, x, scale), "dtype": kind}
        return apply(OPS["dequantize"], [x, *_vectors(b, n, x, scale, zero)], attrs, b.sources)[0]
    block = n.attrs.get("block_size", 0)
    if block and (zero is None or (zero.node.data is not None and not zero.node.data.any())):
        stored = decode_blocks(x, scale, axis_of(n.attrs.get("axis", 1), len(x.shape)), block, kind)
        if stored is not None:
            return stored
    wide = cast(b, x, FP32)
    if zero is not None:
        wide = b.sub(wide, cast(b, _spread(b, n, zero, x), FP32))
    return cast(b, b.mul(wide, cast(b, _spread(b, n, scale, x), FP32)), kind)


def _wide(x: Value) -> Value:
    """Converts a constant of 4-bit integers to 8 bits."""
    if x.node.data is None:
        raise Error(f"got {x.dtype} computed at run time, need a constant")
    return constant(x.node.data.astype(NIBBLES[x.dtype].numpy), x.node.sources)


def _spread(b: Builder, n: OnnxNode, v: Value, x: Value) -> Result:
    """Reshapes a scale or zero point (for the tensor, for each index of an axis, or for each block along an axis) to
    broadcast over x."""
    block, axis = n.attrs.get("block_size", 0), n.attrs.get("axis", 1)
    if v.type.size == 1 and not block:
        return b.reshape(v, shape=())
    axis = axis_of(axis, len(x.shape))
    if not block:
        if v.shape != (x.shape[axis],):
            raise Error(f"got a scale or zero point of shape {v.shape}, need ({x.shape[axis]},)")
        return b.reshape(v, shape=[d if i == axis else 1 for i, d in enumerate(x.shape)])
    need = tuple(-(-d // block) if i == axis else d for i, d in enumerate(x.shape))
    if block < 0 or v.shape != need:
        raise Error(f"got a scale or zero point of shape {v.shape} for blocks of {block}, need {need}")
    deep = b.reshape(v, shape=(*need[: axis + 1], 1, *need[axis + 1 :]))
    wide = b.broadcast_to(deep, shape=(*need[: axis + 1], block, *need[axis + 1 :]))
    whole = b.reshape(wide, shape=(*need[:axis], need[axis] * block, *need[axis + 1 :]))
    return b.slice_by_index(whole, begin=(0,) * len(need), end=x.shape)


def centred(b: Builder, x: Value, zero: Value | None, axis: int) -> Result:
    """Returns x - zero in fp32. A vector of zero points belongs to an axis of x."""
    if x.dtype not in (INT8, UINT8):
        raise Error(f"got {x.dtype}, need int8 or uint8")
    wide = cast(b, x, FP32)
    if zero is None:
        return wide
    if zero.type.size == 1:
        zero = b.reshape(zero, shape=())
    elif len(zero.shape) == 1:
        zero = b.reshape(zero, shape=[-1 if i == axis % len(x.shape) else 1 for i in range(len(x.shape))])
    return b.sub(wide, cast(b, zero, FP32))


def integer_product(b: Builder, x: Value, y: Value) -> Value:
    """Returns the int32 product of two fp32 tensors of integers, whose elements are at most 255."""
    if len(x.shape) < 2 or len(y.shape) < 2 or x.shape[-1] != y.shape[-2]:
        raise Error(f"got the shapes {x.shape} and {y.shape}, need matrices that can be multiplied")
    total: Value | None = None
    for start in range(0, max(x.shape[-1], 1), EXACT_TERMS):
        stop = min(start + EXACT_TERMS, x.shape[-1])
        piece = cast(b, b.matmul(_cut(b, x, -1, start, stop), _cut(b, y, -2, start, stop)), INT32)
        total = piece if total is None else b.add(total, piece)
    assert total is not None
    return total


def _cut(b: Builder, x: Value, axis: int, start: int, stop: int) -> Result:
    begin, end = [0] * len(x.shape), list(x.shape)
    begin[axis], end[axis] = start, stop
    return x if stop - start == x.shape[axis] else b.slice_by_index(x, begin=begin, end=end)


@onnx_op("MatMulInteger")
def matmul_integer(b: Builder, n: OnnxNode) -> Result:
    """Multiplies. a has one zero point or one per row, b has one or one per column."""
    x, y, x_zero, y_zero = n.value(0), n.value(1), n.optional(2), n.optional(3)
    if product_fits(x, x_zero, y, y_zero, -1):
        return b.quantized_matmul(x, y, None, None, vector(b, x_zero), vector(b, y_zero), dtype=INT32)
    return integer_product(b, centred(b, x, x_zero, -2), centred(b, y, y_zero, -1))


@onnx_op("QLinearMatMul")
def qlinear_matmul(b: Builder, n: OnnxNode) -> Result:
    x, x_scale, x_zero, y, y_scale, y_zero, out_scale, out_zero = (n.value(i) for i in range(8))
    small = _fit_int32(x, x_zero, y, y_zero, -2)
    if (
        small
        and product_fits(x, x_zero, y, y_zero, -1)
        and _requantises(x_scale, y_scale, out_scale, out_zero, y.shape[-1])
    ):
        operands = vector(b, x_zero), vector(b, y_zero)
        ratio = ratio_of(b, x_scale, y_scale, out_scale)
        return b.quantized_matmul(x, y, ratio, None, *operands, **_stored(out_zero))
    first, second = centred(b, x, x_zero, -2), centred(b, y, y_zero, -1)
    # fp64 sums are exact
    total = integer_product(b, first, second) if small else b.matmul(cast(b, first, FP64), cast(b, second, FP64))
    scales = [_per_line(b, v, at) for v, at in ((x_scale, -2), (y_scale, -1), (out_scale, -2))]
    return _requantised(b, total, scales, _per_line(b, out_zero, -2))


def product_fits(x: Value, x_zero: Value | None, y: Value, y_zero: Value | None, axis: int) -> bool:
    """True if a quantised product supports these operands: matrices or images, one zero point for x, one or a vector
    for y."""
    if x.dtype not in BYTES or y.dtype not in BYTES or min(len(x.shape), len(y.shape)) < 2:
        return False
    if x_zero is not None and x_zero.type.size != 1:
        return False
    return y_zero is None or y_zero.type.size == 1 or y_zero.shape == (y.shape[axis],)


def _fit_int32(
    x: Value, x_zero: Value, y: Value, y_zero: Value, axis: int | tuple[int, ...], bias: Value | None = None
) -> bool:
    """True if no sum of products over these axes of y, plus the bias, can exceed int32."""
    axes = (axis,) if isinstance(axis, int) else axis
    if x.dtype not in BYTES or y.dtype not in BYTES or len(y.shape) < 2:
        return True  # other operands are refused later
    terms = prod(y.shape[a] for a in axes)
    largest = terms * _farthest(y, y_zero)
    if (
        terms * 255 * 255 > INT32_LIMIT
        and y.node.data is not None
        and y_zero.node.data is not None
        and y_zero.type.size == 1
    ):
        largest = int(np.abs(y.node.data.astype(np.int64) - int(y_zero.node.data.ravel()[0])).sum(axis).max(initial=0))
    added = 0
    if bias is not None and bias.node.data is not None:
        added = int(np.abs(bias.node.data.astype(np.int64)).max(initial=0))
    return largest * _farthest(x, x_zero) + added <= INT32_LIMIT


def _farthest(x: Value, zero: Value) -> int:
    """Returns the largest |x - zero| that x's dtype allows."""
    info, data = np.iinfo(x.dtype.numpy), zero.node.data
    if data is None or not data.size:
        return int(info.max) - int(info.min)
    return max(int(info.max) - int(data.min()), int(data.max()) - int(info.min))


def _requantises(x_scale: Value, y_scale: Value, out_scale: Value, out_zero: Value, columns: int) -> bool:
    """True if a quantised product can store its result with these scales and this zero point."""
    single = all(v.type.size == 1 for v in (x_scale, out_scale, out_zero))
    fp32 = all(v.dtype is FP32 for v in (x_scale, y_scale, out_scale))
    return (
        single and fp32 and out_zero.node.data is not None and (y_scale.type.size == 1 or y_scale.shape == (columns,))
    )


def vector(b: Builder, v: Value | None) -> Value | None:
    """Returns a zero point or scale as a scalar or vector, and a zero point of 0 as None."""
    if v is None or (v.node.data is not None and not v.node.data.any() and v.dtype is not FP32):
        return None
    return b.reshape(v, shape=()) if v.type.size == 1 else v


def ratio_of(b: Builder, x_scale: Value, y_scale: Value, out_scale: Value) -> Value:
    """Returns the factor from an integer sum to a quantised result."""
    first, second, out = (vector(b, v) for v in (x_scale, y_scale, out_scale))
    ratio: Value = b.real_div(b.mul(first, second), out)
    return ratio


def stored_as(
    x_scale: Value, y_scale: Value, out_scale: Value, out_zero: Value, columns: int
) -> dict[str, object] | None:
    """Returns the attributes of a quantised product that stores its result with these scales, or None if it cannot."""
    return _stored(out_zero) if _requantises(x_scale, y_scale, out_scale, out_zero, columns) else None


def _stored(zero: Value) -> dict[str, object]:
    assert zero.node.data is not None
    return {"dtype": zero.dtype, "output_zero": int(zero.node.data.reshape(()))}


def _per_line(b: Builder, v: Value, axis: int) -> Result:
    """Reshapes a scale or zero point to broadcast: one number, one per row (-2) or one per column (-1)."""
    if v.type.size == 1:
        return b.reshape(v, shape=())
    return b.reshape(v, shape=(-1, 1) if axis == -2 else (1, -1)) if len(v.shape) == 1 else v


def _requantised(b: Builder, total: Value, scales: list[Value], zero: Value) -> Result:
    """Returns total * (x_scale * w_scale / y_scale), moved by the zero point."""
    first, second, out = (cast(b, s, FP32) for s in scales)
    return quantised(b, b.mul(cast(b, total, FP32), b.real_div(b.mul(first, second), out)), zero, zero.dtype)


def _integer_conv(b: Builder, n: OnnxNode, x: Value, weight: Value) -> Result:
    terms = prod(weight.shape[1:])
    if terms > EXACT_TERMS:
        raise Error(f"got {terms} products for each output, need at most {EXACT_TERMS}, which fp32 sums exactly")
    return cast(b, b.conv(x, weight, **convolution_options(n, x, weight)), INT32)


@onnx_op("ConvInteger")
def conv_integer(b: Builder, n: OnnxNode) -> Result:
    weight, x_zero, w_zero = n.value(1), n.optional(2), n.optional(3)
    x = read_by_windows(b, n, n.value(0), weight)
    if product_fits(x, x_zero, weight, w_zero, 0) and len(x.shape) <= 4:
        options = convolution_options(n, x, weight)
        return b.quantized_conv(x, weight, None, None, vector(b, x_zero), vector(b, w_zero), dtype=INT32, **options)
    return _integer_conv(b, n, centred(b, x, x_zero, 1), centred(b, weight, w_zero, 0))


@onnx_op("QLinearConv")
def qlinear_conv(b: Builder, n: OnnxNode) -> Result:
    x, x_scale, x_zero, weight, w_scale, w_zero, out_scale, out_zero = (n.value(i) for i in range(8))
    x, bias = read_by_windows(b, n, x, weight), n.optional(8)
    requantises = _requantises(x_scale, w_scale, out_scale, out_zero, weight.shape[0])
    small = _fit_int32(x, x_zero, weight, w_zero, tuple(range(1, len(weight.shape))), bias)
    if small and product_fits(x, x_zero, weight, w_zero, 0) and requantises and len(x.shape) <= 4:
        operands = bias, vector(b, x_zero), vector(b, w_zero)
        attrs = {**convolution_options(n, x, weight), **_stored(out_zero)}
        return b.quantized_conv(x, weight, ratio_of(b, x_scale, w_scale, out_scale), *operands, **attrs)
    first, second = centred(b, x, x_zero, 1), centred(b, weight, w_zero, 0)
    total = _integer_conv(b, n, first, second) if small else b.conv(first, second, **convolution_options(n, x, weight))
    channels = [1, -1, *[1] * (len(x.shape) - 2)]
    if bias is not None:
        total = b.add(total, cast(b, b.reshape(bias, shape=channels), total.dtype))
    scales = [b.reshape(v, shape=() if v.type.size == 1 else channels) for v in (x_scale, w_scale, out_scale)]
    return _requantised(b, total, scales, b.reshape(out_zero, shape=()))

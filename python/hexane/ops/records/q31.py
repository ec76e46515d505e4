"""Quantised ops with TFLite's arithmetic: int32 sums are scaled to 8 bits by a multiplier in Q0.31 and a shift, with
two roundings.

    rescale(sum) = shifted(rounded(sum * 2^max(shift, 0) * multiplier / 2^31), max(-shift, 0))

The product is rounded to nearest, halves up. The right shift is rounded to nearest, halves away from 0. TFLite's
reference kernels use the same functions of gemmlowp, SaturatingRoundingDoublingHighMul and RoundingDivideByPOT. The
left shift saturates, while TFLite leaves its overflow undefined.

In TFLite's fully connected layers, sums are multiplied in doubles and rounded once, halves away from 0. q31_matmul does
so with an int64 multiplier in Q0.53, the precision of a double, and the double's exponent as shift.
"""

from collections.abc import Mapping
from math import frexp
from typing import Any

import numpy as np

from hexane.dtypes import DTYPES, INT32, INT64, DType
from hexane.errors import Error
from hexane.ops.attributes import Attr, element_type, flag, integer, integers
from hexane.ops.records.conv import convolve
from hexane.ops.records.linear import matmul_shape
from hexane.ops.records.quant import BYTES, INT8, SIGNED, UNSIGNED, WEIGHT, Types, along, array, image, need
from hexane.ops.records.quant_mean import check_terms, mean_terms, over_axes
from hexane.ops.shape_rules import Shape, broadcast, one_axis, reduced
from hexane.ops.spec import Case, Op
from hexane.ops.taps import pool_taps
from hexane.ops.window_rules import LAYOUT, POOL, WINDOW, convolved_shape, from_nchw, pool_shape, to_nchw, window_attrs

Array = Any
MOST_SHIFT, LEAST_SHIFT = 30, -31
DIGITS = 53  # bits of a double's significand
INT16 = DTYPES["int16"]
SUM_SHIFT = 20  # fractional bits of the operands of a sum, as in TFLite


def quantize_multiplier(real: float) -> tuple[int, int]:
    """Returns a positive number as (multiplier, shift) with multiplier / 2^31 * 2^shift, multiplier from 2^30 to 2^31 -
    1. Numbers below 2^-32 become (0, 0).

    Raises Error for a number that needs a shift above 30.
    """
    fraction, shift = frexp(real)
    multiplier = int(fraction * 2**31 + 0.5)  # exact: a double has 53 bits
    if multiplier == 2**31:
        multiplier, shift = multiplier // 2, shift + 1
    if shift < LEAST_SHIFT:
        return 0, 0
    if shift > MOST_SHIFT:
        raise Error(f"multiplier: got {real}, need less than 2^{MOST_SHIFT}")
    return multiplier, shift


def double_multiplier(real: float) -> tuple[int, int]:
    """Returns a positive double as (multiplier, shift) with multiplier / 2^53 * 2^shift. Its products with int32
    numbers are stored in 8 bits.

    For doubles below 2^-32, all products are less than a half: (0, 0). For doubles from 2^30 on, all products except 0
    saturate.
    """
    fraction, shift = frexp(real)
    if shift < LEAST_SHIFT:
        return 0, 0
    return (int(fraction * 2**DIGITS), shift) if shift <= MOST_SHIFT else (2 ** (DIGITS - 1), MOST_SHIFT)


def scale_once(total: Array, multiplier: Array, shift: Array) -> Array:
    """Multiplies int32 numbers (as int64) by a double, and rounds to integers, halves away from 0."""
    product = total.astype(np.float64) * np.ldexp(np.float64(multiplier), shift - DIGITS)
    size = np.abs(product)
    whole = np.floor(size)  # x + 0.5 would round twice
    return np.where(product < 0, -1, 1) * (whole + (size - whole >= 0.5)).astype(np.int64)


def rescale(total: Array, multiplier: Array, shift: Array) -> Array:
    """Scales int32 numbers (as int64) by a multiplier and its shift."""
    left, right = np.maximum(shift, 0), np.maximum(-np.asarray(shift, np.int64), 0)
    wide = np.clip(np.asarray(total, np.int64) << left, -(2**31), 2**31 - 1)
    high = (wide * multiplier + (1 << 30)) >> 31
    half = np.where(right > 0, np.int64(1) << np.maximum(right - 1, 0), 0)
    return np.where(high < 0, -((-high + half) >> right), (high + half) >> right)


def _stored(total: Array, dtype: DType, output_zero: int, low: int, high: int) -> Array:
    info = np.iinfo(dtype.numpy)
    return np.clip(total + output_zero, max(low, info.min), min(high, info.max)).astype(dtype.numpy)


def _check_output(types: Types, attrs: Mapping[str, Any]) -> None:
    need(attrs["dtype"], "dtype", *BYTES)
    info = np.iinfo(attrs["dtype"].numpy)
    if not info.min <= attrs["output_zero"] <= info.max:
        raise Error(f"output_zero: got {attrs['output_zero']}, need one of {attrs['dtype']}")
    if max(attrs.get("low", -128), info.min) > min(attrs.get("high", 255), info.max):
        raise Error(
            f"low, high: got {attrs['low']} and {attrs['high']}, need a range that {attrs['dtype']} has numbers of"
        )


def _check_operands(types: Types, attrs: Mapping[str, Any]) -> None:
    for name, x in zip(("x", "y"), types, strict=False):
        assert x is not None
        _zero(f"{name}_zero", attrs[f"{name}_zero"], x.dtype)
    for name, value in attrs.items():
        if name.endswith("multiplier") and not 0 <= value < 2**31:
            raise Error(f"{name}: got {value}, need 0 to 2^31 - 1")
        if name.endswith("shift") and not LEAST_SHIFT <= value <= MOST_SHIFT:
            raise Error(f"{name}: got {value}, need {LEAST_SHIFT} to {MOST_SHIFT}")
    _check_output(types, attrs)


def _zero(name: str, zero: int, dtype: DType) -> None:
    need(dtype, name.removesuffix("_zero"), *BYTES)
    info = np.iinfo(dtype.numpy)
    if not info.min <= zero <= info.max:
        raise Error(f"{name}: got {zero}, need one of {dtype}")


# ---- products ----


def _product_dtype(
    x: DType, y: DType, multiplier: DType, bias: DType | None, x_zero: DType | None, y_zero: DType | None, shift: DType | None,
    dtype: DType, **_: Any,
) -> DType:  # fmt: skip
    for name, got in (("x", x), ("weight", y), ("dtype", dtype)):
        need(got, name, *BYTES)
    need(x_zero, "zero point of x", x)
    need(y_zero, "zero point of the weight", y)
    need(multiplier, "multiplier", INT32)
    need(bias, "bias", INT32)
    need(shift, "shift", INT8)
    return dtype


def _matmul_dtype(x: DType, y: DType, multiplier: DType, *rest: Any, **attrs: Any) -> DType:
    need(multiplier, "multiplier", INT32, INT64)
    return _product_dtype(x, y, INT32, *rest, **attrs)


def _check_product(types: Types, attrs: Mapping[str, Any]) -> None:
    """Raises Error unless the vectors have one element for each output column or channel; all but the bias may be
    scalars, and the zero point of x must be one."""
    _, y, multiplier, bias, x_zero, y_zero, shift = types
    assert y is not None
    if "strides" in attrs and y.rank > 4:
        raise Error(f"got a weight of rank {y.rank}, need at most two spatial axes")
    columns = y.shape[0] if "strides" in attrs or y.rank < 2 else y.shape[-2 if attrs["transpose_y"] else -1]
    for name, found in {"multiplier": multiplier, "shift": shift, "zero point of the weight": y_zero}.items():
        if found is not None and found.shape not in ((), (columns,)):
            raise Error(f"got a {name} of shape {found.shape}, need () or ({columns},)")
    if bias is not None and bias.shape != (columns,):
        raise Error(f"got a bias of shape {bias.shape}, need ({columns},)")
    if x_zero is not None and x_zero.rank:
        raise Error(f"got a zero point of x of shape {x_zero.shape}, need ()")
    _check_output(types, attrs)


def _centred(x: Array, zero: Array | None, axis: int) -> Array:
    return x.astype(np.float64) - (0 if zero is None else along(zero, axis, x.ndim).astype(np.float64))


def _finished(
    total: Array, axis: int, multiplier: Array, bias: Array | None, shift: Array | None, dtype: DType, output_zero: int, low: int,
    high: int,
) -> Array:  # fmt: skip
    if bias is not None:
        total = total + along(bias, axis, total.ndim)
    whole = total.astype(np.int64).astype(np.int32)  # sums wrap around
    shifts = (
        np.int64(0) if shift is None else along(np.int64(np.clip(shift, LEAST_SHIFT, MOST_SHIFT)), axis, total.ndim)
    )
    if multiplier.dtype == np.int64:
        numbers = along(np.clip(multiplier, 0, 2**DIGITS - 1), axis, total.ndim)
        return _stored(scale_once(whole, numbers, shifts), dtype, output_zero, low, high)
    scaled = rescale(whole, along(np.maximum(np.int64(multiplier), 0), axis, total.ndim), shifts)
    return _stored(scaled, dtype, output_zero, low, high)


def _q31_matmul(
    x: Array, y: Array, multiplier: Array, bias: Array | None, x_zero: Array | None, y_zero: Array | None, shift: Array | None,
    transpose_y: bool, **attrs: Any,
) -> Array:  # fmt: skip
    y = np.swapaxes(y, -1, -2) if transpose_y else y
    total = np.matmul(_centred(x, x_zero, 0), _centred(y, y_zero, y.ndim - 1))
    return _finished(total, total.ndim - 1, multiplier, bias, shift, **attrs)


def _q31_conv(
    x: Array, weight: Array, multiplier: Array, bias: Array | None, x_zero: Array | None, weight_zero: Array | None,
    shift: Array | None, layout: str, strides: Shape, dilations: Shape, pad: Shape, groups: int, **attrs: Any,
) -> Array:  # fmt: skip
    w = _centred(weight, weight_zero, 0)
    total = convolve(_centred(x, x_zero, 0), w, None, strides, dilations, pad, groups, layout)
    return _finished(total, total.ndim - 1 if layout == "nhwc" else 1, multiplier, bias, shift, **attrs)


def _matmul_shape(x: Shape, y: Shape, *_: Shape | None, transpose_y: bool, **__: Any) -> Shape:
    return matmul_shape(x, y, transpose_y=transpose_y)


def _conv_shape(x: Shape, weight: Shape, *_: Shape | None, **attrs: Any) -> Shape:
    return convolved_shape(x, weight, None, **{k: attrs[k] for k in (*WINDOW, "groups", "layout")})


def _kernel_attrs(_: Any, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the kernel's attributes, without dtype (the result has it) and layout (always channels last)."""
    return {"pads" if k == "pad" else k: v for k, v in attrs.items() if k not in ("dtype", "layout")}


# ---- elementwise ----


def _two_bytes(x: DType, y: DType, dtype: DType, **_: Any) -> DType:
    for name, got in (("x", x), ("y", y), ("dtype", dtype)):
        need(got, name, *BYTES)
    return dtype


def _q31_add(
    x: Array, y: Array, x_zero: int, x_multiplier: int, x_shift: int, y_zero: int, y_multiplier: int, y_shift: int,
    output_multiplier: int, output_shift: int, **attrs: Any,
) -> Array:  # fmt: skip
    first = rescale((x.astype(np.int64) - x_zero) << SUM_SHIFT, x_multiplier, x_shift)
    second = rescale((y.astype(np.int64) - y_zero) << SUM_SHIFT, y_multiplier, y_shift)
    total = np.clip(first + second, -(2**31), 2**31 - 1)
    return _stored(rescale(total, output_multiplier, output_shift), **attrs)


def _q31_mul(x: Array, y: Array, x_zero: int, y_zero: int, multiplier: int, shift: int, **attrs: Any) -> Array:
    return _stored(rescale((x.astype(np.int64) - x_zero) * (y.astype(np.int64) - y_zero), multiplier, shift), **attrs)


# ---- softmax ----

SUM_BITS = 12  # integer bits of the sum over the axis


def _softmax_shape(x: Shape, powers: Shape, **_: Any) -> Shape:
    if powers != (256,):
        raise Error(f"got powers of shape {powers}, need (256,)")
    return x


def _softmax_dtype(x: DType, powers: DType, dtype: DType, **_: Any) -> DType:
    need(x, "x", *BYTES)
    need(powers, "powers", INT32)
    need(dtype, "dtype", *BYTES, INT16)
    return dtype


def _high(x: Array, y: Array | int) -> Array:
    return np.asarray((x * y + (1 << 30)) >> 31)


def _saturated(x: Array) -> Array:
    return np.clip(x, -(2**31), 2**31 - 1)


def _q31_softmax(x: Array, powers: Array, axis: int, dtype: DType) -> Array:
    """Divides by the sum, which has 12 integer bits, with gemmlowp's one_over_one_plus_x_for_x_in_0_1."""
    wide = x.astype(np.int64)
    e = np.maximum(powers.astype(np.int64), 0)[wide.max(axis=axis, keepdims=True, initial=-128) - wide]
    total = np.sum((e + (1 << (SUM_BITS - 1))) >> SUM_BITS, axis=axis, keepdims=True)
    total = np.clip(total, 1, 2**32 - 1)
    bits = np.frexp(total.astype(np.float64))[1].astype(np.int64)
    half = (total << (32 - bits)) >> 1
    y = _high(half, -1010580540) + 1515870810
    for _ in range(3):
        y = y + _saturated(4 * _high(y, (1 << 29) - _high(half, y)))
    shift = np.maximum(bits - (32 - SUM_BITS) + 31 - dtype.bits, 0)
    steps = (_high(e, _saturated(2 * y)) + ((np.int64(1) << shift) >> 1)) >> shift
    info = np.iinfo(dtype.numpy)
    return np.minimum(steps + info.min, info.max).astype(dtype.numpy)


# ---- reductions ----


def _byte(x: DType, dtype: DType, **_: Any) -> DType:
    need(x, "x", *BYTES)
    need(dtype, "dtype", *BYTES)
    return dtype


def _check_mean(types: Types, attrs: Mapping[str, Any]) -> None:
    x = types[0]
    assert x is not None
    check_terms(x.shape, attrs["axes"])
    _check_operands(types[:1], attrs)


def _mean_attrs(types: Types, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the kernel's attributes. count: number of elements in each mean."""
    x = types[0]
    assert x is not None
    first = {"axes": attrs["axes"], "keep_dims": attrs["keep_dims"], "count": mean_terms(x.shape, attrs["axes"])}
    return {**first, **{name: attrs[name] for name in ("x_zero", "multiplier", "shift", "output_zero")}}


def _q31_mean(
    x: Array, axes: Shape, keep_dims: bool, x_zero: int, multiplier: int, shift: int, dtype: DType, output_zero: int
) -> Array:
    total = np.sum(x, axis=axes, keepdims=keep_dims, dtype=np.int64) - mean_terms(x.shape, axes) * x_zero
    return _stored(rescale(total, multiplier, shift), dtype, output_zero, -128, 255)


def _pool_dtype(x: DType, **_: Any) -> DType:
    need(x, "x", *BYTES)
    return x


def _q31_avg_pool(x: Array, layout: str, **attrs: Any) -> Array:
    values, regions = pool_taps(to_nchw(x.astype(np.int64), layout), 0, **attrs)
    count = np.maximum((regions == 2).sum(axis=0), 1)
    total = np.where(regions == 2, values, 0).sum(axis=0).astype(np.int64)
    mean = (np.abs(total) + count // 2) // count  # halves away from 0
    return from_nchw(np.sign(total) * mean, layout).astype(x.dtype)


_OUTPUT: Mapping[str, Attr] = {"dtype": element_type(), "output_zero": integer(0)}
_CLAMP: Mapping[str, Attr] = {"low": integer(-128), "high": integer(255)}
_PRODUCT = ("multiplier", "bias?", "x_zero?")
_MULTIPLIERS = array("int32", 1 << 30, 1500000000, 2147483647, 1073741825, 1999999999, 1234567890)
_DIGITS = array("int64", 1 << 52, (1 << 53) - 1, 6004799503160661, 4503599627370497, 8444249301319680, 5000000000000003)
_SHIFTS = array("int8", -7, -9, -8, -6, -12, -10)
_BIAS = array("int32", 100, -2000, 0, 7, -1, 40000)
_POWERS = np.floor(np.exp(-np.arange(256) * 0.07) * (2**31 - 1)).astype(np.int32)
_TFLITE = "as TFLite computes it: a multiplier in Q0.31 and a shift for each channel"

OPS = (
    Op(
        name="q31_matmul", doc=f"The integer product of x and y, rescaled {_TFLITE}, moved by output_zero and clamped. Sums are int32, and wrap around on overflow. An int64 multiplier is in Q0.53, the digits of a double: the sum times that double is rounded once, halves away from 0.",
        inputs=("x", "y", *_PRODUCT, "y_zero?", "shift?"), attrs={"transpose_y": flag(False), **_OUTPUT, **_CLAMP}, shape=_matmul_shape,
        dtype=_matmul_dtype, check=(_check_product,), kernel="q31_matmul", kernel_attrs=_kernel_attrs, ref=_q31_matmul,
        cases=(
            Case(attrs={"dtype": "int8", "transpose_y": True, "output_zero": -5}, arrays=(image(SIGNED, 2, 3, 33), image(WEIGHT, 6, 33), _MULTIPLIERS, _BIAS, np.int8(4), None, _SHIFTS)),
            Case(attrs={"dtype": "uint8", "output_zero": 128, "low": 100, "high": 200}, arrays=(image(UNSIGNED, 2, 4, 8), image(UNSIGNED, 2, 8, 5), np.int32(1 << 30), None, np.uint8(7), np.uint8(128), np.int8(-9))),
            Case(attrs={"dtype": "int8"}, arrays=(image(SIGNED, 2, 2), image(WEIGHT, 2, 6), _MULTIPLIERS, None, None, None, array("int8", 2, 0, 30, 1, -1, -31))),
            Case(attrs={"dtype": "int8", "transpose_y": True, "output_zero": 3}, arrays=(image(SIGNED, 2, 3, 9), image(WEIGHT, 6, 9), _DIGITS, _BIAS, np.int8(4), None, _SHIFTS)),
        ),
    ),
    Op(
        name="q31_conv", doc=f"The integer convolution, rescaled {_TFLITE}, moved by output_zero and clamped; padding is real 0. Sums are int32, and wrap around on overflow.",
        inputs=("x", "weight", *_PRODUCT, "weight_zero?", "shift?"), attrs={**WINDOW, "groups": integer(1), "layout": LAYOUT, **_OUTPUT, **_CLAMP},
        shape=_conv_shape, dtype=_product_dtype, check=(_check_product,), canonical=window_attrs,
        kernel="q31_conv", kernel_attrs=_kernel_attrs, layout="spatial", ref=_q31_conv,
        cases=(
            Case(attrs={"dtype": "int8", "pad": 1, "output_zero": 3, "low": 3}, arrays=(image(SIGNED, 1, 3, 9, 8), image(WEIGHT, 6, 3, 3, 3), _MULTIPLIERS, _BIAS, np.int8(9), None, _SHIFTS)),
            Case(attrs={"dtype": "int8", "strides": 2, "pad": (1, 0), "groups": 2}, arrays=(image(SIGNED, 2, 4, 7, 7), image(WEIGHT, 6, 2, 3, 2), np.int32(1500000000), _BIAS, np.int8(-4), None, np.int8(-8))),
            Case(attrs={"dtype": "uint8", "groups": 6, "pad": (0, 1, 1, 2), "output_zero": 128}, arrays=(image(UNSIGNED, 1, 6, 8, 9), image(WEIGHT, 6, 1, 3, 3), _MULTIPLIERS, None, np.uint8(130), None, _SHIFTS)),
            Case(attrs={"dtype": "int8"}, arrays=(image(UNSIGNED, 1, 4, 9, 9), image(WEIGHT, 6, 4, 1, 1), _MULTIPLIERS, None, None, array("int8", 1, 0, -3, 9, 0, 2), _SHIFTS)),
        ),
    ),
    Op(
        name="q31_add", doc="The sum of two quantised tensors, broadcast, as TFLite computes it: both are rescaled with 20 bits below the point, and their sum once more.",
        inputs=("x", "y"),
        attrs={"x_zero": integer(0), "x_multiplier": integer(), "x_shift": integer(0), "y_zero": integer(0), "y_multiplier": integer(), "y_shift": integer(0),
               "output_multiplier": integer(), "output_shift": integer(0), **_OUTPUT, **_CLAMP},
        shape=broadcast, dtype=_two_bytes, check=(_check_operands,), kernel="q31_add", kernel_attrs=_kernel_attrs, elementwise=True, ref=_q31_add,
        cases=(
            Case(attrs={"x_zero": 3, "x_multiplier": 1 << 30, "y_multiplier": 1987654321, "y_shift": -2, "output_multiplier": 1 << 30, "output_shift": -18, "dtype": "int8", "output_zero": -9},
                 arrays=(image(SIGNED, 2, 3, 17), image(WEIGHT, 2, 3, 17))),
            Case(attrs={"x_multiplier": 1500000000, "x_shift": -3, "y_multiplier": 1 << 30, "y_zero": 130, "output_multiplier": 1999999999, "output_shift": -19, "dtype": "uint8", "output_zero": 99, "high": 180},
                 arrays=(image(SIGNED, 2, 1, 5), image(UNSIGNED, 3, 1))),
        ),
    ),
    Op(
        name="q31_mul", doc="The product of two quantised tensors, element by element and broadcast, rescaled as TFLite does.", inputs=("x", "y"),
        attrs={"x_zero": integer(0), "y_zero": integer(0), "multiplier": integer(), "shift": integer(0), **_OUTPUT, **_CLAMP},
        shape=broadcast, dtype=_two_bytes, check=(_check_operands,), kernel="q31_mul", kernel_attrs=_kernel_attrs, elementwise=True, ref=_q31_mul,
        cases=(
            Case(attrs={"x_zero": 3, "multiplier": 1987654321, "shift": -6, "dtype": "int8", "output_zero": -9}, arrays=(image(SIGNED, 2, 3, 17), image(WEIGHT, 2, 3, 17))),
            Case(attrs={"y_zero": 130, "multiplier": 1 << 30, "shift": -7, "dtype": "uint8", "output_zero": 99, "low": 20}, arrays=(image(SIGNED, 2, 1, 5), image(UNSIGNED, 3, 1))),
        ),
    ),
    Op(
        name="q31_softmax", doc="Softmax along an axis, as TFLite computes it. `powers` has e^-d in Q0.31 for each "
                                "difference d, 0 to 255, to the largest element of a row. The lowest number of dtype "
                                "stands for 0, and one step is 1/256, or 1/65536 for int16.",
        inputs=("x", "powers"), attrs={"axis": integer(-1), "dtype": element_type()}, shape=_softmax_shape, dtype=_softmax_dtype, canonical=one_axis,
        kernel="q31_softmax", kernel_attrs=lambda types, attrs: {"axis": attrs["axis"]}, layout="axis", ref=_q31_softmax,
        cases=(
            Case(attrs={"dtype": "int8"}, arrays=(image(SIGNED, 3, 17), _POWERS)),
            Case(attrs={"dtype": "uint8", "axis": 1}, arrays=(image(UNSIGNED, 2, 9, 5), _POWERS)),
            Case(attrs={"dtype": "int16"}, arrays=(image(SIGNED, 2, 3, 530), _POWERS)),
        ),
    ),
    Op(
        name="q31_mean", doc="The mean of a quantised tensor over `axes` (none named: all), as TFLite computes it: the exact sum, rescaled by a multiplier that divides by the count.",
        inputs=("x",), attrs={"axes": integers(()), "keep_dims": flag(True), "x_zero": integer(0), "multiplier": integer(), "shift": integer(0), **_OUTPUT},
        shape=lambda x, axes, keep_dims, **_: reduced(x, axes, keep_dims), dtype=_byte, check=(_check_mean,), canonical=over_axes,
        kernel="q31_mean", kernel_attrs=_mean_attrs, layout="reduce", lengths="reduce", ref=_q31_mean,
        cases=(
            Case(attrs={"axes": (1, 2), "x_zero": 3, "multiplier": 1963413621, "shift": -4, "dtype": "int8", "output_zero": -9}, arrays=(image(SIGNED, 1, 5, 7, 19),)),
            Case(attrs={"axes": (-1,), "keep_dims": False, "x_zero": 130, "multiplier": 1 << 30, "shift": -5, "dtype": "uint8", "output_zero": 99}, arrays=(image(UNSIGNED, 3, 2, 17),)),
            Case(attrs={"multiplier": 1041204193, "shift": -6, "dtype": "uint8"}, arrays=(image(SIGNED, 4, 33),)),
        ),
    ),
    Op(
        name="q31_avg_pool", doc="The mean of each window of integers, as TFLite computes it: rounded, halves away "
            "from 0. Padding does not count, and the result keeps x's scale and zero point.",
        inputs=("x",), attrs={**POOL, "layout": LAYOUT}, shape=pool_shape, dtype=_pool_dtype, canonical=window_attrs,
        kernel="q31_avg_pool", kernel_attrs=_kernel_attrs, layout="spatial", ref=_q31_avg_pool,
        cases=(
            Case(attrs={"kernel_sizes": (3, 2), "strides": 2, "pad": 1}, arrays=(image(SIGNED, 1, 19, 9, 8),)),
            Case(attrs={"kernel_sizes": (2, 2), "strides": 2, "ceil_mode": True}, arrays=(image(UNSIGNED, 2, 3, 7, 7),)),
            Case(attrs={"kernel_sizes": 4}, arrays=(image(SIGNED, 1, 2, 11),)),
        ),
    ),
)  # fmt: skip

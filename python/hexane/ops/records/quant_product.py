"""Products and sums of quantised tensors: integers are summed in int32, scaled, and stored as real numbers or quantised
again."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hexane.dtypes import FP32, INT32, DType
from hexane.errors import Error
from hexane.ops.attributes import Attr, element_type, flag, integer, number
from hexane.ops.records.conv import convolve, over_rows
from hexane.ops.records.linear import matmul_shape, over_columns
from hexane.ops.records.quant import (
    BIAS,
    BYTES,
    SCALES,
    SIGNED,
    UNSIGNED,
    WEIGHT,
    Types,
    along,
    array,
    image,
    need,
    rounded,
)
from hexane.ops.shape_rules import Shape, broadcast
from hexane.ops.spec import Case, Op
from hexane.ops.window_rules import LAYOUT, WINDOW, convolved_shape, window_attrs

Array = Any


def _product_dtype(
    x: DType, y: DType, scale: DType | None, bias: DType | None, x_zero: DType | None, y_zero: DType | None, dtype: DType,
    **_: Any,
) -> DType:  # fmt: skip
    need(x, "x", *BYTES)
    need(y, "weight", *BYTES)
    need(x_zero, "zero point of x", x)
    need(y_zero, "zero point of the weight", y)
    need(scale, "scale", FP32)
    need(dtype, "dtype", *BYTES, INT32, FP32)
    need(bias, "bias", *((INT32,) if dtype is INT32 else (INT32, FP32)))
    if (scale is None) != (dtype is INT32):
        raise Error(f"got {'no ' if scale is None else 'a '}scale for {dtype}, need one for all results but int32")
    return dtype


def _check_product(types: Types, attrs: Mapping[str, Any]) -> None:
    """Raises Error unless the vectors have one element for each output column or channel; all but the bias may be
    scalars, and the zero point of x must be one."""
    _, y, scale, bias, x_zero, y_zero = types
    assert y is not None
    if "strides" in attrs and y.rank > 4:
        raise Error(f"got a weight of rank {y.rank}, need at most two spatial axes")
    columns = y.shape[0] if "strides" in attrs or y.rank < 2 else y.shape[-2 if attrs["transpose_y"] else -1]
    shapes = {"scale": scale, "zero point of the weight": y_zero}
    for name, vector in shapes.items():
        if vector is not None and vector.shape not in ((), (columns,)):
            raise Error(f"got a {name} of shape {vector.shape}, need () or ({columns},)")
    if bias is not None and bias.shape != (columns,):
        raise Error(f"got a bias of shape {bias.shape}, need ({columns},)")
    if x_zero is not None and x_zero.rank:
        raise Error(f"got a zero point of x of shape {x_zero.shape}, need ()")
    _check_output(types, attrs)


def _check_output(_: Types, attrs: Mapping[str, Any]) -> None:
    for name in ("output_scale", "x_scale", "y_scale"):
        if not 0 < attrs.get(name, 1.0) < np.inf:
            raise Error(f"{name}: got {attrs[name]}, need a positive number")
    info = np.iinfo(attrs["dtype"].numpy) if attrs["dtype"] in BYTES else np.iinfo(np.int8)
    if not info.min <= attrs["output_zero"] <= info.max:
        raise Error(f"output_zero: got {attrs['output_zero']}, need one of {attrs['dtype']}")


def _centred(x: Array, zero: Array | None, rank: int = 0) -> Array:
    """Returns x - zero in fp64. A vector of zero points belongs to the first axis if a rank is given, else to the
    last."""
    if zero is None:
        return x.astype(np.float64)
    if np.ndim(zero) and rank:
        zero = zero.reshape(-1, *[1] * (rank - 1))
    return x.astype(np.float64) - zero.astype(np.float64)


def _scaled(total: Array, scale: Array | None, bias: Array | None, axis: int) -> Array:
    """Returns sums with their bias, in int32, or as real numbers if there is a scale."""
    if bias is not None and bias.dtype.kind == "i":
        total, bias = total + along(bias, axis, total.ndim), None
    whole = total.astype(np.int64).astype(np.int32)
    if scale is None:
        return whole
    real = whole * along(np.float64(scale), axis, total.ndim)
    return real if bias is None else real + along(bias, axis, total.ndim)


def _quantized_matmul(
    x: Array, y: Array, scale: Array | None, bias: Array | None, x_zero: Array | None, y_zero: Array | None,
    transpose_y: bool, **_: Any,
) -> Array:  # fmt: skip
    y = np.swapaxes(y, -1, -2) if transpose_y else y
    total = np.matmul(_centred(x, x_zero), _centred(y, y_zero))
    return _scaled(total, scale, bias, total.ndim - 1)


def _quantized_conv(
    x: Array, weight: Array, scale: Array | None, bias: Array | None, x_zero: Array | None, weight_zero: Array | None,
    layout: str, strides: Shape, dilations: Shape, pad: Shape, groups: int, **_: Any,
) -> Array:  # fmt: skip
    w = _centred(weight, weight_zero, weight.ndim)
    total = convolve(_centred(x, x_zero), w, None, strides, dilations, pad, groups, layout)
    return _scaled(total, scale, bias, total.ndim - 1 if layout == "nhwc" else 1)


def _quantized_add(x: Array, y: Array, x_scale: float, x_zero: int, y_scale: float, y_zero: int, **_: Any) -> Array:
    first, second = (np.float32(v.astype(np.int64) - z) for v, z in ((x, x_zero), (y, y_zero)))
    return first * np.float32(x_scale) + second * np.float32(y_scale)  # x and y are dequantised, and added in fp32


def _stored(f: Array, dtype: DType, output_scale: float, output_zero: int, **_: Any) -> Array:
    """Quantises the sums after the epilogue, if the result has 8 bits."""
    if dtype not in BYTES:
        return f
    return rounded(np.float32(f / output_scale), output_zero, dtype)


def _add_dtype(x: DType, y: DType, dtype: DType, **_: Any) -> DType:
    for name, got in (("x", x), ("y", y), ("dtype", dtype)):
        need(got, name, *BYTES)
    return dtype


def _matmul_shape(x: Shape, y: Shape, *_: Shape | None, transpose_y: bool, **__: Any) -> Shape:
    return matmul_shape(x, y, transpose_y=transpose_y)


def _conv_shape(x: Shape, weight: Shape, *_: Shape | None, **attrs: Any) -> Shape:
    return convolved_shape(x, weight, None, **{k: attrs[k] for k in (*WINDOW, "groups", "layout")})


def _kernel_attrs(_: Any, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the kernel's attributes, without dtype (the result has it) and layout (always channels last)."""
    return {"pads" if k == "pad" else k: v for k, v in attrs.items() if k not in ("dtype", "layout")}


_OUTPUT: Mapping[str, Attr] = {"dtype": element_type(), "output_scale": number(1.0), "output_zero": integer(0)}
_PRODUCT = ("scale?", "bias?", "x_zero?")

OPS = (
    Op(
        name="quantized_matmul", doc="The integer product of x and y, scaled and, for 8-bit results, quantised again. Sums are int32, and wrap around on overflow (from 33,026 products of 255 * 255 on).",
        inputs=("x", "y", *_PRODUCT, "y_zero?"), attrs={"transpose_y": flag(False), **_OUTPUT}, shape=_matmul_shape,
        dtype=_product_dtype, check=(_check_product,), kernel="quantized_matmul", kernel_attrs=_kernel_attrs,
        epilogue=True, product=over_columns, ref=_quantized_matmul, stored=_stored,
        cases=(
            Case(attrs={"dtype": "int32"}, arrays=(image(UNSIGNED, 7, 5), image(WEIGHT, 5, 6), None, None, np.uint8(9), array("int8", 1, 0, -3, 9, 0, 2))),
            Case(attrs={"dtype": "fp32", "transpose_y": True}, arrays=(image(SIGNED, 2, 3, 33), image(WEIGHT, 6, 33), SCALES, BIAS)),
            Case(attrs={"dtype": "int8", "output_scale": 16.0, "output_zero": -5}, arrays=(image(SIGNED, 9, 17), image(WEIGHT, 17, 6), np.float32(0.125), array("float32", 3, 4, 5, -90, 0, 1), np.int8(4))),
            Case(attrs={"dtype": "uint8", "output_scale": 64.0}, arrays=(image(UNSIGNED, 2, 4, 8), image(UNSIGNED, 2, 8, 5), np.float32(0.125), None, np.uint8(7), np.uint8(128))),
        ),
    ),
    Op(
        name="quantized_conv", doc="The integer convolution, scaled and, for 8-bit results, quantised again; padding is real 0. Sums are int32, and wrap around on overflow.",
        inputs=("x", "weight", *_PRODUCT, "weight_zero?"), attrs={**WINDOW, "groups": integer(1), "layout": LAYOUT, **_OUTPUT},
        shape=_conv_shape, dtype=_product_dtype, check=(_check_product,), canonical=window_attrs,
        kernel="quantized_conv", kernel_attrs=_kernel_attrs, layout="spatial", epilogue=True, product=over_rows, ref=_quantized_conv, stored=_stored,
        cases=(
            Case(attrs={"dtype": "int32", "pad": 1}, arrays=(image(UNSIGNED, 1, 3, 9, 8), image(WEIGHT, 6, 3, 3, 3), None, BIAS, np.uint8(9), array("int8", 1, 0, -3, 9, 0, 2))),
            Case(attrs={"dtype": "int8", "strides": 2, "pad": (1, 0), "groups": 2, "output_scale": 16.0, "output_zero": 3}, arrays=(image(SIGNED, 2, 4, 7, 7), image(WEIGHT, 6, 2, 3, 2), SCALES, BIAS, np.int8(-4))),
            Case(attrs={"dtype": "uint8", "groups": 6, "pad": (0, 1, 1, 2), "output_scale": 4.0}, arrays=(image(SIGNED, 1, 6, 8, 9), image(WEIGHT, 6, 1, 3, 3), SCALES, BIAS, np.int8(-7))),
            Case(attrs={"dtype": "fp32"}, arrays=(image(UNSIGNED, 1, 4, 9, 9), image(WEIGHT, 6, 4, 1, 1), np.float32(0.5), array("float32", 3, 4, 5, -90, 0, 1))),
            Case(attrs={"dtype": "fp32", "dilations": 2, "pad": (3, 0)}, arrays=(image(SIGNED, 1, 2, 11), image(UNSIGNED, 3, 2, 4), np.float32(0.5), None, None, np.uint8(128))),
        ),
    ),
    Op(
        name="quantized_add", doc="The sum of two quantised tensors, quantised again, broadcast.", inputs=("x", "y"),
        attrs={"x_scale": number(), "x_zero": integer(0), "y_scale": number(), "y_zero": integer(0), **_OUTPUT},
        shape=broadcast, dtype=_add_dtype, check=(_check_output,), kernel="quantized_add", kernel_attrs=_kernel_attrs,
        epilogue=True, elementwise=True, ref=_quantized_add, stored=_stored,
        cases=(
            Case(attrs={"x_scale": 0.5, "x_zero": 3, "y_scale": 0.25, "dtype": "int8", "output_scale": 1.0, "output_zero": -9},
                 arrays=(image(SIGNED, 2, 3, 17), image(WEIGHT, 2, 3, 17))),
            Case(attrs={"x_scale": 0.5, "y_scale": 2.0, "y_zero": 130, "dtype": "uint8", "output_scale": 4.0, "output_zero": 99},
                 arrays=(image(SIGNED, 2, 1, 5), image(UNSIGNED, 3, 1))),
        ),
    ),
)  # fmt: skip

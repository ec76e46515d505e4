"""Matrix products and convolutions whose kernels multiply bf16 numbers and sum in fp32, and fp32 convolutions that read
or write bf16."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from hexane.dtypes import BF16, FP32, DType
from hexane.errors import Error
from hexane.graph import Array
from hexane.ops.attributes import SLOTS, flag, integer
from hexane.ops.records.conv import convolve, over_rows
from hexane.ops.records.linear import OPS as PRODUCTS
from hexane.ops.records.linear import attention_weights
from hexane.ops.spec import Op
from hexane.ops.window_rules import LAYOUT, WINDOW, convolved_shape, window_attrs, window_kernel_attrs

BF16_MATMUL = "cpu.bf16_matmul"
BF16_CONV = "cpu.bf16_conv"
STORED_CONV = "cpu.bf16_stored_conv"
BF16_ATTENTION = "cpu.bf16_scaled_dot_product_attention"
_MATMUL = next(op for op in PRODUCTS if op.name == "matmul")
_ATTENTION = next(op for op in PRODUCTS if op.name == "scaled_dot_product_attention")


def in_bf16(x: Array) -> Array:
    """Returns the numbers that the kernels multiply: rounded to bf16, to nearest even, with subnormal numbers flushed
    to 0."""
    narrow = np.asarray(x, np.float32).astype(ml_dtypes.bfloat16).astype(x.dtype)
    return np.where(np.abs(narrow) < 2.0**-126, np.copysign(0, narrow), narrow).astype(x.dtype)


def _dtype(x: DType, y: DType, bias: DType | None = None, *, narrow: bool = False, **_: Any) -> DType:
    if x not in (FP32, BF16) or (y, bias or FP32) != (BF16, FP32):
        raise Error(f"got {x}, {y} and {bias}, need fp32 or bf16, bf16 and a bias in fp32")
    return BF16 if narrow else FP32


def _stored_dtype(x: DType, weight: DType, bias: DType | None = None, *, narrow: bool = False, **_: Any) -> DType:
    if x not in (FP32, BF16) or (weight, bias or FP32) != (FP32, FP32):
        raise Error(f"got {x}, {weight} and {bias}, need fp32 or bf16, and a weight and a bias in fp32")
    return BF16 if narrow else FP32


def _matmul(x: Array, y: Array, bias: Array | None = None, *, narrow: bool = False, **attrs: Any) -> Any:
    return _MATMUL.ref(in_bf16(x), in_bf16(y), bias, **attrs)


def _conv(x: Array, weight: Array, bias: Array | None = None, *, narrow: bool = False, **attrs: Any) -> Any:
    return convolve(in_bf16(x), in_bf16(weight), bias, **attrs)


def _stored_conv(x: Array, weight: Array, bias: Array | None = None, *, narrow: bool = False, **attrs: Any) -> Any:
    return convolve(x, weight, bias, **attrs)


def _stored(x: Array, narrow: bool = False, **_: Any) -> Array:
    return in_bf16(x) if narrow else x


def _matmul_shape(*shapes: Any, narrow: bool = False, **attrs: Any) -> Any:
    return _MATMUL.shape(*shapes, **attrs)


def _conv_shape(*shapes: Any, narrow: bool = False, **attrs: Any) -> Any:
    return convolved_shape(*shapes, **attrs)


def _kernel_attrs(_: Any, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the kernel's attributes, without `narrow`, which follows from the output's dtype."""
    return {name: value for name, value in attrs.items() if name != "narrow"}


def _conv_attrs(types: Any, attrs: Mapping[str, Any]) -> dict[str, Any]:
    return window_kernel_attrs(types, _kernel_attrs(types, attrs))


def _attention(query: Array, key: Array, value: Array, mask: Array | None = None, **attrs: Any) -> Any:
    weights = attention_weights(in_bf16(query * attrs["scale"]), in_bf16(key), mask, **{**attrs, "scale": 1.0})
    return np.matmul(in_bf16(weights), in_bf16(value))


OPS = (
    Op(
        name=BF16_MATMUL,
        doc="matmul of x, rounded to bf16, and y in bf16: products and sums in fp32. narrow: the result is rounded to bf16.",
        inputs=("x", "y", "bias?"),
        attrs={"transpose_x": flag(False), "transpose_y": flag(False), "narrow": flag(False), "epilogue": SLOTS},
        shape=_matmul_shape, dtype=_dtype, kernel="matmul", kernel_attrs=_kernel_attrs, level="kernel", epilogue=True,
        product=_MATMUL.product, lengths="rows", ref=_matmul, stored=_stored, cases=(),
    ),
    Op(
        name=BF16_CONV,
        doc="conv of x, rounded to bf16, and a weight in bf16: products and sums in fp32. narrow: the result is rounded to "
        "bf16.", inputs=("x", "weight", "bias?"),
        attrs={**WINDOW, "groups": integer(1), "layout": LAYOUT, "narrow": flag(False), "epilogue": SLOTS},
        shape=_conv_shape, dtype=_dtype, canonical=window_attrs, kernel="conv", kernel_attrs=_conv_attrs,
        layout="spatial", level="kernel", epilogue=True, product=over_rows, padding=0.0, ref=_conv, stored=_stored, cases=(),
    ),
    Op(
        name=STORED_CONV,
        doc="conv in fp32 of x in fp32 or bf16. narrow: the result is rounded to bf16.",
        inputs=("x", "weight", "bias?"),
        attrs={**WINDOW, "groups": integer(1), "layout": LAYOUT, "narrow": flag(False), "epilogue": SLOTS},
        shape=_conv_shape, dtype=_stored_dtype, canonical=window_attrs, kernel="conv", kernel_attrs=_conv_attrs,
        layout="spatial", level="kernel", epilogue=True, product=over_rows, padding=0.0, ref=_stored_conv, stored=_stored,
        cases=(),
    ),
    Op(
        name=BF16_ATTENTION,
        doc="scaled_dot_product_attention whose queries, times the scale, keys, values and weights are rounded to bf16: "
        "products, sums and softmax in fp32.",
        inputs=_ATTENTION.inputs, attrs=_ATTENTION.attrs, shape=_ATTENTION.shape, dtype=_ATTENTION.dtype,
        check=_ATTENTION.check, canonical=_ATTENTION.canonical, kernel="bf16_scaled_dot_product_attention", level="kernel",
        ref=_attention, cases=(),
    ),
)  # fmt: skip

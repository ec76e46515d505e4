"""Matrix products in fp32 of operands in 16 bits, which the kernels widen while reading."""

from typing import Any

import numpy as np

from hexane.dtypes import BF16, FP16, FP32, DType
from hexane.errors import Error
from hexane.ops.attributes import SLOTS, flag
from hexane.ops.records.linear import OPS as PRODUCTS
from hexane.ops.spec import Op

WIDENING_MATMUL = "cpu.widening_matmul"
WIDENING_BF16_MATMUL = "cpu.widening_bf16_matmul"
_MATMUL = next(op for op in PRODUCTS if op.name == "matmul")


def _dtype(x: DType, y: DType, bias: DType | None = None, **_: Any) -> DType:
    if {x, y} not in ({FP16}, {FP16, FP32}) or bias not in (None, FP32):
        raise Error(f"got {x}, {y} and {bias}, need fp16 and fp16 or fp32 in either order, and a bias in fp32")
    return FP32


def _bf16_dtype(x: DType, y: DType, bias: DType | None = None, **_: Any) -> DType:
    if (x, y, bias or FP32) != (FP32, BF16, FP32):
        raise Error(f"got {x}, {y} and {bias}, need fp32, bf16 and a bias in fp32")
    return FP32


def _of_bf16(x: Any, y: Any, bias: Any = None, **attrs: Any) -> Any:
    return _MATMUL.ref(x, y.astype(np.float32), bias, **attrs)


OPS = (
    Op(
        name=WIDENING_MATMUL, doc="matmul in fp32 with one or both operands in fp16.",
        inputs=("x", "y", "bias?"),
        attrs={"transpose_x": flag(False), "transpose_y": flag(False), "epilogue": SLOTS}, shape=_MATMUL.shape,
        dtype=_dtype, kernel="matmul", level="kernel", epilogue=True, product=_MATMUL.product, lengths="rows",
        ref=_MATMUL.ref, cases=(),
    ),
    Op(
        name=WIDENING_BF16_MATMUL, doc="matmul in fp32 of x in fp32 and y in bf16.",
        inputs=("x", "y", "bias?"),
        attrs={"transpose_x": flag(False), "transpose_y": flag(False), "epilogue": SLOTS}, shape=_MATMUL.shape,
        dtype=_bf16_dtype, kernel="widening_matmul", level="kernel", epilogue=True, product=_MATMUL.product, lengths="rows",
        ref=_of_bf16, cases=(),
    ),
)  # fmt: skip

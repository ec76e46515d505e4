"""A matrix product in fp32 of fp16 operands, which the kernel widens while reading."""

from typing import Any

from hexane.dtypes import FP16, FP32, DType
from hexane.errors import Error
from hexane.ops.attributes import SLOTS, flag
from hexane.ops.records.linear import OPS as PRODUCTS
from hexane.ops.spec import Op

WIDENING_MATMUL = "cpu.widening_matmul"
_MATMUL = next(op for op in PRODUCTS if op.name == "matmul")


def _dtype(x: DType, y: DType, bias: DType | None = None, **_: Any) -> DType:
    if {x, y} not in ({FP16}, {FP16, FP32}) or bias not in (None, FP32):
        raise Error(f"got {x}, {y} and {bias}, need fp16 and fp16 or fp32 in either order, and a bias in fp32")
    return FP32


OPS = (
    Op(
        name=WIDENING_MATMUL, doc="matmul in fp32 with one or both operands in fp16.",
        inputs=("x", "y", "bias?"),
        attrs={"transpose_x": flag(False), "transpose_y": flag(False), "epilogue": SLOTS}, shape=_MATMUL.shape,
        dtype=_dtype, kernel="matmul", level="kernel", epilogue=True, product=_MATMUL.product, lengths="rows",
        ref=_MATMUL.ref, cases=(),
    ),
)  # fmt: skip

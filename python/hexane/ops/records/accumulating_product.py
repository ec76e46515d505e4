"""A matrix product that is added to a sum in place."""

from typing import Any

from hexane.dtypes import BOOL, FP16, FP32, DType
from hexane.errors import Error
from hexane.ops.attributes import flag
from hexane.ops.records.linear import OPS as PRODUCTS
from hexane.ops.shape_rules import Shape
from hexane.ops.spec import Op

ACCUMULATING_MATMUL = "cpu.accumulating_matmul"
_MATMUL = next(op for op in PRODUCTS if op.name == "matmul")


def _shape(x: Shape, y: Shape, s: Shape, first: Shape, **attrs: Any) -> Shape:
    product: Shape = _MATMUL.shape(x, y, **attrs)
    if product != s or first != (1,):
        raise Error(f"got s of shape {s} and first of shape {first}, need {product} and (1,)")
    return s


def _dtype(x: DType, y: DType, s: DType, first: DType, **_: Any) -> DType:
    if not {x, y} <= {FP16, FP32} or s is not FP32 or first is not BOOL:
        raise Error(f"got {x}, {y}, {s} and {first}, need fp16 or fp32 twice, fp32 and bool")
    return FP32


def _ref(x: Any, y: Any, s: Any, first: Any, **attrs: Any) -> Any:
    product = _MATMUL.ref(x, y, **attrs)
    return product if first[0] else s + product


OPS = (
    Op(
        name=ACCUMULATING_MATMUL,
        doc="s + matmul(x, y) in fp32, or only the product if `first` is true. x and y are in fp32 or fp16.",
        inputs=("x", "y", "s", "first"), outputs=("s",), attrs={"transpose_x": flag(False), "transpose_y": flag(False)},
        shape=_shape, dtype=_dtype, kernel="accumulating_matmul", level="kernel", updates=("s",), ref=_ref, cases=(),
    ),
)  # fmt: skip

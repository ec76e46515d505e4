"""Decodes a weight in every call, for kernels that read whole weights."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import FP16, FP32, DType
from hexane.errors import Error
from hexane.graph import Array, Node, TensorType
from hexane.ops.attributes import element_type, flag, integer, integers
from hexane.ops.records.encoded_product import can_be_encoded, check_numbers, columns_of, decoded, stored_dtype
from hexane.ops.shape_rules import Shape
from hexane.ops.spec import Op

DECODE = "cpu.decode"


def decodes_in_calls(product: Node) -> bool:
    """True if an encoded weight of this op is decoded in each call. False for weights with one channel on axis 1, as in
    depthwise convolutions: they are small, and decoding takes longer than the convolution."""
    weight = product.inputs[1] if product.op in ("conv", "conv_transpose") else None
    return weight is not None and weight.shape[1] > 1 and not (product.op == "conv" and can_be_encoded(product))


def _dtype(weight: DType, numbers: DType, bits: int, palette: bool, dtype: DType, **_: Any) -> DType:
    stored = stored_dtype(bits, palette)
    if weight is not stored or numbers is not FP32:
        raise Error(f"got {weight} and {numbers}, need {stored} and fp32")
    if dtype not in (FP32, FP16):
        raise Error(f"dtype: got {dtype}, need fp32 or fp16")
    return dtype


def _check(types: tuple[TensorType | None, ...], attrs: Mapping[str, Any]) -> None:
    weight, numbers = types
    assert weight is not None
    assert numbers is not None
    shape, axis = attrs["shape"], attrs["axis"]
    if not 0 <= axis < len(shape) or weight.rank != 2 or columns_of(weight.shape, numbers.shape) != shape[axis]:
        raise Error(f"got a weight {weight} for axis {axis} of {shape}, need as many rows as the axis has indices")
    check_numbers(weight, numbers, prod((*shape[:axis], *shape[axis + 1 :])), attrs["bits"], attrs["palette"])


def _ref(weight: Array, numbers: Array, bits: int, palette: bool, shape: Shape, axis: int, dtype: DType) -> Array:
    others = (*shape[:axis], *shape[axis + 1 :])
    rows = decoded(weight, numbers, prod(others), bits, palette)
    return np.ascontiguousarray(np.moveaxis(rows.reshape(shape[axis], *others), 0, axis), dtype.numpy)


OPS = (
    Op(
        name=DECODE,
        doc="The decoded form of a weight that is stored like the weight of cpu.encoded_matmul. Row i of the stored "
            "weight has the numbers at index i of `axis` of the result, in the order of the other axes. Each number is "
            "rounded to fp32, and then to fp16 if that is the dtype.",
        inputs=("weight", "numbers"),
        attrs={"bits": integer(8), "palette": flag(False), "shape": integers(), "axis": integer(0),
               "dtype": element_type(FP32)},
        shape=lambda *_, shape, **__: shape, dtype=_dtype, check=(_check,), kernel="decode",
        kernel_attrs=lambda types, attrs: {"bits": attrs["bits"], "palette": attrs["palette"], "axis": attrs["axis"]},
        level="kernel", every_call=True, ref=_ref,
        cases=(),
    ),
)  # fmt: skip

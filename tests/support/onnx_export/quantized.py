"""Quantised ops in ONNX, written out in fp32: the same integers where no sum lies so near to a tie that its rounding
decides."""

import numpy as np

from hexane.dtypes import FP32, INT32, DType
from hexane.graph import Node
from hexane.ops.records.quant import BYTES, INT8, UINT8
from onnx_export import Exporter, element_type
from onnx_export.forms import Form, shape_of, swapped, window

EXACT_TERMS = 256  # products of two bytes that fp32 adds up exactly


def quantize(e: Exporter, n: Node, x: str, scale: str, zero: str = "") -> str:
    if n.inputs[0] is not None and n.inputs[0].dtype.name != "fp32":
        x = as_float(e, x)
    kind = {} if zero else {"output_dtype": element_type(n.types[0].dtype)}
    return e.emit("QuantizeLinear", x, scale, zero, axis=n.attrs["axis"], **kind)


def dequantize(e: Exporter, n: Node, x: str, scale: str, zero: str = "") -> str:
    real = e.emit("DequantizeLinear", x, scale, zero, axis=n.attrs["axis"])
    return real if n.types[0].dtype.name == "fp32" else e.emit("Cast", real, to=element_type(n.types[0].dtype))


def lookup(e: Exporter, n: Node, x: str, table: str) -> str:
    """Negative bytes count from the end of the table, as Gather's indices do."""
    return e.emit("Gather", table, e.emit("Cast", x, to=element_type(INT32)))


def quantized_matmul(
    e: Exporter, n: Node, x: str, y: str, scale: str, bias: str, x_zero: str, y_zero: str
) -> str | None:
    y = swapped(e, y, len(shape_of(n, 1))) if n.attrs["transpose_y"] else y
    rank = len(shape_of(n, 1))
    if rank == 2 and n.inputs[3] is None and one_node(n):
        return e.emit("QLinearMatMul", *grids(e, n, x, y, scale, x_zero, y_zero))
    if rank == 2:
        return stored(e, n, e.emit("MatMulInteger", x, y, x_zero, y_zero), scale, bias, -1)
    if shape_of(n)[-1] > EXACT_TERMS:
        return None
    product = e.emit("MatMul", centred(e, x, x_zero), centred(e, y, y_zero))
    return stored(e, n, e.emit("Cast", product, to=element_type(INT32)), scale, bias, -1)


def quantized_conv(
    e: Exporter, n: Node, x: str, weight: str, scale: str, bias: str, x_zero: str, weight_zero: str
) -> str | None:
    """Centred before where peers have no QLinearConv, nor a ConvInteger."""
    if one_node(n):
        return window("QLinearConv")(e, n, *grids(e, n, x, weight, scale, x_zero, weight_zero), bias)
    channels = 1 if n.attrs["layout"] == "nchw" else len(shape_of(n)) - 1
    if not scale and dtype_of(n, 0) is UINT8 and dtype_of(n, 1) is UINT8 and single(n, 5):
        return stored(e, n, window("ConvInteger")(e, n, x, weight, x_zero, weight_zero), scale, bias, channels)
    first, *spatial = shape_of(n, 1)[1:]
    if first * int(np.prod(spatial)) > EXACT_TERMS:
        return None
    if weight_zero and n.inputs[5] is not None and n.inputs[5].shape:
        weight_zero = e.emit("Reshape", weight_zero, e.ints(-1, *[1] * (len(spatial) + 1)))
    product = window("Conv")(e, n, centred(e, x, x_zero), centred(e, weight, weight_zero))
    return stored(e, n, e.emit("Cast", product, to=element_type(INT32)), scale, bias, channels)


def quantized_add(e: Exporter, n: Node, x: str, y: str) -> str:
    """As a sum in fp32 of dequantised operands."""
    operands = []
    for name, value, v in (("x", x, n.inputs[0]), ("y", y, n.inputs[1])):
        assert v is not None
        grid = e.const(n.attrs[f"{name}_scale"], np.float32), e.const(n.attrs[f"{name}_zero"], v.dtype.numpy)
        operands.append(e.emit("DequantizeLinear", value, *grid))
    return requantised(e, n, e.emit("Add", *operands))


def one_node(n: Node) -> bool:
    """Whether peers have a QLinearConv or QLinearMatMul of these dtypes: of one result's, with a bias of integers."""
    x, y, bias, out = dtype_of(n, 0), dtype_of(n, 1), dtype_of(n, 3), n.types[0].dtype
    return out is x and (x is UINT8 or y is INT8) and bias in (None, INT32) and single(n, 5)


def grids(e: Exporter, n: Node, x: str, y: str, scale: str, x_zero: str, y_zero: str) -> list[str]:
    """The operands of QLinear ops, the scale of x being 1."""

    def zero(name: str, i: int) -> str:
        dtype = dtype_of(n, i)
        assert dtype is not None
        return name or e.const(0, dtype.numpy)

    out = e.const(n.attrs["output_scale"], np.float32), e.const(n.attrs["output_zero"], n.types[0].dtype.numpy)
    return [x, e.const(1, np.float32), zero(x_zero, 0), y, scale, zero(y_zero, 1), *out]


def dtype_of(n: Node, i: int) -> DType | None:
    value = n.inputs[i]
    return None if value is None else value.dtype


def single(n: Node, i: int) -> bool:
    value = n.inputs[i]
    return value is None or not value.shape


def centred(e: Exporter, x: str, zero: str) -> str:
    return e.emit("Sub", as_float(e, x), as_float(e, zero)) if zero else as_float(e, x)


def as_float(e: Exporter, x: str) -> str:
    return e.emit("Cast", x, to=element_type(FP32))


def stored(e: Exporter, n: Node, total: str, scale: str, bias: str, axis: int) -> str:
    """The ops behind int32 sums."""
    shape = [-1 if i == axis % n.types[0].rank else 1 for i in range(n.types[0].rank)]

    def along(v: str, i: int) -> str:
        value = n.inputs[i]
        return e.emit("Reshape", v, e.ints(*shape)) if value is not None and value.shape else v

    of_int32 = n.inputs[3] is not None and n.inputs[3].dtype is INT32
    if bias and of_int32:
        total = e.emit("Add", total, along(bias, 3))
    if not scale:
        return total
    real = e.emit("Mul", as_float(e, total), along(scale, 2))
    if bias and not of_int32:
        real = e.emit("Add", real, along(bias, 3))
    return requantised(e, n, real) if n.types[0].dtype in BYTES else real


def requantised(e: Exporter, n: Node, real: str) -> str:
    scale, zero = e.const(n.attrs["output_scale"], np.float32), e.const(n.attrs["output_zero"], n.types[0].dtype.numpy)
    return e.emit("QuantizeLinear", real, scale, zero)


FORMS: dict[str, Form] = {
    "quantize": quantize,
    "dequantize": dequantize,
    "lookup": lookup,
    "quantized_matmul": quantized_matmul,
    "quantized_conv": quantized_conv,
    "quantized_add": quantized_add,
}

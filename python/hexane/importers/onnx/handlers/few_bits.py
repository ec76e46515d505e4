"""onnxruntime's matrix products with weights of 2, 4 or 8 bits."""

import numpy as np

from hexane.dtypes import DTYPES, FP16, FP32
from hexane.errors import Error
from hexane.graph import Array, constant
from hexane.importers.onnx.node import Builder, OnnxNode, Result
from hexane.importers.onnx.registry import domain_op
from hexane.ops import OPS, apply

BITS = (2, 4, 8)


@domain_op("com.microsoft", "MatMulNBits")
def matmul_nbits(b: Builder, n: OnnxNode) -> Result:
    """Returns a linear layer whose weight is integers, with a scale and a zero point for each block of a row.

    accuracy_level allows onnxruntime to round the other operand; Hexane does not.
    """
    x, bias = n.value(0), n.optional(5)
    columns, terms, block = (int(n.attrs.get(name, 0)) for name in ("N", "K", "block_size"))
    bits = int(n.attrs.get("bits", 4))
    n.attrs.get("accuracy_level")
    if x.dtype not in (FP32, FP16) or bits not in BITS or min(columns, terms, block) < 1:
        raise Error(
            f"got {x.dtype}, bits {bits}, N {columns}, K {terms} and block_size {block}, need fp32 or fp16, 2, 4 or 8"
            " bits, and positive numbers"
        )
    if n.attrs.get("weight_prepacked", 0):
        raise Error("weight_prepacked: got a weight in the order of a device's kernel, need 0")
    count = -(-terms // block)
    codes = _unpacked(n.array(1), (columns, count * block), bits, "weight")[:, :terms]
    scales = n.array(2)
    if scales.size != columns * count or scales.dtype != x.dtype.numpy:
        raise Error(f"scales: got {scales.dtype}{list(scales.shape)}, need {columns} x {count} in {x.dtype}")
    scales = scales.reshape(columns, count)
    zeros = _zeros(n, columns, count, bits)
    places = np.arange(terms) // block
    if n.has(4):
        places = n.array(4)
        if places.shape != (terms,) or places.min() < 0 or places.max() >= count:
            raise Error(
                f"g_idx: got {list(places.shape)}, need the block of each of {terms} terms, from 0 to {count - 1}"
            )
    sources = n.value(1).node.sources
    centred = codes - zeros[:, places]
    in_order = terms % block == 0 and np.array_equal(places, np.arange(terms) // block)
    if in_order and np.array_equal(centred, centred.astype(np.int8)):
        operands = [constant(centred.astype(np.int8), sources), constant(scales, sources)]
        weight = apply(OPS["decode_blocks"], operands, {}, b.sources)[0]
    else:
        numbers = centred.astype(np.float64) * scales.astype(np.float64)[:, places]
        weight = constant(numbers.astype(x.dtype.numpy), sources)
    return b.linear(x, weight, bias)


def _unpacked(data: Array, shape: tuple[int, int], bits: int, what: str) -> Array:
    """Unpacks rows of integers from the lowest bits up. Each row starts at a byte."""
    rows, length = shape
    width = -(-length * bits // 8)
    if data.dtype != DTYPES["uint8"].numpy or data.size != rows * width:
        raise Error(f"{what}: got {data.dtype}{list(data.shape)}, need {rows} x {width} uint8")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = data.reshape(rows, width, 1) >> shifts & np.uint8((1 << bits) - 1)
    numbers: Array = codes.reshape(rows, -1)[:, :length].astype(np.int16)
    return numbers


def _zeros(n: OnnxNode, columns: int, count: int, bits: int) -> Array:
    """Returns the zero point of each block. The file has zero points packed like the weight, or as floats, or
    none, which means the middle of the range."""
    if not n.has(3):
        return np.full((columns, count), 1 << (bits - 1), np.int16)
    zeros = n.array(3)
    if zeros.dtype.kind != "f":
        return _unpacked(zeros, (columns, count), bits, "zero points")
    if zeros.size != columns * count:
        raise Error(f"zero points: got {list(zeros.shape)}, need {columns} x {count}")
    return zeros.reshape(columns, count).astype(np.float32)

"""Products and convolutions whose weight is stored as a bit for each number, and the nonzero numbers."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import DTYPES, FP32, DType
from hexane.errors import Error
from hexane.graph import Array, Node, TensorType, Value
from hexane.ops.attributes import SLOTS, flag, integer, integers
from hexane.ops.records.conv import convolve
from hexane.ops.records.linear import matmul_shape
from hexane.ops.shape_rules import Shape
from hexane.ops.spec import Op
from hexane.ops.window_rules import LAYOUT, WINDOW, convolved_shape, split_shape, window_attrs, window_kernel_attrs

SPARSE_MATMUL = "cpu.sparse_matmul"
SPARSE_CONV = "cpu.sparse_conv"
MASK_COLUMNS = 64
END = 16  # zeros after the last number, because the kernel reads whole vectors


def is_multiplied_without_zeros(product: Node, weight: Value) -> bool:
    """True if a kernel supports the product with a sparse weight, in fp32: matrices, and convolutions of one group
    over one or two axes."""
    if weight.dtype is not FP32:
        return False
    if product.op == "conv":
        return product.attrs["groups"] == 1 and weight.type.rank in (3, 4)
    return product.op in ("linear", "matmul") and weight.type.rank == 2


def sparse(weight: Array) -> tuple[Array, Array]:
    """Returns the masks (groups of 64 columns, terms, 8 bytes) and the numbers of a weight (columns, terms). Numbers
    are stored unless all their bits are 0, so -0.0 is stored."""
    columns, terms = weight.shape
    groups = -(-columns // MASK_COLUMNS)
    padded = np.zeros((groups * MASK_COLUMNS, terms), np.float32)
    padded[:columns] = weight
    in_order = np.ascontiguousarray(padded.reshape(groups, MASK_COLUMNS, terms).swapaxes(1, 2))
    some = in_order.view(np.uint32) != 0
    masks = np.packbits(some, axis=2, bitorder="little")
    return masks, np.concatenate([in_order[some], np.zeros(END, np.float32)])


def whole(masks: Array, numbers: Array, columns: int) -> Array:
    """Returns the weight (columns, terms) of masks and numbers."""
    groups, terms, _ = masks.shape
    some = np.unpackbits(masks, axis=2, bitorder="little").astype(np.bool_)
    if len(numbers) != some.sum() + END:
        raise Error(f"numbers: got {len(numbers)}, need {some.sum() + END} for the bits of the masks")
    array = np.zeros((groups, terms, MASK_COLUMNS), np.float32)
    array[some] = numbers[: len(numbers) - END]
    return np.ascontiguousarray(array.swapaxes(1, 2).reshape(groups * MASK_COLUMNS, terms)[:columns])


def _shape(
    x: Shape, masks: Shape, numbers: Shape, bias: Shape | None, columns: int, transpose_x: bool, **_: Any
) -> Shape:
    return matmul_shape(x, (columns, x[-2 if transpose_x else -1]), bias, transpose_x, True)


def _dtype(x: DType, masks: DType, numbers: DType, bias: DType | None, **_: Any) -> DType:
    if masks is not DTYPES["uint8"] or {x, numbers, bias or FP32} != {FP32}:
        raise Error(f"got {x}, {masks}, {numbers} and {bias}, need fp32, uint8, fp32 and fp32")
    return FP32


def _check(types: tuple[TensorType | None, ...], attrs: Mapping[str, Any]) -> None:
    x, masks, numbers = types[:3]
    assert x is not None
    assert masks is not None
    assert numbers is not None
    columns = attrs["columns"]
    if x.rank < 2 or columns < 0:
        raise Error(f"got x {x} and {columns} columns, need at least 2 axes and 0")
    axis = 1 if attrs.get("layout") == "nchw" else -2 if attrs.get("transpose_x") else -1
    terms = x.shape[axis] * prod(attrs.get("kernel_sizes", ()))
    need = (-(-columns // MASK_COLUMNS), terms, MASK_COLUMNS // 8)
    if masks.shape != need or numbers.rank != 1 or numbers.size < END:
        raise Error(f"got masks {masks} and numbers {numbers}, need the shape {need} and one axis of {END} or more")


def _ref(x: Array, masks: Array, numbers: Array, bias: Array | None, columns: int, transpose_x: bool) -> Array:
    x = np.swapaxes(x, -1, -2) if transpose_x else x
    y: Array = np.matmul(x, whole(masks, numbers, columns).T)
    return y if bias is None else y + bias


# ---- products of windows ----


def _conv_shape(
    x: Shape, masks: Shape, numbers: Shape, bias: Shape | None, columns: int, kernel_sizes: Shape, strides: Shape,
    dilations: Shape, pad: Shape, layout: str, **_: Any,
) -> Shape:  # fmt: skip
    weight = (columns, split_shape(x, layout)[1], *kernel_sizes)
    return convolved_shape(x, weight, bias, strides, dilations, pad, 1, layout)


def _conv(
    x: Array, masks: Array, numbers: Array, bias: Array | None, columns: int, kernel_sizes: Shape, layout: str,
    **window: Any,
) -> Array:  # fmt: skip
    channels = split_shape(x.shape, layout)[1]
    weight = np.moveaxis(whole(masks, numbers, columns).reshape(columns, *kernel_sizes, channels), -1, 1)
    result: Array = convolve(x, weight, bias, **window, groups=1, layout=layout)
    return result


OPS = (
    Op(
        name=SPARSE_CONV,
        doc="conv of one group whose weight (out, kernel... * in), channels innermost, is stored like that of "
            "cpu.sparse_matmul.",
        inputs=("x", "masks", "numbers", "bias?"),
        attrs={"columns": integer(), "kernel_sizes": integers(), **WINDOW, "layout": LAYOUT, "epilogue": SLOTS},
        shape=_conv_shape, dtype=_dtype, canonical=window_attrs, check=(_check,), kernel="sparse_conv",
        kernel_attrs=window_kernel_attrs, level="kernel", layout="spatial", epilogue=True, padding=0.0, ref=_conv,
        cases=(),
    ),
    Op(
        name=SPARSE_MATMUL,
        doc="x @ weight.T + bias, for a weight (columns, terms) of which only the nonzero numbers are stored. The "
            "masks (groups of 64 columns, terms, 8 bytes) have a bit for each, the lowest for the first column; "
            "numbers has them in this order, and 16 unused ones at its end.",
        inputs=("x", "masks", "numbers", "bias?"),
        attrs={"columns": integer(), "transpose_x": flag(False), "epilogue": SLOTS},
        shape=_shape, dtype=_dtype, check=(_check,), kernel="sparse_matmul", level="kernel", epilogue=True,
        lengths="rows", ref=_ref, cases=(),
    ),
)  # fmt: skip

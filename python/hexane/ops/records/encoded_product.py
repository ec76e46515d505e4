"""CPU kernels that multiply by compressed weights, which they decode while reading. Operands are
rows, pixels or windows."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import DTYPES, FP16, FP32, DType
from hexane.errors import Error
from hexane.graph import Array, Node, TensorType, Value
from hexane.ops.attributes import SLOTS, flag, integer, integers
from hexane.ops.records.conv import convolve
from hexane.ops.records.linear import matmul_shape
from hexane.ops.shape_rules import Shape
from hexane.ops.spec import Op
from hexane.ops.window_rules import LAYOUT, WINDOW, convolved_shape, split_shape, window_attrs, window_kernel_attrs

ENCODED_MATMUL = "cpu.encoded_matmul"
ENCODED_ROWS_MATMUL = "cpu.encoded_rows_matmul"  # The weight is not transposed.
ENCODED_PIXELS = "cpu.encoded_pixels"  # An encoded_matmul for each pixel of an image.
ENCODED_CONV = "cpu.encoded_conv"  # An encoded_matmul for each window.
ENCODED = (ENCODED_MATMUL, ENCODED_PIXELS, ENCODED_CONV)
TABLE_COLUMNS = 8  # If there are several tables, each is for a multiple of 8 columns.
VECTOR_TABLE_COLUMNS = 16  # The same for tables of vectors.
SHORT_TABLE, LONG_TABLE = 16, 256  # The most entries of a table for indices of 4 bits, and of 8 bits.
BITS = (4, 8)
VECTORS = (2, 4)  # numbers in an entry of a table of vectors


def table_columns(of_vectors: bool) -> int:
    """Returns the unit of columns for tables: if there are several tables, each serves a multiple of this number."""
    return VECTOR_TABLE_COLUMNS if of_vectors else TABLE_COLUMNS


def multiplies_pixels(conv: Node) -> bool:
    """True if a convolution multiplies each pixel by one matrix."""
    weight, attrs = conv.inputs[1], conv.attrs
    assert weight is not None
    alone = attrs["groups"] == 1 and {*attrs["strides"]} == {1} and not any(attrs["pad"])
    return alone and all(extent == 1 for extent in weight.shape[2:])


def can_be_encoded(conv: Node) -> bool:
    """True if a kernel for the convolution decodes its weight: it has one group and one or two spatial axes, or
    multiplies pixels."""
    return (conv.attrs["groups"] == 1 and conv.types[0].rank in (3, 4)) or multiplies_pixels(conv)


def columns_of(weight: Shape, numbers: Shape) -> int:
    """Returns the number of the product's columns. In tables of vectors (groups, entries, vector), an index is for
    several columns."""
    return weight[0] * (numbers[2] if len(numbers) == 3 else 1)


def _shape(x: Shape, weight: Shape, numbers: Shape, bias: Shape | None, transpose_x: bool, **__: Any) -> Shape:
    return matmul_shape(x, (columns_of(weight, numbers), x[-2 if transpose_x else -1]), bias, transpose_x, True)


def stored_dtype(bits: int, palette: bool) -> DType:
    """Returns the dtype of the stored weight: int8 for integers of 8 bits, uint8 for indices and pairs of 4 bits."""
    return DTYPES["int8" if bits == 8 and not palette else "uint8"]


def _dtype(x: DType, weight: DType, numbers: DType, bias: DType | None, bits: int, palette: bool, **_: Any) -> DType:
    stored = stored_dtype(bits, palette)
    if weight is not stored or numbers is not FP32 or x not in (FP32, FP16) or bias not in (None, x):
        raise Error(f"got {x}, {weight}, {numbers} and {bias}, need fp32 or fp16, {stored}, fp32 and the dtype of x")
    return x


def _check(types: tuple[TensorType | None, ...], attrs: Mapping[str, Any]) -> None:
    x, weight, numbers = types[:3]
    assert x is not None
    assert weight is not None
    assert numbers is not None
    if x.rank < 2:
        raise Error(f"got x {x}, need at least 2 axes")
    axis = 1 if attrs.get("layout") == "nchw" else -2 if attrs.get("transpose_x") else -1
    terms = x.shape[axis] * prod(attrs.get("kernel_sizes", ()))
    check_numbers(weight, numbers, terms, attrs["bits"], attrs["palette"])


def check_numbers(weight: TensorType, numbers: TensorType, k: int, bits: int, palette: bool) -> None:
    """Raises Error unless the weight has rows of k numbers each, with matching scales or tables."""
    of_vectors = palette and numbers.rank == 3
    if weight.rank != 2 or (numbers.rank != 2 and not of_vectors):
        raise Error(f"got a weight {weight} and numbers {numbers}, need 2 axes and 2, or 3 for tables of vectors")
    if of_vectors and numbers.shape[2] not in VECTORS:
        raise Error(f"got tables of shape {numbers.shape}, need vectors of {' or '.join(map(str, VECTORS))} numbers")
    if bits not in BITS:
        raise Error(f"bits: got {bits}, need {' or '.join(map(str, BITS))}")
    n, (rows, width, *_) = columns_of(weight.shape, numbers.shape), numbers.shape
    if weight.shape[1] != (k * bits + 7) // 8:
        raise Error(f"got a weight of shape {weight.shape}, need {k} numbers of {bits} bits in each row")
    if palette:
        least = table_columns(of_vectors)
        runs = rows == 1 or (rows > 0 and n % rows == 0 and n // rows % least == 0)
        most = SHORT_TABLE if bits == 4 else LONG_TABLE
        if not runs or not 0 < width <= most:
            raise Error(
                f"got tables of shape {numbers.shape} for {n} columns, need 1 to {most} entries, and one table or"
                f" one for each multiple of {least} columns"
            )
    elif width != n or rows < 1 or k % rows or (bits == 4 and rows > 1 and k // rows % 2):
        raise Error(
            f"got scales of shape {numbers.shape}, need (blocks, {n}), and blocks that are equal parts of {k} numbers"
            f"{', of an even number each' if bits == 4 else ''}"
        )


def decoded(weight: Array, numbers: Array, k: int, bits: int, palette: bool) -> Array:
    """Returns the decoded numbers (columns, k), each rounded once to fp32."""
    codes = weight.view(np.uint8)
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)[:, :k]
    rows, width, *vector = numbers.shape
    numbers = np.asarray(numbers, np.float64)
    if vector:
        parts = [decoded(weight, numbers[..., i], k, bits, palette) for i in range(*vector)]
        return np.stack(parts, axis=1).reshape(-1, k)
    if palette:
        table = np.arange(len(codes)) * rows // max(len(codes), 1)
        array: Array = numbers[table[:, None], np.minimum(codes, width - 1)]
        return array.astype(np.float32)
    integers = codes.view(np.int8) if bits == 8 else (codes ^ 8).astype(np.int8) - np.int8(8)
    scales = numbers[np.arange(k) * rows // max(k, 1)].T
    products: Array = integers * scales
    return products.astype(np.float32)


def _ref(
    x: Array, weight: Array, numbers: Array, bias: Array | None, bits: int, palette: bool, transpose_x: bool
) -> Array:
    x = np.swapaxes(x, -1, -2) if transpose_x else x
    y: Array = np.matmul(x, decoded(weight, numbers, x.shape[-1], bits, palette).T.astype(x.dtype))
    return y if bias is None else y + bias


# ---- products of rows ----


def _rows_shape(
    x: Shape, weight: Shape, numbers: Shape, bias: Shape | None, transpose_x: bool, bits: int, palette: bool, width: int,
    **__: Any,
) -> Shape:  # fmt: skip
    return matmul_shape(x, (columns_of(weight, numbers), width), bias, transpose_x, False)


def _rows_dtype(x: DType, weight: DType, numbers: DType, bias: DType | None, **attrs: Any) -> DType:
    if x is not FP32:
        raise Error(f"got {x}, need fp32")
    return _dtype(x, weight, numbers, bias, **attrs)


def _check_rows(types: tuple[TensorType | None, ...], attrs: Mapping[str, Any]) -> None:
    x, weight, numbers = types[:3]
    assert x is not None
    assert weight is not None
    assert numbers is not None
    if x.rank < 2:
        raise Error(f"got x {x}, need at least 2 axes")
    check_numbers(weight, numbers, attrs["width"], attrs["bits"], attrs["palette"])


def _rows(
    x: Array, weight: Array, numbers: Array, bias: Array | None, bits: int, palette: bool, transpose_x: bool, width: int
) -> Array:
    x = np.swapaxes(x, -1, -2) if transpose_x else x
    y: Array = np.matmul(x, decoded(weight, numbers, width, bits, palette))
    return y if bias is None else y + bias


def _rows_attrs(inputs: tuple[Value | None, ...], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: attrs[name] for name in ("bits", "palette", "transpose_x", "epilogue")}


# ---- products of pixels ----


def _pixel_shape(x: Shape, weight: Shape, numbers: Shape, bias: Shape | None, layout: str, **__: Any) -> Shape:
    columns = columns_of(weight, numbers)
    if len(x) < 3 or bias not in (None, (columns,)):
        raise Error(f"got x of shape {x} and a bias of {bias}, need at least 3 axes and ({columns},)")
    return (x[0], columns, *x[2:]) if layout == "nchw" else (*x[:-1], columns)


def _pixels(
    x: Array, weight: Array, numbers: Array, bias: Array | None, bits: int, palette: bool, layout: str
) -> Array:
    axis = 1 if layout == "nchw" else -1
    y = _ref(np.moveaxis(x, axis, -1), weight, numbers, bias, bits, palette, False)
    return np.ascontiguousarray(np.moveaxis(y, -1, axis))


def _pixel_attrs(inputs: tuple[Value | None, ...], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"bits": attrs["bits"], "palette": attrs["palette"], "transpose_x": False, "epilogue": attrs["epilogue"]}


# ---- products of windows ----


def _whole(x: Shape, weight: Shape, numbers: Shape, kernel_sizes: Shape, layout: str) -> Shape:
    """Returns the shape of the weight in conv's order."""
    return (columns_of(weight, numbers), split_shape(x, layout)[1], *kernel_sizes)


def _conv_shape(
    x: Shape, weight: Shape, numbers: Shape, bias: Shape | None, kernel_sizes: Shape, strides: Shape, dilations: Shape,
    pad: Shape, layout: str, **__: Any,
) -> Shape:  # fmt: skip
    return convolved_shape(
        x, _whole(x, weight, numbers, kernel_sizes, layout), bias, strides, dilations, pad, 1, layout
    )


def _conv(
    x: Array, weight: Array, numbers: Array, bias: Array | None, bits: int, palette: bool, kernel_sizes: Shape,
    layout: str, **window: Any,
) -> Array:  # fmt: skip
    out, channels, *taps = _whole(x.shape, weight.shape, numbers.shape, kernel_sizes, layout)
    rows = decoded(weight, numbers, channels * prod(taps), bits, palette).astype(x.dtype)
    whole = np.moveaxis(rows.reshape(out, *taps, channels), -1, 1)
    result: Array = convolve(x, whole, bias, **window, groups=1, layout=layout)
    return result


OPS = (
    Op(
        name=ENCODED_CONV,
        doc="conv of one group whose weight (out, kernel... * in), channels innermost, is stored like that of "
            "cpu.encoded_matmul.",
        inputs=("x", "weight", "numbers", "bias?"),
        attrs={"bits": integer(8), "palette": flag(False), "kernel_sizes": integers(), **WINDOW, "layout": LAYOUT,
               "epilogue": SLOTS},
        shape=_conv_shape, dtype=_dtype, canonical=window_attrs, check=(_check,), kernel="encoded_conv",
        kernel_attrs=window_kernel_attrs, level="kernel", layout="spatial", epilogue=True, padding=0.0,
        product=lambda scale, *_, **__: scale[:, None], ref=_conv, cases=(),
    ),
    Op(
        name=ENCODED_PIXELS,
        doc="cpu.encoded_matmul of each pixel of x (N, C, spatial...): a convolution whose kernel is one pixel. layout nhwc: x and the result have channels last.",
        inputs=("x", "weight", "numbers", "bias?"),
        attrs={"bits": integer(8), "palette": flag(False), "layout": LAYOUT, "epilogue": SLOTS},
        shape=_pixel_shape, dtype=_dtype, check=(_check,), kernel="encoded_matmul", kernel_attrs=_pixel_attrs,
        level="kernel", layout="spatial", epilogue=True, product=lambda scale, *_, **__: scale[:, None], ref=_pixels,
        cases=(),
    ),
    Op(
        name=ENCODED_ROWS_MATMUL,
        doc="x @ weight + bias, where weight is stored like that of cpu.encoded_matmul. width: the number of elements "
            "in each of its rows.",
        inputs=("x", "weight", "numbers", "bias?"),
        attrs={"bits": integer(8), "palette": flag(False), "transpose_x": flag(False), "width": integer(),
               "epilogue": SLOTS},
        shape=_rows_shape, dtype=_rows_dtype, check=(_check_rows,), kernel="encoded_rows_matmul",
        kernel_attrs=_rows_attrs, level="kernel", epilogue=True, product=lambda scale, *_, **__: scale[None, :],
        lengths="rows", ref=_rows, cases=(),
    ),
    Op(
        name=ENCODED_MATMUL,
        doc="x @ weight.T + bias, where weight is stored as integers of 4 or 8 bits with scales (blocks, columns), or "
            "as indices of 4 or 8 bits into tables (groups, entries). Tables (groups, entries, 2 or 4) have one row of "
            "indices for 2 or 4 columns. Two numbers of 4 bits share a byte, the first in its lower half.",
        inputs=("x", "weight", "numbers", "bias?"),
        attrs={"bits": integer(8), "palette": flag(False), "transpose_x": flag(False), "epilogue": SLOTS},
        shape=_shape, dtype=_dtype, check=(_check,), kernel="encoded_matmul", level="kernel", epilogue=True,
        product=lambda scale, *_, **__: scale[:, None], lengths="rows", ref=_ref, cases=(),
    ),
)  # fmt: skip

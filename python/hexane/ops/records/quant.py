"""Quantised tensors: small integers, with scales and zero points that map them to real numbers.

A real number is (q - zero) * scale. Scales and zero points are operands, constant or not.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hexane.dtypes import DTYPES, FP16, FP32, INT32, DType
from hexane.errors import Error
from hexane.graph import TensorType, Value
from hexane.ops.attributes import element_type, integer, no_attrs
from hexane.ops.compose import Builder
from hexane.ops.gradients import norms as grads
from hexane.ops.shape_rules import Shape, axis_index, same
from hexane.ops.spec import Case, Op

Array = Any
Types = Sequence[TensorType | None]
INT8, UINT8 = DTYPES["int8"], DTYPES["uint8"]
BYTES = (INT8, UINT8)
INTEGERS = (*BYTES, DTYPES["int16"], DTYPES["uint16"])


def rounded(steps: Array, zero: Array | float, dtype: DType) -> Array:
    """Rounds real multiples of the scale to the nearest integer, halves to even, adds the zero point and saturates. NaN
    becomes 0."""
    info = np.iinfo(dtype.numpy)
    moved = np.rint(steps).astype(np.float64) + zero
    return np.nan_to_num(np.clip(moved, info.min, info.max), nan=0.0).astype(dtype.numpy)


def need(got: DType | None, what: str, *allowed: DType) -> None:
    if got is not None and got not in allowed:
        raise Error(f"{what}: got {got}, need {' or '.join(map(str, allowed))}")


# ---- quantisation and dequantisation ----


def along(values: Array, axis: int, rank: int) -> Array:
    """Reshapes a scale or zero point to broadcast."""
    return values.reshape([-1 if i == axis else 1 for i in range(rank)]) if np.ndim(values) else values


def _quantize(x: Array, scale: Array, zero: Array | None, axis: int, dtype: DType) -> Array:
    steps = np.float32(x) / along(np.float32(scale), axis, x.ndim)
    return rounded(steps, 0 if zero is None else along(zero, axis, x.ndim), dtype)


def _dequantize(x: Array, scale: Array, zero: Array | None, axis: int, dtype: DType) -> Array:
    steps = x.astype(np.float64) - (0 if zero is None else along(zero, axis, x.ndim).astype(np.float64))
    return steps * along(scale, axis, x.ndim)


def _canonical(types: Types, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes. The axis is 0 for a single scale, which needs no axis."""
    x, scale = types[:2]
    assert x is not None
    assert scale is not None
    return {**attrs, "axis": axis_index(attrs["axis"], x.rank) if scale.rank else 0}


def _check_scale(types: Types, attrs: Mapping[str, Any]) -> None:
    x, scale, zero = types
    assert x is not None
    assert scale is not None
    if scale.rank and scale.shape != (x.shape[attrs["axis"]],):
        raise Error(f"got a scale of shape {scale.shape}, need () or ({x.shape[attrs['axis']]},)")
    if zero is not None and zero.shape != scale.shape:
        raise Error(f"got a zero point of shape {zero.shape}, need that of the scale, {scale.shape}")


def _quantize_dtype(x: DType, scale: DType, zero: DType | None, dtype: DType, **_: Any) -> DType:
    need(x, "x", FP32, FP16)
    need(scale, "scale", FP32)
    need(dtype, "dtype", *INTEGERS)
    need(zero, "zero point", dtype)
    return dtype


def _dequantize_dtype(x: DType, scale: DType, zero: DType | None, dtype: DType, **_: Any) -> DType:
    need(x, "x", *INTEGERS, INT32)
    need(scale, "scale", FP32)
    need(dtype, "dtype", FP32, FP16)
    need(zero, "zero point", x)
    return dtype


def _decode_blocks(x: Array, scales: Array) -> Array:
    places = [np.arange(d) * s // max(d, 1) for d, s in zip(x.shape, scales.shape, strict=True)]
    return x.astype(np.float64) * scales[np.ix_(*places)].astype(np.float64)


def _blocks_shape(x: Shape, scales: Shape) -> Shape:
    if len(scales) != len(x) or 0 in scales or any(d % s for d, s in zip(x, scales, strict=True)):
        raise Error(
            f"got scales of shape {scales} for integers of shape {x}, need the number of blocks along each axis, which"
            " divides its extent"
        )
    return x


def _blocks_dtype(x: DType, scales: DType) -> DType:
    need(x, "x", BYTES[0])
    need(scales, "scales", FP32, FP16)
    return scales


def _expand_blocks(b: Builder, x: Value, scales: Value) -> Value:
    """Repeats each scale for the numbers of its block, and multiplies."""
    for axis, (extent, blocks) in enumerate(zip(x.shape, scales.shape, strict=True)):
        if 1 < blocks < extent:
            scales = b.gather(scales, b.const((np.arange(extent) // (extent // blocks)).astype(np.int32)), axis=axis)
    return b.mul(b.cast(x, dtype=scales.dtype), scales)


def _lookup_shape(x: Shape, table: Shape) -> Shape:
    if table != (256,):
        raise Error(f"got a table of shape {table}, need (256,)")
    return x


def _lookup_dtype(x: DType, table: DType) -> DType:
    need(x, "x", *BYTES)
    need(table, "table", *BYTES)
    return table


def array(dtype: str, *values: float) -> Array:
    return np.array(values, dtype)


def image(x: Array, *shape: int) -> Array:
    return np.resize(x, shape)


SIGNED = np.arange(-60, 60, dtype=np.int8)
UNSIGNED = np.arange(7, 127, dtype=np.uint8)
WEIGHT = (np.arange(240) * 37 % 255 - 127).astype(np.int8)
BIAS, SCALES = array("int32", 300, -5, 0, 7, -900, 60), array("float32", 0.25, 0.5, 1, 0.125, 0.0625, 0.25)


OPS = (
    Op(
        name="quantize", doc="x / scale, rounded half to even, plus the zero point, saturated.",
        inputs=("x", "scale", "zero?"), attrs={"axis": integer(0), "dtype": element_type()}, shape=same,
        dtype=_quantize_dtype, check=(_check_scale,), canonical=_canonical, kernel="quantize",
        kernel_attrs=lambda types, attrs: {"axis": attrs["axis"]}, layout="axis", ref=_quantize,
        cases=(
            Case(attrs={"dtype": "int8"}, arrays=(image(array("float32", 0.5, -7, 90, 2.5, -300), 3, 17), np.float32(0.5), np.int8(-3))),
            Case(attrs={"dtype": "uint8", "axis": 1}, arrays=(image(array("float32", 0.5, -7, 9, 2.5), 5, 3, 2), array("float32", 0.5, 2, 4), array("uint8", 9, 0, 255))),
            Case(attrs={"dtype": "int8"}, arrays=(array("float32", 1.5, 2.5, np.inf, -np.inf, np.nan), np.float32(1))),
            Case(attrs={"dtype": "uint8"}, arrays=(np.zeros((0, 3), np.float32), np.float32(1))),
        ),
    ),
    Op(
        name="dequantize", doc="(x - zero) * scale.", inputs=("x", "scale", "zero?"),
        attrs={"axis": integer(0), "dtype": element_type(FP32)}, shape=same, dtype=_dequantize_dtype,
        check=(_check_scale,), canonical=_canonical, kernel="dequantize",
        kernel_attrs=lambda types, attrs: {"axis": attrs["axis"]}, layout="axis", ref=_dequantize,
        cases=(
            Case(arrays=(image(SIGNED, 2, 3, 17), np.float32(0.25), np.int8(-3))),
            Case(attrs={"axis": 1}, arrays=(image(UNSIGNED, 5, 3, 2), array("float32", 0.5, 2, 4), array("uint8", 9, 0, 255))),
            Case(attrs={"axis": -1}, arrays=(image(BIAS, 4, 6), SCALES)),
            Case(attrs={"dtype": "fp16"}, arrays=(SIGNED, np.float32(0.5))),
            Case(arrays=(array("int16", -32768, 32767, 0), np.float32(0.5), np.int16(7))),
        ), grad=grads.dequantize,
    ),
    Op(
        name="decode_blocks", doc="out[i, j] = x[i, j] * scales[i // h, j // w]: one scale for each block of h x w "
            "integers. The shape of scales gives the number of blocks along each axis.",
        inputs=("x", "scales"), shape=_blocks_shape, dtype=_blocks_dtype, expand=_expand_blocks, ref=_decode_blocks,
        cases=(Case(arrays=(image(SIGNED, 4, 6), array("float32", 0.5, 0.25, 1, 2).reshape(2, 2))),
               Case(arrays=(image(WEIGHT, 3, 4, 2, 2), array("float16", 0.1, 0.2, 0.3, 0.4, 0.5, 0.6).reshape(3, 2, 1, 1)))),
    ),
    Op(
        name="lookup", doc="The elements of a table of 256 at the "
                           "bytes of x.", inputs=("x", "table"), shape=_lookup_shape,
        dtype=_lookup_dtype, kernel="lookup", kernel_attrs=no_attrs, layout="first",
        moves=("table",), ref=lambda x, table: table[np.asarray(x).view(np.uint8)],
        cases=(
            Case(arrays=(image(SIGNED, 3, 7), image(WEIGHT, 256))),
            Case(arrays=(image(UNSIGNED, 2, 3, 5), image(UNSIGNED, 256))),
        ),
    ),
)  # fmt: skip

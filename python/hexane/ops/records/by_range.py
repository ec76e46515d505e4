"""Quantises numbers at run time by their own range, which TFLite calls dynamic range."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import DTYPES, FP32, DType
from hexane.errors import Error
from hexane.graph import Array, TensorType
from hexane.ops.attributes import flag, integer
from hexane.ops.records.quant import array, image, need
from hexane.ops.shape_rules import Shape, axis_index
from hexane.ops.spec import Case, Op

QUANTIZE_BY_RANGE = "quantize_by_range"
LEAST_SCALE = np.float32(2.0**-126)  # the smallest scale whose inverse is finite
Types = Sequence[TensorType | None]


def _shapes(x: Shape, axis: int, **_: Any) -> list[Shape]:
    if not x:
        raise Error("got a scalar, need an axis or more")
    first = axis_index(axis, len(x))
    if not prod(x[first:]):
        raise Error(f"got {x} from axis {first} on, need an element or more")
    grid = (*x[:first], *[1] * (len(x) - first))
    return [x, grid, grid]


def _dtypes(x: DType, **_: Any) -> list[DType]:
    need(x, "x", FP32)
    return [DTYPES["int8"], FP32, FP32]


def _first_axis(types: Types, attrs: Mapping[str, Any]) -> dict[str, Any]:
    x = types[0]
    assert x is not None
    return {**attrs, "axis": axis_index(attrs["axis"], x.rank)}


def _steps(x: Array) -> Array:
    """Rounds to the nearest integer, halves away from 0. NaN becomes 0."""
    wide = np.nan_to_num(np.clip(x.astype(np.float64), -512, 512), nan=0.0)
    return np.asarray(np.sign(wide) * np.floor(np.abs(wide) + 0.5) + 0.0)


def _quantize_by_range(x: Array, axis: int, symmetric: bool) -> list[Array]:
    """Computes each operation in fp32, like the kernel."""
    f, axes = np.float32, tuple(range(axis, x.ndim))
    x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        if symmetric:
            largest = np.max(np.abs(x), axis=axes, keepdims=True)
            small = (largest > 0) & (largest < f(127) * LEAST_SCALE)
            scale = np.where(largest == 0, f(1), np.where(small, LEAST_SCALE, largest / f(127)))
            inverse = np.where(small, f(1) / LEAST_SCALE, f(127) / np.where(largest == 0, f(1), largest))
            zero, least = np.zeros_like(scale), -127
        else:
            low = np.minimum(np.min(x, axis=axes, keepdims=True), f(0))
            high = np.maximum(np.max(x, axis=axes, keepdims=True), f(0))
            empty = low == high
            scale = np.where(empty, f(1), np.maximum((high - low) / f(255), LEAST_SCALE))
            from_low, from_high = low / scale, high / scale
            is_low = np.abs(from_low) + f(128) < np.abs(from_high) + f(127)
            end = np.where(is_low, f(-128) - from_low, f(127) - from_high)
            zero = np.where(empty, 0, np.clip(_steps(end), -128, 127)).astype(np.float32)
            inverse, least = f(1) / scale, -128
        q = np.clip(zero + _steps(x * inverse), least, 127).astype(np.int8)
    return [q, scale.astype(np.float32), zero.astype(np.float32)]


_NUMBERS = array("float32", 0.5, -7, 90, 2.5, -300, 0, 1.25, -0.75, 33)

OPS = (
    Op(
        name=QUANTIZE_BY_RANGE,
        doc="Numbers in int8, with a scale and a zero point for each index of the axes before `axis`: x is about (q - zero) * scale. "
            "symmetric: the largest magnitude becomes 127. If not symmetric, the least and the largest number, or 0, become -128 and 127. "
            "Rounded to nearest, halves away from 0, as TFLite quantises the inputs of layers with weights of 8 bits. "
            "If x has NaN or infinities, so has the scale, or (q - zero) * scale is NaN. "
            "The scale is 2^-126 or more.",
        inputs=("x",), outputs=("q", "scale", "zero"), attrs={"axis": integer(1), "symmetric": flag(False)}, shape=_shapes, dtype=_dtypes,
        canonical=_first_axis, kernel=QUANTIZE_BY_RANGE, ref=_quantize_by_range,
        cases=(
            Case(arrays=(image(_NUMBERS, 3, 5, 17),)),
            Case(arrays=(image(_NUMBERS, 2, 4, 7),), attrs={"axis": -1, "symmetric": True}),
            Case(arrays=(np.zeros((2, 9), np.float32),)),
            Case(arrays=(image(-_NUMBERS, 33),), attrs={"axis": 0, "symmetric": True}),
            Case(arrays=(image(_NUMBERS * np.float32(1e-39), 2, 9),), attrs={"axis": 1, "symmetric": True}),
            Case(arrays=(image(_NUMBERS * np.float32(1e-39), 2, 9),)),
        ), no_grad="it rounds to integers",
    ),
)  # fmt: skip

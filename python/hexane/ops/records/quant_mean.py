"""Means of quantised tensors, computed in integers until the final rounding."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import INT32, DType
from hexane.errors import Error
from hexane.ops.attributes import element_type, flag, integer, integers, no_attrs, number, typed
from hexane.ops.records.quant import BYTES, SIGNED, UNSIGNED, Types, image, need, rounded
from hexane.ops.shape_rules import Shape, axis_indices, reduced
from hexane.ops.spec import Case, Op

Array = Any
MOST_TERMS = (2**31 - 1) // 255  # terms whose sum fits in int32


def mean_terms(x: Shape, axes: tuple[int, ...]) -> int:
    return prod(x[axis] for axis in axes)


def check_terms(x: Shape, axes: tuple[int, ...]) -> None:
    terms = mean_terms(x, axes)
    if not 1 <= terms <= MOST_TERMS:
        raise Error(f"got {terms} elements for each result, need 1 to {MOST_TERMS}")


def _check_mean(types: Types, attrs: Mapping[str, Any]) -> None:
    x = types[0]
    assert x is not None
    check_terms(x.shape, attrs["axes"])
    for name, dtype in (("x", x.dtype), ("output", attrs["dtype"])):
        need(dtype, "dtype", *BYTES)
        scale, zero, info = attrs[f"{name}_scale"], attrs[f"{name}_zero"], np.iinfo(dtype.numpy)
        if not 0 < scale < np.inf:
            raise Error(f"{name}_scale: got {scale}, need a positive number")
        if not info.min <= zero <= info.max:
            raise Error(f"{name}_zero: got {zero}, need one of {dtype}")


def _mean_dtype(x: DType, dtype: DType, **_: Any) -> DType:
    need(x, "x", *BYTES)
    need(dtype, "dtype", *BYTES)
    return dtype


def over_axes(types: Types, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes with non-negative axes, or all axes if the node has no axes."""
    x = types[0]
    assert x is not None
    return {**attrs, "axes": axis_indices(attrs["axes"], x.rank) or tuple(range(x.rank))}


def _kernel_attrs(types: Types, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the kernel's attributes. count: number of elements in each mean."""
    x = types[0]
    assert x is not None
    grids = ("x_scale", "x_zero", "output_scale", "output_zero")
    first = {"axes": attrs["axes"], "keep_dims": attrs["keep_dims"], "count": mean_terms(x.shape, attrs["axes"])}
    return {**first, **{name: attrs[name] for name in grids}}


def _quantized_mean(
    x: Array, axes: Shape, keep_dims: bool, x_scale: float, x_zero: int, dtype: DType, output_scale: float, output_zero: int
) -> Array:  # fmt: skip
    count = mean_terms(x.shape, axes)
    total = np.sum(x, axis=axes, keepdims=keep_dims, dtype=np.int64) - count * x_zero
    mean = np.float32(total * (np.float64(np.float32(x_scale)) / count))
    return rounded(mean / np.float32(output_scale), output_zero, dtype)


def _sum_shape(x: Shape) -> Shape:
    if len(x) != 4 or x[0] != 1:
        raise Error(f"got the shape {x}, need (1, H, W, C)")
    if x[1] * x[2] > MOST_TERMS:
        raise Error(f"got the shape {x}, need at most {MOST_TERMS} elements of a channel")
    return (1, x[1], 1, x[3])


def _sum_dtype(x: DType) -> DType:
    need(x, "x", *BYTES)
    return INT32


def _running_sum(x: Array) -> Array:
    return np.cumsum(np.sum(x, axis=2, keepdims=True, dtype=np.int64), axis=1)


OPS = (
    Op(
        name="quantized_mean", doc="The mean of a quantised tensor over `axes` (none named: all), quantised again. The sum is exact.", inputs=("x",),
        attrs={"axes": integers(()), "keep_dims": typed(flag(True)), "x_scale": number(), "x_zero": integer(0), "dtype": element_type(),
               "output_scale": number(), "output_zero": integer(0)},
        shape=lambda x, axes, keep_dims, **_: reduced(x, axes, keep_dims), dtype=_mean_dtype, check=(_check_mean,), canonical=over_axes,
        kernel="quantized_mean", kernel_attrs=_kernel_attrs, layout="reduce", lengths="reduce", ref=_quantized_mean,
        cases=(
            Case(attrs={"axes": (1, 2), "x_scale": 0.5, "x_zero": 3, "dtype": "int8", "output_scale": 0.25, "output_zero": -9}, arrays=(image(SIGNED, 1, 5, 7, 19),)),
            Case(attrs={"axes": (-1,), "keep_dims": False, "x_scale": 0.5, "x_zero": 130, "dtype": "uint8", "output_scale": 2.0, "output_zero": 99}, arrays=(image(UNSIGNED, 3, 2, 17),)),
            Case(attrs={"x_scale": 1.0, "dtype": "uint8", "output_scale": 1.0}, arrays=(image(SIGNED, 4, 33),)),
            Case(attrs={"axes": (0,), "x_scale": 1.5, "dtype": "int8", "output_scale": 1.0}, arrays=(image(UNSIGNED, 3, 1),)),
        ),
    ),
    Op(
        name="running_sum", doc="(1, H, W, C) -> (1, H, 1, C): the sums over each row's columns and over all rows up to it, in int32.", inputs=("x",),
        shape=_sum_shape, dtype=_sum_dtype, kernel="running_sum", kernel_attrs=no_attrs, ref=_running_sum,
        cases=(Case(arrays=(image(SIGNED, 1, 5, 3, 19),)), Case(arrays=(image(UNSIGNED, 1, 4, 2, 7),))),
    ),
)  # fmt: skip

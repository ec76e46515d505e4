"""Ops on matrices, which are the last two axes: triangles, bands, determinants."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import TensorType, Value
from hexane.ops.attributes import flag, integer
from hexane.ops.compose import Builder, limited
from hexane.ops.dtype_rules import floating, same_dtype
from hexane.ops.shape_rules import Shape, same
from hexane.ops.spec import Case, Op

Array = Any


def _matrices(types: Sequence[TensorType], attrs: Any) -> None:
    x = types[0]
    if x.rank < 2:
        raise Error(f"got the shape {x.shape}, need at least 2 axes")
    limited(x.shape[-2] * x.shape[-1], np.dtype(np.bool_))


def _masked(b: Builder, x: Value, low: int | None, high: int | None) -> Value:
    """Returns x with zeros outside the diagonals low..high, which are counted upwards from the main one."""
    rows, columns = np.ogrid[: x.shape[-2], : x.shape[-1]]
    keep = np.ones(x.shape[-2:], np.bool_)
    keep = keep if low is None else keep & (columns - rows >= low)
    keep = keep if high is None else keep & (columns - rows <= high)
    return b.select(b.const(keep), x, b.const(np.zeros((), x.dtype.numpy)))


def _expand_trilu(b: Builder, x: Value, k: int, upper: bool) -> Value:
    return _masked(b, x, k if upper else None, None if upper else k)


def _expand_band_part(b: Builder, x: Value, lower: int, upper: int) -> Value:
    return _masked(b, x, -lower if lower >= 0 else None, upper if upper >= 0 else None)


def _band_part(x: Array, lower: int, upper: int) -> Array:
    x = np.tril(x, upper) if upper >= 0 else x
    return np.triu(x, -lower) if lower >= 0 else x


def _det_shape(x: Shape) -> Shape:
    if len(x) < 2 or not 1 <= x[-1] <= 4 or x[-2] != x[-1]:
        raise Error(f"got the shape {x}, need square matrices of 1 to 4 rows")
    return x[:-2]


def _expand_det(b: Builder, x: Value) -> Value:
    """Expands by minors along the first row."""

    def at(row: int, column: int) -> Value:
        begin, end = [0] * len(x.shape), list(x.shape)
        begin[-2:], end[-2:] = (row, column), (row + 1, column + 1)
        return b.reshape(b.slice_by_index(x, begin=begin, end=end), shape=x.shape[:-2])

    def minor(row: int, columns: tuple[int, ...]) -> Value:
        if len(columns) == 1:
            return at(row, columns[0])
        terms = [b.mul(at(row, c), minor(row + 1, tuple(k for k in columns if k != c))) for c in columns]
        return reduce(lambda x, y: b.add(x, y), [b.neg(term) if i % 2 else term for i, term in enumerate(terms)])

    return minor(0, tuple(range(x.shape[-1])))


OPS = (
    Op(
        name="trilu",
        doc="The upper (or lower) triangle of matrices (..., rows, columns), with zeros elsewhere; k: the first (last) "
            "diagonal that is kept, counted upwards from the main one.",
        inputs=("x",), attrs={"k": integer(0), "upper": flag(True)}, shape=same, dtype=same_dtype, check=(_matrices,),
        expand=_expand_trilu, moves=("x",), fills=True, ref=lambda x, k, upper: np.triu(x, k) if upper else np.tril(x, k),
        cases=(Case(((2, 3, 4),), {"k": 1}), Case(((5, 4),), {"upper": False, "k": -1}, dtypes=("int64",))),
    ),
    Op(
        name="band_part",
        doc="Matrices (..., rows, columns) with zeros except on the main diagonal, `lower` diagonals below it and "
            "`upper` diagonals above it (-1: all).",
        inputs=("x",), attrs={"lower": integer(-1), "upper": integer(-1)}, shape=same, dtype=same_dtype,
        check=(_matrices,), expand=_expand_band_part, moves=("x",), fills=True, ref=_band_part,
        cases=(Case(((2, 5, 4),), {"lower": 1, "upper": 2}), Case(((4, 4),), {"lower": 0})),
    ),
    Op(
        name="det", doc="The determinants of square matrices (..., n, n) of up to 4 rows.", inputs=("x",), shape=_det_shape,
        dtype=floating, expand=_expand_det, ref=np.linalg.det, onnx=("Det",),
        cases=(Case(((2, 3, 3),)), Case(((4, 4),)), Case(((5, 1, 1),))),
    ),
)  # fmt: skip

"""Ops that sort."""

from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.ops.attributes import element_type, flag, integer
from hexane.ops.dtype_rules import numeric
from hexane.ops.gradients import reduce as grads
from hexane.ops.index_functions import check_found, check_indices
from hexane.ops.shape_rules import Shape, one_axis, same
from hexane.ops.spec import Case, Op

Array = Any


def _top_k_shape(x: Shape, axis: int, k: int, largest: bool, sorted: bool, dtype: Any) -> list[Shape]:
    if not 0 <= k <= x[axis]:
        raise Error(f"k: got {k} for an extent of {x[axis]}, need 0..{x[axis]}")
    check_found(dtype, x[axis])
    out = (*x[:axis], k, *x[axis + 1 :])
    return [out, out]


def _top_k_dtype(x: Any, dtype: Any, **_: Any) -> list[Any]:
    return [numeric(x), dtype]


def _order(x: Array, axis: int, descending: bool) -> Array:
    """Returns a stable order: of equal elements, the lower index comes first, also if descending."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)


def _top_k(x: Array, axis: int, k: int, largest: bool, sorted: bool, dtype: Any) -> list[Array]:
    at = np.take(_order(x, axis, largest), np.arange(k), axis)
    return [np.take_along_axis(x, at, axis), at.astype(dtype.numpy)]


def _argsort_dtype(x: Any, dtype: Any, **_: Any) -> Any:
    numeric(x)
    check_indices(dtype)
    return dtype


OPS = (
    Op(
        name="topk", doc="The k largest (or smallest) elements along an axis, in order if `sorted`, and their indices "
                         "-> (values, indices). Of equal elements, the lower index comes first.",
        inputs=("x",), outputs=("values", "indices"),
        attrs={"axis": integer(-1), "k": integer(), "largest": flag(True), "sorted": flag(True),
               "dtype": element_type("int64")},
        canonical=one_axis, shape=_top_k_shape, dtype=_top_k_dtype, kernel="topk",
        kernel_attrs=lambda types, attrs: {k: v for k, v in attrs.items() if k not in ("k", "dtype")}, lengths="axes", ref=_top_k,
        cases=(Case(((3, 17),), {"k": 4}), Case(((5, 4),), {"k": 2, "axis": 0, "largest": False})), grad=grads.topk,
    ),
    Op(
        name="argsort", doc="The indices that sort x along an axis. Of equal elements, the lower index comes first, "
                            "and NaN counts as the largest.",
        inputs=("x",), attrs={"axis": integer(-1), "descending": flag(False), "dtype": element_type("int64")},
        canonical=one_axis, shape=same, dtype=_argsort_dtype, kernel="argsort",
        kernel_attrs=lambda types, attrs: {k: v for k, v in attrs.items() if k != "dtype"},
        ref=lambda x, axis, descending, dtype: _order(x, axis, descending).astype(dtype.numpy),
        cases=(Case(((3, 17),)), Case(((5, 4),), {"axis": 0, "descending": True})),
    ),
)  # fmt: skip

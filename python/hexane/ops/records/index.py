"""Ops that read and write elements by index."""

from typing import Any

import numpy as np

from hexane.dtypes import BOOL, DTYPES, FP16, FP32, INT32, INT64, DType
from hexane.errors import Error
from hexane.graph import Value
from hexane.ops.attributes import element_type, integer, number, text
from hexane.ops.compose import Builder
from hexane.ops.gradients import movement as grads
from hexane.ops.index_functions import (
    along_axis_shape,
    checked,
    coordinates_of,
    gather,
    gather_along_axis,
    gather_nd,
    gather_nd_shape,
    indexed,
)
from hexane.ops.shape_rules import Shape, axis_index, one_axis
from hexane.ops.spec import Case, Op

Array = Any


_SCATTER: dict[str, Any] = {"update": None, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
_MODE = text("update", tuple(_SCATTER))


def _scatter_dtype(x: Any, indices: Any, updates: Any, **_: Any) -> Any:
    if updates is not x:
        raise Error(f"got updates of dtype {updates}, need {x}")
    return indexed(x, indices)


def _scatter_along_axis_shape(x: Shape, indices: Shape, updates: Shape, axis: int, mode: str) -> Shape:
    along_axis_shape(x, indices, axis)
    if updates != indices:
        raise Error(f"got updates of shape {updates}, need that of the indices {indices}")
    return x


def _scatter(y: Array, at: tuple[Array, ...], updates: Array, mode: str) -> Array:
    if _SCATTER[mode] is None:
        y[at] = updates
    else:
        _SCATTER[mode].at(y, at, updates)
    return y


def _scatter_along_axis(x: Array, indices: Array, updates: Array, axis: int, mode: str) -> Array:
    at = list(np.indices(indices.shape, sparse=True))
    at[axis] = checked(indices, x.shape[axis])
    return _scatter(x.copy(), tuple(at), updates, mode)


def _scatter_nd_shape(x: Shape, indices: Shape, updates: Shape, mode: str) -> Shape:
    need = (*indices[:-1], *x[coordinates_of(x, indices, 0) :])
    if updates != need:
        raise Error(f"got updates of shape {updates}, need {need}")
    return x


def _scatter_nd(x: Array, indices: Array, updates: Array, mode: str) -> Array:
    for i in range(indices.shape[-1]):
        checked(indices[..., i], x.shape[i])
    return _scatter(x.copy(), tuple(np.moveaxis(indices, -1, 0)), updates, mode)


def _one_hot_shape(indices: Shape, axis: int, depth: int, **_: Any) -> Shape:
    if depth < 0:
        raise Error(f"depth: got {depth}, need a number that is not negative")
    return (*indices[:axis], depth, *indices[axis:])


def _one_hot_dtype(indices: Any, dtype: Any, **_: Any) -> Any:
    if dtype not in (FP32, INT32, INT64, BOOL):
        raise Error(f"dtype: got {dtype}, need fp32, int32, int64 or bool")
    return indexed(dtype, indices)


def _one_hot(indices: Array, axis: int, depth: int, on: float, off: float, dtype: Any) -> Array:
    wrapped = np.where(indices < 0, indices + depth, indices)
    hit = np.expand_dims(wrapped, axis) == np.arange(depth).reshape(
        [-1 if i == axis else 1 for i in range(indices.ndim + 1)]
    )
    return np.where(hit, on, off).astype(dtype.numpy)


def _decode_palette(indices: Array, tables: Array) -> Array:
    blocks = tables.shape[:-1]
    places = [np.arange(d) * s // max(d, 1) for d, s in zip(indices.shape, blocks, strict=True)]
    return tables[(*np.ix_(*places), np.minimum(indices, tables.shape[-1] - 1))]


def _expand_scaled(b: Builder, indices: Value, tables: Value, scales: Value) -> Value:
    return b.decode_palette(indices, b.decode_blocks(tables, scales))


def _scaled_shape(indices: Shape, tables: Shape, scales: Shape) -> Shape:
    if scales != (*tables[:-1], 1):
        raise Error(f"scales: got {scales} for tables of shape {tables}, need {(*tables[:-1], 1)}")
    return _palette_shape(indices, tables)


def _scaled_dtype(indices: DType, tables: DType, scales: DType, **_: Any) -> DType:
    if tables is not DTYPES["int8"] or scales not in (FP16, FP32):
        raise Error(f"got tables of {tables} and scales of {scales}, need int8, and fp16 or fp32")
    return _palette_dtype(indices, scales)


def _palette_shape(indices: Shape, tables: Shape) -> Shape:
    _check_tables(indices, tables, 1, "the entries of a table")
    return indices


def _check_tables(indices: Shape, tables: Shape, more: int, what: str) -> None:
    rank = len(indices)
    if len(tables) != rank + more or 0 in tables or any(d % s for d, s in zip(indices, tables[:rank], strict=True)):
        raise Error(
            f"got tables of shape {tables} for indices of shape {indices}, need the number of blocks along each axis,"
            f" which divides its extent, and {what}"
        )


def _palette_dtype(indices: DType, tables: DType, **_: Any) -> DType:
    if indices is not DTYPES["uint8"]:
        raise Error(f"indices: got {indices}, need uint8")
    return tables


def _expand_palette(b: Builder, indices: Value, tables: Value) -> Value:
    places = _entries_of_all(b, indices, tables.shape[:-1], tables.shape[-1])
    return b.gather(b.reshape(tables, shape=(-1,)), places, axis=0)


def _entries_of_all(b: Builder, indices: Value, blocks: Shape, entries: int) -> Value:
    """Returns indices into the entries of all tables, concatenated."""
    stride, places = entries, b.cast(indices, dtype=INT32)
    if stride < 256:
        places = b.minimum(places, stride - 1)
    for axis in reversed(range(indices.type.rank)):
        count, extent = blocks[axis], indices.shape[axis]
        if count > 1:
            first = (np.arange(extent) // max(extent // count, 1) * stride).astype(np.int32)
            places = b.add(places, b.const(first.reshape([-1 if i == axis else 1 for i in range(indices.type.rank)])))
        stride *= count
    return places


def _decode_vectors(indices: Array, tables: Array, axis: int) -> Array:
    parts = [_decode_palette(indices, tables[..., n]) for n in range(tables.shape[-1])]
    return np.stack(parts, axis + 1).reshape(_vectors_shape(indices.shape, tables.shape, axis))


def _vectors_shape(indices: Shape, tables: Shape, axis: int) -> Shape:
    _check_tables(indices, tables, 2, "the entries of a table and the numbers of an entry")
    return tuple(d * tables[-1] if i == axis else d for i, d in enumerate(indices))


def _expand_vectors(b: Builder, indices: Value, tables: Value, axis: int) -> Value:
    """Expands to a gather of rows of all tables. The numbers of a row become part of the axis."""
    *blocks, entries, size = tables.shape
    places = _entries_of_all(b, indices, tuple(blocks), entries)
    rows = b.gather(b.reshape(tables, shape=(-1, size)), places, axis=0)
    rank = indices.type.rank
    if axis != rank - 1:
        rows = b.transpose(rows, perm=(*range(axis + 1), rank, *range(axis + 1, rank)))
    return b.reshape(rows, shape=_vectors_shape(indices.shape, tables.shape, axis))


OPS = (
    Op(
        name="decode_palette", doc="out[i, j] = tables[i // h, j // w, indices[i, j]]: one table for each block of h x "
                                   "w indices. The shape of tables gives the number of blocks along each axis. An "
                                   "index after the last entry reads the last entry.",
        inputs=("indices", "tables"), shape=_palette_shape, dtype=_palette_dtype, expand=_expand_palette, ref=_decode_palette,
        cases=(Case(arrays=(np.arange(24, dtype=np.uint8).reshape(4, 6) % 5, np.arange(8, dtype=np.float32).reshape(2, 1, 4))),
               Case(arrays=(np.arange(24, dtype=np.uint8).reshape(4, 6) % 3, np.arange(18, dtype=np.float32).reshape(2, 3, 3)))),
    ),
    Op(
        name="decode_scaled_palette", doc="out[i, j] = tables[i // h, j // w, indices[i, j]] * scales[i // h, j // w, 0]: decode_palette with tables of int8, each with a scale in the dtype of the result.",
        inputs=("indices", "tables", "scales"), shape=_scaled_shape, dtype=_scaled_dtype, expand=_expand_scaled,
        ref=lambda indices, tables, scales: _decode_palette(indices, tables.astype(scales.dtype) * scales),
        cases=(Case(arrays=(np.arange(24, dtype=np.uint8).reshape(4, 6) % 5, np.arange(-96, 104, 25, dtype=np.int8).reshape(2, 1, 4),
                            np.array([0.5, 0.375], np.float32).reshape(2, 1, 1))),),
    ),
    Op(
        name="decode_vectors", doc="out[i * v + n, j] = tables[i // h, j // w, indices[i, j], n] (for axis 0): an "
                                   "entry has v numbers, which become neighbours along the axis. All else is as in "
                                   "decode_palette; the last axes of tables are entries and v.",
        inputs=("indices", "tables"), attrs={"axis": integer(0)}, canonical=one_axis, shape=_vectors_shape,
        dtype=_palette_dtype, expand=_expand_vectors, ref=_decode_vectors,
        cases=(Case(arrays=(np.arange(24, dtype=np.uint8).reshape(4, 6) % 5, np.arange(16, dtype=np.float32).reshape(2, 1, 4, 2))),
               Case(arrays=(np.arange(24, dtype=np.uint8).reshape(2, 4, 3) % 3, np.arange(72, dtype=np.float32).reshape(1, 2, 3, 3, 4)),
                    attrs={"axis": 1})),
    ),
    Op(
        name="gather", doc="Slices of x at indices along an axis. The axes of the indices replace that axis. Negative "
                           "indices count from the end.",
        inputs=("x", "indices"), attrs={"axis": integer(0)}, canonical=one_axis,
        shape=lambda x, indices, axis: (*x[:axis], *indices, *x[axis + 1 :]), dtype=indexed, kernel="gather",
        moves=("x",), lengths="gather", ref=gather,
        cases=(Case(arrays=(np.arange(12, dtype=np.float32).reshape(4, 3), np.array([[3, 0], [-1, 2]]))),
               Case(arrays=(np.arange(12, dtype=np.float32).reshape(4, 3), np.array(1, np.int32)), attrs={"axis": 1})), grad=grads.gather,
    ),
    Op(
        name="gather_along_axis", doc="out[i, j] = x[i, indices[i, j]] (for axis 1): an index for each output element, along one axis.",
        inputs=("x", "indices"), attrs={"axis": integer(0)}, canonical=one_axis, shape=along_axis_shape,
        dtype=indexed, kernel="gather_along_axis", moves=("x",), ref=gather_along_axis,
        cases=(Case(arrays=(np.arange(12, dtype=np.float32).reshape(4, 3), np.array([[2, 0], [1, -1]])),
                    attrs={"axis": 1}),), grad=grads.gather_along_axis,
    ),
    Op(
        name="gather_nd", doc="Slices of x at coordinates: the last axis of indices (..., k) holds k of them. The "
                              "first batch_dims axes of x and indices are shared.", inputs=("x", "indices"),
        attrs={"batch_dims": integer(0)}, shape=gather_nd_shape, dtype=indexed, kernel="gather_nd",
        moves=("x",), lengths="gather_nd", ref=gather_nd,
        cases=(Case(arrays=(np.arange(12, dtype=np.float32).reshape(2, 2, 3), np.array([[0, 1], [1, -1]]))),
               Case(arrays=(np.arange(12, dtype=np.float32).reshape(2, 2, 3), np.array([[1], [0]])),
                    attrs={"batch_dims": 1})), grad=grads.gather_nd,
    ),
    Op(
        name="scatter_along_axis", doc="x with out[i, indices[i, j]] = updates[i, j] (for axis 1): an index for each "
            "update, along one axis. By mode, an update replaces the old element or is combined with it.",
        inputs=("x", "indices", "updates"), attrs={"axis": integer(0), "mode": _MODE}, canonical=one_axis,
        shape=_scatter_along_axis_shape, dtype=_scatter_dtype, kernel="scatter_along_axis", ref=_scatter_along_axis,
        cases=(Case(arrays=(np.zeros((3, 3), np.float32), np.array([[1, 0, 2]]), np.ones((1, 3), np.float32))),
               Case(arrays=(np.ones((3, 3), np.float32), np.array([[1, 1]]), np.ones((1, 2), np.float32)),
                    attrs={"axis": 1, "mode": "add"})), grad=grads.scatter_along_axis,
    ),
    Op(
        name="scatter_nd", doc="x with slices written at coordinates, the last axis of indices (..., k): updates "
            "(..., x.shape[k:]). By mode, an update replaces the old slice or is combined with it.",
        inputs=("x", "indices", "updates"), attrs={"mode": _MODE}, shape=_scatter_nd_shape, dtype=_scatter_dtype,
        kernel="scatter_nd", updates=("x",), ref=_scatter_nd,
        cases=(Case(arrays=(np.zeros((4, 2), np.float32), np.array([[1], [3]]), np.ones((2, 2), np.float32))),
               Case(arrays=(np.ones((4,), np.float32), np.array([[1], [1]]), np.ones(2, np.float32)),
                    attrs={"mode": "add"})), grad=grads.scatter_nd,
    ),
    Op(
        name="one_hot", doc="A new axis of extent `depth`: `on` where it equals the index, else `off`; an index from -depth to -1 counts from the end.", inputs=("indices",),
        attrs={"axis": integer(-1), "depth": integer(), "on": number(1.0), "off": number(0.0),
               "dtype": element_type("fp32")},
        canonical=lambda types, attrs: {**attrs, "axis": axis_index(attrs["axis"], types[0].rank + 1)},
        shape=_one_hot_shape, dtype=_one_hot_dtype, kernel="one_hot",
        kernel_attrs=lambda types, attrs: {k: v for k, v in attrs.items() if k != "dtype"}, ref=_one_hot,
        cases=(Case(arrays=(np.array([0, 2, -1, 7]),), attrs={"depth": 3}),
               Case(arrays=(np.array([[0, 2]], np.int32),), attrs={"depth": 3, "axis": 0, "on": 5.0})),
    ),
)  # fmt: skip

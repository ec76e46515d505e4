"""NumPy references of ops that read elements by index, and the checks of indices."""

from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import INT32, INT64, UINT16, DType
from hexane.errors import Error
from hexane.ops.shape_rules import Shape

Array = Any


def check_indices(dtype: DType) -> None:
    """Raises Error for a dtype that indices cannot have."""
    if dtype not in (INT32, INT64):
        raise Error(f"got indices of dtype {dtype}, need int32 or int64")


def check_found(dtype: DType, extent: int) -> None:
    """Raises Error for a dtype that cannot represent every index of an axis. uint16 occurs in programs of the
    engine."""
    if dtype not in (INT32, INT64, UINT16):
        raise Error(f"dtype: got {dtype}, need int32, int64 or uint16")
    if dtype is UINT16 and extent > 1 << 16:
        raise Error(f"dtype: got uint16 for an axis of {extent} elements, need int32 or int64")


def indexed(x: Any, indices: Any, *_: Any, **__: Any) -> Any:
    check_indices(indices)
    return x


def checked(indices: Array, extent: int) -> Array:
    if indices.size and (indices.min() < -extent or indices.max() >= extent):
        raise Error(f"got an index in {indices.min()}..{indices.max()}, need {-extent}..{extent - 1}")
    return indices


def gather(x: Array, indices: Array, axis: int) -> Array:
    return np.take(x, checked(indices, x.shape[axis]), axis)


def along_axis_shape(x: Shape, indices: Shape, axis: int) -> Shape:
    if len(indices) != len(x) or any(i != axis and n > d for i, (n, d) in enumerate(zip(indices, x, strict=True))):
        raise Error(f"got indices of shape {indices} for {x}, need the same rank and no larger dims but at axis {axis}")
    return indices


def gather_along_axis(x: Array, indices: Array, axis: int) -> Array:
    crop = tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(indices.shape))
    return np.take_along_axis(x[crop], checked(indices, x.shape[axis]), axis)


def coordinates_of(x: Shape, indices: Shape, batch: int) -> int:
    """Returns the number of coordinates of each index. Raises Error for shapes that do not fit."""
    if not indices or not 0 <= batch < len(indices) or x[:batch] != indices[:batch]:
        raise Error(f"got x {x}, indices {indices} and batch_dims {batch}, need equal leading dims")
    if batch + indices[-1] > len(x):
        raise Error(f"got indices of shape {indices} for x {x}, need at most {len(x) - batch} coordinates")
    return indices[-1]


def gather_nd_shape(x: Shape, indices: Shape, batch_dims: int) -> Shape:
    return (*indices[:-1], *x[batch_dims + coordinates_of(x, indices, batch_dims) :])


def gather_nd(x: Array, indices: Array, batch_dims: int) -> Array:
    batch, depth = x.shape[:batch_dims], indices.shape[-1]
    flat = x.reshape(prod(batch), *x.shape[batch_dims:])
    at = indices.reshape(prod(batch), prod(indices.shape[batch_dims:-1]), depth)
    for i in range(depth):
        checked(at[..., i], flat.shape[1 + i])
    items = [flat[b][tuple(at[b].T)] if depth else np.stack([flat[b]] * at.shape[1]) for b in range(flat.shape[0])]
    return np.stack(items).reshape((*batch, *indices.shape[batch_dims:-1], *x.shape[batch_dims + depth :]))

"""Reads sparse tensors, which become dense constants."""

from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path

import numpy as np
from onnx import SparseTensorProto, TensorProto

from hexane.errors import Error
from hexane.graph import Array, TensorType, tensor_type
from hexane.importers.onnx.split import Tensor
from hexane.importers.onnx.tensors import check_text, element_type, read_tensor
from hexane.system.limits import MAX_GROWTH_BYTES

MAX_GROWTH = 64  # dense bytes for each stored byte: fp32 with 1 nonzero element in 192


def read_sparse(sparse: SparseTensorProto, folder: Path | None) -> Array:
    """Returns the dense array. Raises Error for an array beyond the limit, and for indices that do not fit the
    shape."""
    kind = dense_type(sparse)
    check_growth(kind.bytes, sparse.ByteSize())
    return _filled(sparse, kind, folder)


def dense_initializers(tensors: Iterable[SparseTensorProto], folder: Path | None) -> Iterator[Tensor]:
    """Yields the tensors as initializers with dense data. Raises Error if the tensors together exceed the limit."""
    dense = stored = 0
    for sparse in tensors:
        name = check_text(sparse.values.name)
        try:
            kind = dense_type(sparse)
            dense, stored = dense + kind.bytes, stored + sparse.ByteSize()
            check_growth(dense, stored)
            data = _filled(sparse, kind, folder).reshape(-1).view(np.uint8)
        except Error as error:
            raise Error(f"[import] sparse initializer {name!r}: {error}") from None
        proto = TensorProto(name=name, data_type=sparse.values.data_type, dims=sparse.dims)
        yield Tensor(proto, memoryview(data))  # type: ignore[arg-type]


def dense_type(sparse: SparseTensorProto) -> TensorType:
    return tensor_type(element_type(sparse.values.data_type), tuple(sparse.dims))


def check_growth(dense: int, stored: int) -> None:
    """Raises Error for dense tensors of too many bytes, because a few stored bytes can stand for any number."""
    most = max(MAX_GROWTH_BYTES, MAX_GROWTH * stored)
    if dense > most:
        raise Error(f"got sparse tensors of {dense} bytes when dense, need at most {most}: store them as dense tensors")


def _filled(sparse: SparseTensorProto, kind: TensorType, folder: Path | None) -> Array:
    if kind.dtype.bits % 8:
        raise Error(f"got sparse elements of {kind.dtype}, need whole bytes")
    values, indices = (read_tensor(tensor, folder) for tensor in (sparse.values, sparse.indices))
    rank = len(kind.shape)
    if values.ndim != 1 or indices.dtype != np.int64 or indices.shape not in (values.shape, (values.size, rank)):
        raise Error(
            f"got {values.shape} values and {indices.shape} indices of {indices.dtype}, need n values and n or"
            f" (n, {rank}) indices of int64"
        )
    extents = np.array(kind.shape if indices.ndim == 2 else (kind.size,), np.int64)
    each = indices if indices.ndim == 2 else indices[:, None]
    if ((each < 0) | (each >= extents)).any():
        raise Error(f"got indices outside the shape {kind.shape}")
    strides = [prod(extents[axis + 1 :].tolist()) for axis in range(extents.size)]
    places = each @ np.array(strides, np.int64)
    if (np.diff(places) <= 0).any():
        raise Error("got indices that do not ascend, need each once and in order")
    result = np.zeros(kind.size, kind.dtype.numpy)
    result[places] = values
    return result.reshape(kind.shape)

"""Encoded weights, in the forms of iOS16 and iOS18."""

from typing import Any

import numpy as np

from hexane.dtypes import DTYPES, DType
from hexane.errors import Error
from hexane.graph import Array, Value, constant
from hexane.importers.coreml.known import known_array
from hexane.importers.coreml.program import unpacked
from hexane.importers.coreml.registry import Context, reads
from hexane.mil.forms import READ


def _array(name: str, value: Any) -> Array:
    if not isinstance(value, Value):
        raise Error(f"{name}: got no tensor, need one")
    return known_array(value)


def _size(shape: Array, most: float = 2.0**33) -> tuple[int, ...]:
    extents = tuple(int(d) for d in shape.reshape(-1))
    if np.prod(np.array(extents, np.float64)) > most:
        raise Error(f"got a weight of the shape {extents}, need a smaller one")
    return extents


@reads("constexpr_lut_to_dense indices lut shape? vector_axis:int?")
def lut_to_dense(
    c: Context, _: Any, /, indices: Value, lut: Value, shape: Value | None, vector_axis: int | None
) -> Any:
    """Decodes a palette. In iOS16 the indices are packed in bytes from the lowest bit up, and the shape is a separate
    argument."""
    if shape is None:
        return READ["constexpr_lut_to_dense"](c.b, indices=indices, lut=lut, vector_axis=vector_axis)
    extents, table = _size(_array("shape", shape)), _array("lut", lut).reshape(-1)
    bits = next((n for n in (1, 2, 4, 6, 8) if table.size == 1 << n), None)
    if bits is None:
        raise Error(f"lut: got {table.size} entries, need 2, 4, 16, 64 or 256")
    count = int(np.prod(extents))
    picks = unpacked(_array("indices", indices).reshape(-1).view(np.uint8), bits, count).reshape(extents)
    named = c.b.const(picks) if bits == 8 else _small(c, picks, bits)
    entries = table.reshape((1,) * len(extents) + (-1, 1))
    return READ["constexpr_lut_to_dense"](c.b, indices=named, lut=c.b.const(entries), vector_axis=None)


def _small(c: Context, picks: Array, bits: int) -> Value:
    kind: DType = DTYPES[f"uint{bits}"]
    return constant(picks.astype(kind.numpy), c.b.sources, kind)


@reads("constexpr_sparse_to_dense nonzero_data mask shape?")
def sparse_to_dense(c: Context, _: Any, /, nonzero_data: Value, mask: Value, shape: Value | None) -> Any:
    """Decodes sparse weights. In iOS16 the mask is packed in bytes from the lowest bit up, and the shape is a separate
    argument."""
    if shape is None:
        return READ["constexpr_sparse_to_dense"](c.b, nonzero_data=nonzero_data, mask=mask)
    extents = _size(_array("shape", shape))
    bits = unpacked(_array("mask", mask).reshape(-1).view(np.uint8), 1, int(np.prod(extents))).reshape(extents)
    return READ["constexpr_sparse_to_dense"](c.b, nonzero_data=nonzero_data, mask=c.b.const(bits))


@reads("constexpr_sparse_blockwise_shift_scale data_mask nonzero_data scale offset?")
def sparse_blockwise(
    c: Context, _: Any, /, data_mask: Value, nonzero_data: Value, scale: Value, offset: Value | None
) -> Any:
    """Decodes sparse weights with a scale and offset for each block. The numbers are stored in the order of the mask's
    ones."""
    places = _array("data_mask", data_mask).astype(np.bool_)
    values, scales = _array("nonzero_data", nonzero_data), _array("scale", scale)
    if values.size != int(places.sum()) or scales.ndim != places.ndim:
        raise Error(f"got {values.size} numbers for a mask with {int(places.sum())} ones, need as many")
    at = np.nonzero(places)
    blocks = tuple(index // max(d // s, 1) for index, d, s in zip(at, places.shape, scales.shape, strict=True))
    whole = values.reshape(-1).astype(np.float64)
    if offset is not None:
        whole = whole - _array("offset", offset).astype(np.float64)[blocks]
    array = (whole * scales.astype(np.float64)[blocks]).astype(scales.dtype)
    return data_mask, c.b.const(array)

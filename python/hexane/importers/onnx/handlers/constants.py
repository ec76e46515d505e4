"""Constants, shapes, ranges and masks. The results are constants at import, except for Trilu, and for extents that
depend on data."""

from fractions import Fraction
from math import ceil, prod
from typing import Any

import numpy as np
import onnx

from hexane.dtypes import DType
from hexane.errors import Error
from hexane.importers.onnx.node import Builder, OnnxNode, Result
from hexane.importers.onnx.registry import onnx_op
from hexane.importers.onnx.sparse import read_sparse
from hexane.importers.onnx.tensors import element_type, read_tensor
from hexane.ops.compose import limited
from hexane.ops.valid_lengths import length_of

_VALUES = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


@onnx_op("Constant")
def constant(b: Builder, n: OnnxNode) -> Result:
    if len(n.attrs) != 1:
        raise Error(f"got the attributes {', '.join(n.attrs) or 'none'}, need exactly one")
    name = next(iter(n.attrs))
    value = n.attrs[name]
    if name == "value":
        return b.const(read_tensor(value, None))
    if name == "sparse_value":
        return b.const(read_sparse(value, None))
    if name in _VALUES:
        return b.const(np.array(value, _VALUES[name]))
    raise Error(f"got a constant of {name}, need numbers: Hexane computes no strings")


@onnx_op("ConstantOfShape", shape_inputs=(0,))
def constant_of_shape(b: Builder, n: OnnxNode) -> Result:
    tensor: onnx.TensorProto | None = n.attrs.get("value")
    array = np.zeros(1, np.float32) if tensor is None else read_tensor(tensor, None)
    if array.size != 1:
        raise Error(f"value: got {array.size} elements, need 1")
    return b.broadcast_to(b.const(array.reshape(())), shape=n.ints(0))


@onnx_op("Shape", valid_lengths=True)
def shape(b: Builder, n: OnnxNode) -> Result:
    """Returns the shape, a constant except for an extent that depends on data."""
    x = n.value(0)
    part = slice(n.attrs.get("start", 0), n.attrs.get("end", len(x.shape)))
    axes = range(len(x.shape))[part]
    length = length_of(x)
    if length is None or length.axis not in axes:
        return b.const(np.array(x.shape[part], np.int64))
    dims = [b.const(np.array([x.shape[a]])) if a != length.axis else b.reshape(length.value, shape=(1,)) for a in axes]
    return b.concat(*dims, axis=0)


@onnx_op("Size", valid_lengths=True)
def size(b: Builder, n: OnnxNode) -> Result:
    x = n.value(0)
    length = length_of(x)
    if length is None:
        return b.const(np.array(prod(x.shape), np.int64))
    return b.mul(length.value, np.array(prod(d for a, d in enumerate(x.shape) if a != length.axis), np.int64))


@onnx_op("Range", shape_inputs=(0, 1, 2))
def arange(b: Builder, n: OnnxNode) -> Result:
    start, limit, delta = (n.scalar(i) for i in range(3))
    if delta == 0 or not all(np.isfinite(v.astype(np.float64)) for v in (start, limit, delta)):
        raise Error(f"got {start}..{limit} in steps of {delta}, need finite numbers and a step that is not 0")
    exact: Any = int if start.dtype.kind in "iu" else float
    if exact is int:
        n.attrs.get("stash_type")  # marks stash_type as read: integer sums are exact
    first, last, step = exact(start), exact(limit), exact(delta)
    count = max(ceil((Fraction(last) - Fraction(first)) / Fraction(step)), 0)
    limited(count, start.dtype)
    return b.const(
        (first + step * np.arange(count, dtype=np.int64 if exact is int else np.float64)).astype(start.dtype)
    )


@onnx_op("EyeLike")
def eye_like(b: Builder, n: OnnxNode) -> Result:
    x = n.value(0)
    if len(x.shape) != 2:
        raise Error(f"got the shape {x.shape}, need a matrix")
    kind: DType = element_type(n.attrs["dtype"]) if "dtype" in n.attrs else x.dtype
    limited(x.type.size, kind.numpy)
    k = n.attrs["k"]
    rows, columns = np.ogrid[: x.shape[0], : x.shape[1]]
    return b.const((columns - rows == k).astype(kind.numpy))


@onnx_op("Trilu", shape_inputs=(1,))
def trilu(b: Builder, n: OnnxNode) -> Result:
    return b.trilu(n.value(0), k=n.integer(1) if n.has(1) else 0, upper=bool(n.attrs["upper"]))

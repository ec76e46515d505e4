"""Dtypes that Core ML does not compute in, and those that stand for them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hexane.dtypes import BF16, DTYPES, FP32, FP64, INT32, INT64, DType
from hexane.graph import Array, Graph, TensorType, Value, constant, unique
from hexane.ops import OPS, apply

_BECOME: Mapping[DType, DType] = {
    INT64: INT32, DTYPES["uint64"]: INT32, DTYPES["uint32"]: INT32, FP64: FP32, BF16: FP32,
}  # fmt: skip


def in_coreml_dtypes(graph: Graph) -> Graph:
    """add(%x : int64, const int64)  ->  add(%x : int32, const int32)

    Constants beyond int32 become its ends.
    """
    if not any(kind.dtype in _BECOME for node in graph.nodes for kind in node.types):
        return graph
    table: dict[Value, Value] = {}
    for node in graph.nodes:
        if not node.inputs:
            if node.types[0].dtype in _BECOME:
                table[node.values[0]] = _leaf(node.values[0])
            continue
        inputs = [None if v is None else table.get(v, v) for v in node.inputs]
        if inputs == list(node.inputs) and not any(kind.dtype in _BECOME for kind in node.types):
            continue
        results = apply(OPS[node.op], inputs, narrow_attributes(node.attrs), node.sources)
        for old, value in zip(node.values, results, strict=True):
            wanted = _BECOME.get(old.dtype, old.dtype)
            is_wanted = value.dtype is wanted
            table[old] = value if is_wanted else apply(OPS["cast"], [value], {"dtype": wanted}, node.sources)[0]
    return graph.replace(table)


def narrow_attributes(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes, dtypes among them as Core ML has them."""
    return {name: _BECOME.get(value, value) if isinstance(value, DType) else value for name, value in attrs.items()}


def narrowed(value: Value | None) -> Value | None:
    """A constant in a dtype that Core ML has; other values as they are."""
    return _leaf(value) if value is not None and value.node.op == "const" and value.dtype in _BECOME else value


def _leaf(value: Value) -> Value:
    node, new = value.node, _BECOME[value.dtype]
    data = None if node.data is None else _narrow(node.data, new)
    if node.op == "const":
        assert data is not None
        return constant(data, node.sources, new)
    return unique(node.op, str(node.attrs["name"]), TensorType(new, value.shape), data, node.sources)


def _narrow(array: Array, dtype: DType) -> Array:
    if dtype is INT32:
        return np.clip(array, -(2**31), 2**31 - 1).astype(np.int32)
    with np.errstate(over="ignore"):
        return array.astype(dtype.numpy)

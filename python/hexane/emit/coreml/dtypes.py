"""Substitutes for dtypes that Core ML does not support."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hexane.dtypes import BF16, DTYPES, FP32, FP64, INT32, INT64, DType
from hexane.errors import Error, HazardWarning, warn
from hexane.graph import Array, Graph, TensorType, Value, constant, unique
from hexane.ops import OPS, apply

_BECOME: Mapping[DType, DType] = {
    INT64: INT32, DTYPES["uint64"]: INT32, DTYPES["uint32"]: INT32, FP64: FP32, BF16: FP32,
}  # fmt: skip


# Ops that only compare numbers, so that a constant beyond int32 may be clamped.
_ORDER = (
    *("argsort", "greater", "greater_equal", "less", "less_equal", "maximum", "minimum"),
    *("reduce_argmax", "reduce_argmin", "reduce_max", "reduce_min", "topk"),
)
_PRODUCTS = ("cumprod", "mul", "pow", "reduce_prod", "square")


def in_coreml_dtypes(graph: Graph) -> Graph:
    """add(%x : int64, const int64)  ->  add(%x : int32, const int32)

    Constants beyond int32 are clamped if the op only compares numbers; for other ops and as outputs they raise Error.
    Products of computed wide integers give a warning.
    """
    if not any(kind.dtype in _BECOME for node in graph.nodes for kind in node.types):
        return graph
    _check_constants(graph)
    _warn_of_products(graph)
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


def _check_constants(graph: Graph) -> None:
    """Raises Error for constants beyond int32 whose exact value counts."""
    readers, outputs = graph.users(), {port.value: port.name for port in graph.outputs}
    for node in graph.nodes:
        if node.op != "const" or _BECOME.get(node.types[0].dtype) is not INT32:
            continue
        beyond = _beyond(node.data)
        pending, seen = [node.values[0]] if beyond is not None else [], set[Value]()
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            where = f"output {outputs[value]!r}" if value in outputs else ""
            for reader in readers.get(value, ()):
                moved = OPS[reader.op].moves
                if moved and reader.op != "bit_cast":
                    pending += reader.values
                elif reader.op not in _ORDER:
                    where = reader.where
            if where:
                got = f"the {node.types[0].dtype} constant {beyond}"
                raise Error(
                    f"[emit] {where}: got {got}, need one of int32: Core ML has no wider integers; scale it, or compute"
                    " in floats"
                )


def _beyond(data: Array | None) -> int | None:
    assert data is not None
    if not data.size:
        return None
    return next((int(n) for n in (data.max(), data.min()) if not -(2**31) <= int(n) < 2**31), None)


def _warn_of_products(graph: Graph) -> None:
    """Warns of products of computed wide integers, which may wrap in int32."""
    products = [
        node.where
        for node in graph.nodes
        if node.op in _PRODUCTS
        and _BECOME.get(node.types[0].dtype) is INT32
        and all(v is None or v.node.op != "const" or node.op == "pow" for v in node.inputs)
    ]
    if products:
        more = f" and {len(products) - 3} more" if len(products) > 3 else ""
        warn(
            f"[emit] {', '.join(products[:3])}{more}: Core ML computes these products of wide integers in int32, where"
            " results beyond 2^31 - 1 wrap; if results may be larger, cast the operands to fp32",
            HazardWarning,
        )


def narrow_attributes(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes with dtypes replaced by Core ML's."""
    return {name: _BECOME.get(value, value) if isinstance(value, DType) else value for name, value in attrs.items()}


def narrowed(value: Value | None) -> Value | None:
    """Returns a constant in one of Core ML's dtypes, and other values unchanged."""
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

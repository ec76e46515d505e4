"""Recognises cross-entropies and their gradients, which read one element per row of a softmax."""

from dataclasses import replace

from hexane.dtypes import FP32
from hexane.graph import Graph, Value
from hexane.ops.match import Bound, Found, op, rewrite
from hexane.ops.records.label_rows import CROSS_ENTROPY_GRADIENT, LOG_SOFTMAX_AT
from hexane.targets import Target


def fuse_cross_entropy(graph: Graph, target: Target) -> Graph:
    """gather_along_axis(log_softmax(%x), %at)                               ->  log_softmax_at(%x, %at)
    scatter_along_axis(softmax(%x) * %share, %at, -%share) {mode="add"}   ->  cross_entropy_gradient(%x, %at, %share)

    The softmax is along the last axis, with one %at and %share per row. Nothing else may read the softmax, which is
    then never stored. Leading axes are merged into one. No bit of the result changes.
    """
    return rewrite(rewrite(graph, _AT, _at), _GRADIENT, _gradient)


def _is_of_rows(value: Value, bound: Bound) -> bool:
    """True if the softmax is in fp32, along its last axis, and not empty."""
    kind = value.type
    return bool(kind.dtype is FP32 and kind.rank and kind.shape[-1] and value.node.attrs["axis"] == kind.rank - 1)


_AT = op("gather_along_axis", replace(op("log_softmax", "x", alone=True), fits=_is_of_rows), "at")
_SHARES = op("mul", replace(op("softmax", "x", alone=True), fits=_is_of_rows), "share", alone=True)
_GRADIENT = op("scatter_along_axis", _SHARES, "at", op("neg", "share"))


def _at(m: Found) -> tuple[Value, ...] | None:
    return _in_rows(m, LOG_SOFTMAX_AT, ["x", "at"])


def _gradient(m: Found) -> tuple[Value, ...] | None:
    return _in_rows(m, CROSS_ENTROPY_GRADIENT, ["x", "at", "share"]) if m.node.attrs["mode"] == "add" else None


def _in_rows(m: Found, name: str, operands: list[str]) -> tuple[Value, ...] | None:
    x, *columns = [m[operand] for operand in operands]
    if m.node.attrs["axis"] != x.type.rank - 1 or any(v.shape != (*x.shape[:-1], 1) for v in columns):
        return None
    rows = [m.make("reshape", [v], shape=(-1, v.shape[-1]))[0] for v in (x, *columns)]
    (result,) = m.make(name, rows)
    return m.make("reshape", [result], shape=m.node.types[0].shape)

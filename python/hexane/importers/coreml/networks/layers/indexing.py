"""Layers that gather and scatter elements by index. Indices are floats in the file."""

from typing import Any

from hexane.dtypes import FP32, INT32
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.coreml.known import known_array
from hexane.importers.coreml.networks.registry import LayerContext, reads
from hexane.ops.compose import cast

MODES = ("update", "add", "sub", "mul", "div", "max", "min")


def _mode(p: Any) -> str:
    if not 0 <= p.mode < len(MODES):
        raise Error(f"mode: got {p.mode}, need 0 to {len(MODES) - 1}")
    return MODES[p.mode]


@reads("gather")
def gather(n: LayerContext, p: Any, x: Value, indices: Value) -> Value:
    return n.b.gather(x, cast(n.b, indices, INT32), axis=p.axis)


@reads("gatherND")
def gather_nd(n: LayerContext, p: Any, x: Value, indices: Value) -> Value:
    return n.b.gather_nd(x, cast(n.b, indices, INT32))


@reads("gatherAlongAxis")
def gather_along_axis(n: LayerContext, p: Any, x: Value, indices: Value) -> Value:
    return n.b.gather_along_axis(x, cast(n.b, indices, INT32), axis=p.axis)


@reads("scatter")
def scatter(n: LayerContext, p: Any, x: Value, indices: Value, updates: Value) -> Value:
    picks = cast(n.b, indices, INT32)
    return n.mil("scatter", data=x, indices=picks, updates=updates, axis=p.axis, mode=_mode(p))


@reads("scatterND")
def scatter_nd(n: LayerContext, p: Any, x: Value, indices: Value, updates: Value) -> Value:
    return n.mil("scatter_nd", data=x, indices=cast(n.b, indices, INT32), updates=updates, mode=_mode(p))


@reads("scatterAlongAxis")
def scatter_along_axis(n: LayerContext, p: Any, x: Value, indices: Value, updates: Value) -> Value:
    picks = cast(n.b, indices, INT32)
    return n.mil("scatter_along_axis", data=x, indices=picks, updates=updates, axis=p.axis, mode=_mode(p))


@reads("topK")
def topk(n: LayerContext, p: Any, x: Value, k: Value | None = None) -> tuple[Value, Value]:
    count = int(p.K) if k is None else int(known_array(k).reshape(()))
    values, indices = n.b.several("topk", x, axis=p.axis, k=count, largest=not p.useBottomK, dtype=INT32)
    return values, cast(n.b, indices, FP32)


@reads("oneHot")
def one_hot(n: LayerContext, p: Any, indices: Value, size: Value | None = None) -> Value:
    depth = int(p.oneHotVectorSize) if size is None else int(known_array(size).reshape(()))
    return n.b.one_hot(cast(n.b, indices, INT32), axis=p.axis, depth=depth, on=p.onValue, off=p.offValue)

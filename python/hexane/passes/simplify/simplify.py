"""Removes ops that cancel each other or do nothing."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hexane.dtypes import DType
from hexane.graph import Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.ops.encoded_moves import moved
from hexane.ops.match import made_by
from hexane.passes.fuse.fuse_transpose import transposed
from hexane.targets import Target

Rule = Callable[[Node, Value], Value | None]


def simplify(graph: Graph, target: Target) -> Graph:
    """transpose(transpose(%x) {perm=(0, 2, 1)}) {perm=(0, 2, 1)}  ->  %x

    Two consecutive transposes, reshapes, lossless casts, reversals, negations or clamps (relu, relu6, clip) become one
    or none. A second abs, ceil, floor, round or sign is removed. Transposes that move nothing, full slices,
    concatenations of one nonempty tensor, broadcasts to the same shape, x * 1, x / 1 and x - 0 become x. x + 0 is kept,
    because it turns -0 into 0. A celu with alpha 1 becomes an elu, which chips have. A select whose condition is True
    or False everywhere becomes the chosen operand. A slice of an encoded constant becomes an encoded constant. If the
    first of two clamps has another reader, the second is removed only if it changes nothing.
    """
    counts = graph.use_counts()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x = inputs[0]
        assert x is not None
        if node.op in _LIMITS:
            simpler = _limited(node, x, alone=counts[node.inputs[0]] == 1)  # type: ignore[index]
        else:
            simpler = _RULES[node.op](node, x) if node.op in _RULES else _OF_ALL[node.op](node, inputs)
        return None if simpler is None else (simpler,)

    return graph.rewrite(change, {*_RULES, *_LIMITS, *_OF_ALL})


def _transpose(node: Node, x: Value) -> Value | None:
    y = transposed(x, node.attrs["perm"], node.sources)
    return _reshape(y.node, x) or y if y.node.op == "reshape" and y.node.inputs == (x,) else y


def _reshape(node: Node, x: Value) -> Value | None:
    inner = made_by(x, "reshape")
    source = x if inner is None else inner.inputs[0]
    if source is not None and source.type == node.types[0]:
        return source
    return None if inner is None else apply(OPS["reshape"], inner.inputs, node.attrs, node.sources)[0]


def _same_type(node: Node, x: Value) -> Value | None:
    """Returns x if the op's result has x's type, else None. Used for ops that do nothing unless they change the
    type."""
    return x if x.type == node.types[0] else None


def _slice(node: Node, x: Value) -> Value | None:
    return x if x.type == node.types[0] else moved(node.with_inputs((x, *node.inputs[1:])))


def _cast(node: Node, x: Value) -> Value | None:
    if x.type == node.types[0]:
        return x
    inner = made_by(x, "cast")
    source = None if inner is None else inner.inputs[0]
    if source is None or not _holds(x.dtype, source.dtype):
        return None
    if source.type == node.types[0]:
        return source
    # A cast to float and back has a meaning: integer casts wrap where float casts saturate.
    if _is_float(source.dtype) == _is_float(x.dtype):
        return apply(OPS["cast"], [source], node.attrs, node.sources)[0]
    return None


def _holds(wide: DType, narrow: DType) -> bool:
    """True if `wide` holds every number of `narrow`."""
    if narrow.kind == "bool":
        return True
    if wide.kind == "bool":
        return False
    if _is_float(narrow):
        return _is_float(wide) and np.can_cast(narrow.numpy, wide.numpy, "safe")
    if _is_float(wide):
        return narrow.bits - (narrow.kind == "int") <= _SIGNIFICAND_BITS.get(wide.name, 0)
    return wide.bits - (wide.kind == "int") >= narrow.bits - (narrow.kind == "int") and wide.kind in (
        "int",
        narrow.kind,
    )


_SIGNIFICAND_BITS = {"bf16": 8, "fp16": 11, "fp32": 24, "fp64": 53}


def _is_float(d: DType) -> bool:
    return d.kind == "float"


def _celu(node: Node, x: Value) -> Value | None:
    return apply(OPS["elu"], [x], {"alpha": 1.0}, node.sources)[0] if node.attrs["alpha"] == 1 else None


def _reverse(node: Node, x: Value) -> Value | None:
    inner = made_by(x, "reverse")
    source, undone = (x, ()) if inner is None else (inner.inputs[0], inner.attrs["axes"])
    axes = tuple(a for a in range(x.type.rank) if (a in node.attrs["axes"]) != (a in undone) and x.shape[a] > 1)
    if not axes:
        return source
    return None if inner is None else apply(OPS["reverse"], [source], {"axes": axes}, node.sources)[0]


def _undone(node: Node, x: Value) -> Value | None:
    inner = made_by(x, node.op)
    return None if inner is None else inner.inputs[0]


def _once(node: Node, x: Value) -> Value | None:
    return x if x.node.op == node.op else None


_RULES: dict[str, Rule] = {
    "transpose": _transpose,
    "reshape": _reshape,
    **dict.fromkeys(("slice_by_index", "slice_by_size"), _slice),
    "broadcast_to": _same_type,
    "cast": _cast,
    "celu": _celu,
    "reverse": _reverse,
    "neg": _undone,
    "logical_not": _undone,
    **dict.fromkeys(("abs", "ceil", "floor", "round", "sign"), _once),
}

_LIMITS = {"relu": (0.0, math.inf), "relu6": (0.0, 6.0), "clip": None}


def _limited(node: Node, x: Value, alone: bool) -> Value | None:
    """Returns clip(clip(x)) as one clip, or None."""
    if x.node.op not in _LIMITS or not _is_float(x.dtype):
        return None
    (low, high), (outer_low, outer_high) = _bounds(x.node), _bounds(node)
    if any(v == 0 and math.copysign(1, v) < 0 for v in (low, high, outer_low, outer_high)):
        return None  # the sign of a zero depends on the order of the clamps
    bounds = tuple(min(max(v, outer_low), outer_high) for v in (low, high))
    if bounds == (low, high):
        return x
    if not alone:
        return None
    return apply(OPS["clip"], x.node.inputs, {"alpha": bounds[0], "beta": bounds[1]}, node.sources)[0]


def _bounds(node: Node) -> tuple[float, float]:
    return _LIMITS[node.op] or (float(node.attrs["alpha"]), float(node.attrs["beta"]))


def _joined(node: Node, inputs: tuple[Value | None, ...]) -> Value | None:
    kept = [v for v in inputs if v is not None and v.shape[node.attrs["axis"]] > 0]
    if len(kept) == 1:
        return kept[0]
    return apply(OPS["concat"], kept, node.attrs, node.sources)[0] if kept and len(kept) < len(inputs) else None


def _taken(node: Node, inputs: tuple[Value | None, ...]) -> Value | None:
    where, a, b = inputs
    data = where.node.data if where is not None and where.node.op == "const" else None
    if data is None or not data.size or data.any() != data.all():
        return None
    taken = a if data.any() else b
    return taken if taken is not None and taken.type == node.types[0] else None


# For each op: the constant operand with which it returns every x unchanged, bit for bit, and that operand's positions.
_NEUTRAL: dict[str, tuple[float, tuple[int, ...]]] = {"mul": (1.0, (0, 1)), "real_div": (1.0, (1,)), "sub": (0.0, (1,))}


def _without_neutral(node: Node, inputs: tuple[Value | None, ...]) -> Value | None:
    neutral, sides = _NEUTRAL[node.op]
    for i in sides:
        x, other = inputs[1 - i], inputs[i]
        if x is not None and x.type == node.types[0] and other is not None and _is_all(other, neutral):
            return x
    return None


def _is_all(value: Value, number: Any) -> bool:
    data = value.node.data if value.node.op == "const" else None
    if data is None or not bool((data == number).all()):
        return False
    return number != 0 or not bool(np.signbit(data.astype(np.float64)).any())


_OF_ALL = {"concat": _joined, "select": _taken, **dict.fromkeys(_NEUTRAL, _without_neutral)}

"""Removes ops that cancel each other or do nothing."""

import math
from collections.abc import Callable

from hexane.graph import Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.ops.encoded_moves import moved
from hexane.ops.match import made_by
from hexane.passes.fuse.fuse_transpose import transposed
from hexane.passes.simplify.casts import without_cast
from hexane.passes.simplify.operands import NEUTRAL, joined, taken, without_neutral
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
    "cast": without_cast,
    "celu": _celu,
    "reverse": _reverse,
    "neg": _undone,
    "logical_not": _undone,
    **dict.fromkeys(("abs", "ceil", "floor", "round", "sign"), _once),
}

_LIMITS = {"relu": (0.0, math.inf), "relu6": (0.0, 6.0), "clip": None}


def _limited(node: Node, x: Value, alone: bool) -> Value | None:
    """Returns clip(clip(x)) as one clip, or None."""
    if x.node.op not in _LIMITS or x.dtype.kind != "float":
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


_OF_ALL = {"concat": joined, "select": taken, **dict.fromkeys(NEUTRAL, without_neutral)}

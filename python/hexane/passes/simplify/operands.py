"""Ops that some of their operands make unnecessary: empty parts, constant conditions, factors of 1."""

from typing import Any

import numpy as np

from hexane.graph import Node, Value
from hexane.ops import OPS, apply


def joined(node: Node, inputs: tuple[Value | None, ...]) -> Value | None:
    kept = [v for v in inputs if v is not None and v.shape[node.attrs["axis"]] > 0]
    if len(kept) == 1:
        return kept[0]
    return apply(OPS["concat"], kept, node.attrs, node.sources)[0] if kept and len(kept) < len(inputs) else None


def taken(node: Node, inputs: tuple[Value | None, ...]) -> Value | None:
    where, a, b = inputs
    data = where.node.data if where is not None and where.node.op == "const" else None
    if data is None or not data.size or data.any() != data.all():
        return None
    taken = a if data.any() else b
    return taken if taken is not None and taken.type == node.types[0] else None


# For each op: the constant operand with which it returns every x unchanged, bit for bit, and that operand's positions.
NEUTRAL: dict[str, tuple[float, tuple[int, ...]]] = {"mul": (1.0, (0, 1)), "real_div": (1.0, (1,)), "sub": (0.0, (1,))}


def without_neutral(node: Node, inputs: tuple[Value | None, ...]) -> Value | None:
    neutral, sides = NEUTRAL[node.op]
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

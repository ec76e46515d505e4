"""Ops in simpler ones: one way for all who need it, a chip that has no layer for an op, MIL text and Core AI assets."""

from collections.abc import Sequence
from math import isinf

import numpy as np

from hexane.graph import Value
from hexane.ops.compose import Builder, Operand


def clip(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    """minimum(maximum(x, alpha), beta), without a limit that is none. Limits of integers are truncated into their
    range, as the kernel has them."""
    x = x if isinf(alpha) else b.maximum(x, _limit(x, alpha))
    return x if isinf(beta) else b.minimum(x, _limit(x, beta))


def _limit(x: Value, limit: float) -> float:
    if x.dtype.kind == "float":
        return limit
    held = np.iinfo(x.dtype.numpy)
    return int(min(max(limit, held.min), held.max))


def reversed_order(b: Builder, x: Value) -> Value:
    """A value for each of x, of its dtype, that is the less the greater x is: -x; of integers one that none
    overflows."""
    if x.dtype.kind == "float":
        return b.neg(x)
    return b.sub(-1 if x.dtype.kind == "int" else int(np.iinfo(x.dtype.numpy).max), x)


def sigmoid_hard(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    return b.clip(b.add(b.mul(x, alpha), beta), alpha=0.0, beta=1.0)


def hard_swish(b: Builder, x: Value) -> Value:
    return b.mul(x, b.sigmoid_hard(x, alpha=1 / 6, beta=0.5))


def selu(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    return b.mul(b.elu(x, alpha=alpha), beta)


def prelu(b: Builder, x: Value, slope: Operand) -> Value:
    return b.select(b.less(x, 0.0), b.mul(x, slope), x)


def neg(b: Builder, x: Value) -> Value:
    return b.sub(0, x) if x.dtype.kind == "uint" else b.mul(x, -1.0)  # unsigned integers wrap


def inner_pad(b: Builder, x: Value, begin: Sequence[int], end: Sequence[int]) -> tuple[Value, list[int], list[int]]:
    """What stays of x where a pad is negative, and what is left to pad."""
    cut = b.slice_by_index(
        x,
        begin=[max(-p, 0) for p in begin],
        end=[d - max(-p, 0) for p, d in zip(end, x.shape, strict=True)],
    )
    return cut, [max(p, 0) for p in begin], [max(p, 0) for p in end]

"""Ops in simpler ones: one way for all who need it, a chip that has no layer for an op, MIL text and Core AI assets."""

from collections.abc import Sequence
from math import isinf

from hexane.graph import Value
from hexane.ops.compose import Builder, Operand


def clip(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    """minimum(maximum(x, alpha), beta), without a limit that is none."""
    x = x if isinf(alpha) else b.maximum(x, alpha)
    return x if isinf(beta) else b.minimum(x, beta)


def sigmoid_hard(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    return b.clip(b.add(b.mul(x, alpha), beta), alpha=0.0, beta=1.0)


def hard_swish(b: Builder, x: Value) -> Value:
    return b.mul(x, b.sigmoid_hard(x, alpha=1 / 6, beta=0.5))


def selu(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    return b.mul(b.elu(x, alpha=alpha), beta)


def prelu(b: Builder, x: Value, slope: Operand) -> Value:
    return b.select(b.less(x, 0.0), b.mul(x, slope), x)


def neg(b: Builder, x: Value) -> Value:
    return b.mul(x, -1.0)


def inner_pad(b: Builder, x: Value, begin: Sequence[int], end: Sequence[int]) -> tuple[Value, list[int], list[int]]:
    """What stays of x where a pad is negative, and what is left to pad."""
    cut = b.slice_by_index(
        x,
        begin=[max(-p, 0) for p in begin],
        end=[d - max(-p, 0) for p, d in zip(end, x.shape, strict=True)],
    )
    return cut, [max(p, 0) for p in begin], [max(p, 0) for p in end]

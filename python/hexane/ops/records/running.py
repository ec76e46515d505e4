"""The op of a streamed reduction over pixels, one row at a time. The pass stages/stream/by_rows.py writes it."""

from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import FP16, FP32, DType
from hexane.errors import Error
from hexane.ops.attributes import text
from hexane.ops.shape_rules import Shape
from hexane.ops.spec import Op

Array = Any
RUNNING_REDUCE = "cpu.running_reduce"
# The number of terms in a partial sum, and of partial sums in a sum of the next level
# (csrc/cpu/reduce/accumulate-inl.h).
SUM_BLOCK = 128
_KINDS = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}


def _running_shape(x: Shape, kind: str) -> Shape:
    if len(x) not in (3, 4) or x[0] != 1 or 0 in x:
        raise Error(f"got the shape {x}, need (1, H, W, C) or (1, H, C) with elements")
    terms = prod(x[1:-1])
    levels = 1 + (terms > SUM_BLOCK) + (terms > SUM_BLOCK**2) if kind in ("sum", "mean") else 1
    return (1, x[1], levels, x[-1])


def _running_dtype(x: DType, kind: str) -> DType:
    if x not in (FP32, FP16):
        raise Error(f"got {x}, need fp32 or fp16")
    return FP32


def _running_reduce(x: Array, kind: str) -> Array:
    """Returns levels of partial results, which together are the result of all rows so far."""
    _, rows, levels, channels = _running_shape(x.shape, kind)
    join, pixels = _KINDS[kind], x.reshape(rows, -1, channels).astype(np.float32)
    identity = np.full(channels, {"max": -np.inf, "min": np.inf}.get(kind, 0), np.float32)
    state, out = [identity] * 3, np.zeros((1, rows, levels, channels), np.float32)
    for i, pixel in enumerate(pixels.reshape(-1, channels), 1):
        state[0] = join(state[0], pixel)
        for level, terms in enumerate((SUM_BLOCK, SUM_BLOCK**2)):
            if i % terms == 0:
                state[level : level + 2] = identity, join(state[level + 1], state[level])
        result = join(state[2], join(state[1], state[0]))
        out[0, (i - 1) // pixels.shape[1]] = state[:levels] if levels > 1 else result
    out[0, -1] = 0
    out[0, -1, 0] = result / np.float32(pixels.size // channels) if kind == "mean" else result
    return out


OPS = (
    Op(
        name=RUNNING_REDUCE,
        doc="(1, H, W, C) or (1, H, C) -> (1, H, L, C): partial results after each row, and after the last row the "
            "result and zeros.",
        inputs=("x",), attrs={"kind": text(choices=("sum", "mean", "max", "min"))}, shape=_running_shape, dtype=_running_dtype,
        kernel="running_reduce", level="kernel", ref=_running_reduce, cases=(),
    ),
)  # fmt: skip

"""Casts whose result a cast that follows, or the type itself, makes unnecessary."""

import numpy as np

from hexane.dtypes import DType
from hexane.graph import Node, Value
from hexane.ops import OPS, apply
from hexane.ops.match import made_by


def without_cast(node: Node, x: Value) -> Value | None:
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

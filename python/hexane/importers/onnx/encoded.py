"""Constants that stay encoded as in the file: integers with scales of blocks, and indices of a palette."""

import numpy as np

from hexane.dtypes import DTYPES, FP16, FP32, DType
from hexane.graph import Value, constant
from hexane.ops import OPS, apply
from hexane.ops.encodings import is_encoded

INT8 = DTYPES["int8"]
LEAST_INDICES = 4096  # fewer indices are decoded, which costs little memory
MOST_ENTRIES = 256


def decode_blocks(x: Value, scale: Value, axis: int, block: int, kind: DType) -> Value | None:
    """Returns `decode_blocks` of constant int8 and a constant scale for each `block` elements along an axis, or None
    for incomplete blocks or other dtypes."""
    integers, scales = x.node.data, scale.node.data
    if x.node.op != "const" or scale.node.op != "const" or integers is None or scales is None:
        return None
    if x.dtype is not INT8 or scale.dtype is not kind or kind not in (FP16, FP32):
        return None
    if block <= 0 or x.shape != tuple(d * block if i == axis else d for i, d in enumerate(scale.shape)):
        return None
    result: Value = apply(OPS["decode_blocks"], [x, scale], {}, x.node.sources)[0]
    return result


def pick(table: Value, indices: Value, axis: int) -> Value | None:
    """Returns a palette for constant indices of a constant table, or None for other operands or few indices."""
    entries, places = table.node.data, indices.node.data
    if table.node.op != "const" or indices.node.op != "const" or entries is None or places is None or axis != 0:
        return None
    if table.type.rank != 1 or table.dtype not in (FP16, FP32) or not 0 < entries.size <= MOST_ENTRIES:
        return None
    if indices.type.rank < 2 or places.size < LEAST_INDICES or places.min() < 0 or places.max() >= entries.size:
        return None
    result: Value = apply(OPS["gather"], [table, indices], {"axis": 0}, indices.node.sources)[0]
    return result


def reshape(x: Value, shape: tuple[int, ...]) -> Value | None:
    """Reshapes an encoded constant to the same shape or with its last axis split, or returns None if its blocks would
    change."""
    if not is_encoded(x.node):
        return None
    if x.shape == shape:
        return x
    if x.node.op != "decode_blocks":
        return None
    integers, scales = (v.node.data for v in x.node.inputs[:2] if v is not None)
    assert integers is not None
    assert scales is not None
    kept = x.type.rank - 1
    blocks = scales.shape[-1]
    if shape[:kept] != x.shape[:kept] or len(shape) <= kept or shape[kept] == 0 or shape[kept] % blocks != 0:
        return None
    if integers.size != np.prod(shape):
        return None
    spread = scales.reshape(*scales.shape, *[1] * (len(shape) - kept - 1))
    operands = [constant(integers.reshape(shape), x.node.sources), constant(spread, x.node.sources)]
    result: Value = apply(OPS["decode_blocks"], operands, {}, x.node.sources)[0]
    return result

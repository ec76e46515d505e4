"""Ops that give, fill or change shapes, casts and concatenations. `shape`, `fill`, `fill_like` and `range_1d` become
constants."""

from typing import Any

import numpy as np

from hexane.dtypes import INT32, DType
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.coreml.known import known_array
from hexane.importers.coreml.registry import Context, reads
from hexane.ops.compose import cast, limited

MOST = 1 << 28


@reads("shape x")
def shape(c: Context, _: Any, /, x: Value) -> Value:
    return c.b.const(np.array(x.shape, np.int32))


def _filled(c: Context, shape: tuple[int, ...], value: Value | None) -> Value:
    array = np.zeros((), np.float32) if value is None else known_array(value).reshape(())
    extents = [int(d) for d in shape]
    limited(int(np.prod(extents, dtype=np.float64)), array.dtype)
    return c.b.const(np.full(extents, array, array.dtype))


@reads("fill shape:ints value?")
def fill(c: Context, _: Any, /, shape: tuple[int, ...], value: Value | None) -> Value:
    return _filled(c, shape, value)


@reads("fill_like ref_tensor value?")
def fill_like(c: Context, _: Any, /, ref_tensor: Value, value: Value | None) -> Value:
    return _filled(c, ref_tensor.shape, value)


@reads("range_1d start end step")
def range_1d(c: Context, _: Any, /, start: Value, end: Value, step: Value) -> Value:
    ends = [known_array(v).reshape(()) for v in (start, end, step)]
    if not ends[2]:
        raise Error("step: got 0, need another one")
    count = max(0, int(np.ceil((float(ends[1]) - float(ends[0])) / float(ends[2]))))
    limited(count, ends[0].dtype)
    return c.b.const((ends[0] + np.arange(count) * ends[2]).astype(ends[0].dtype))


@reads("reshape x shape:ints")
def reshape(c: Context, _: Any, /, x: Value, shape: tuple[int, ...]) -> Value:
    """Reshapes x. A 0 keeps an extent: up to iOS16, of the axis at the same index; from iOS17 on, of the axis at the
    same index from the right, or 1 if there is none."""
    extents = list(shape)
    rank = len(x.shape)
    for i, extent in enumerate(extents):
        if extent == 0 and x.type.size:
            at = i if c.opset < 17 else i - len(extents) + rank
            extents[i] = x.shape[at] if 0 <= at < rank else 1
    return c.b.reshape(x, shape=_resolved(x, extents))


def _resolved(x: Value, extents: list[int]) -> tuple[int, ...]:
    if extents.count(-1) > 1:
        raise Error(f"shape: got {tuple(extents)}, need -1 once at most")
    if -1 in extents:
        known = int(np.prod([d for d in extents if d != -1], dtype=np.int64))
        extents[extents.index(-1)] = x.type.size // known if known else 0
    return tuple(extents)


@reads("reshape_like x ref_tensors:values begins:items ends:items end_masks:items")
def reshape_like(c: Context, _: Any, /, x: Value, ref_tensors: Any, begins: Any, ends: Any, end_masks: Any) -> Value:
    """Reshapes x to a shape that is put together from slices of several tensors' shapes."""

    def numbers(items: Any) -> list[int]:
        flat: list[int] = []
        for item in items:
            for one in item if isinstance(item, list) else [item]:
                flat += np.asarray(known_array(one) if isinstance(one, Value) else one).reshape(-1).tolist()
        return flat

    extents: list[int] = []
    for tensor, begin, end, mask in zip(ref_tensors, *map(numbers, (begins, ends, end_masks)), strict=True):
        extents += tensor.shape[int(begin) : None if mask else int(end)]
    return c.b.reshape(x, shape=extents)


@reads("cast x dtype:dtype")
def cast_op(c: Context, _: Any, /, x: Value, dtype: DType) -> Value:
    return cast(c.b, x, dtype)


@reads("concat values:values axis:int interleave:bool=false")
def concat(c: Context, _: Any, /, values: tuple[Value, ...], axis: int, interleave: bool) -> Value:
    """Concatenates tensors. Scalars are concatenated to a vector. interleave: the tensors' elements alternate."""
    if all(not v.shape for v in values):
        values = tuple(c.b.reshape(v, shape=(1,)) for v in values)
    if not interleave:
        return values[0] if len(values) == 1 else c.b.concat(*values, axis=axis)
    rank = len(values[0].shape)
    at = axis % rank
    stacked = c.b.stack(*values, axis=at + 1)
    extents = list(values[0].shape)
    extents[at] *= len(values)
    return c.b.reshape(stacked, shape=extents)


@reads("non_zero x")
def non_zero(c: Context, _: Any, /, x: Value) -> Value:
    places = c.b.several("non_zero", x)[0]
    return cast(c.b, c.b.transpose(places, perm=(1, 0)), INT32) if len(places.shape) == 2 else places

"""Slices, gathers and scatters. The meaning of indices changed in iOS17."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hexane.dtypes import INT32, DType
from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.importers.coreml.known import ComputedError, deciding_inputs, known_array
from hexane.importers.coreml.registry import Context, Part, reads
from hexane.ops.compose import Builder, cast


def _indices(c: Context, indices: Value) -> Value:
    """Returns narrow or unsigned indices as int32, and other indices unchanged. Up to iOS16 a negative index counts
    from the end. From iOS17 on a negative index is undefined; Hexane counts from the end."""
    return cast(c.b, indices, INT32) if indices.dtype.bits < 32 or indices.dtype.kind == "uint" else indices


@reads("gather x indices axis:int=0 batch_dims:int=0 validate_indices:bool=false")
def gather(
    c: Context, _: Any, /, x: Value, indices: Value, axis: int, batch_dims: int, validate_indices: bool
) -> Value:
    at = axis % len(x.shape) if x.shape else 0
    indices = _indices(c, indices)
    if not batch_dims:
        return c.b.gather(x, indices, axis=axis)
    return _batched(c, x, indices, at, batch_dims % max(len(indices.shape), 1))


def _batched(c: Context, x: Value, indices: Value, axis: int, batch: int) -> Value:
    """Gathers with shared leading axes, by one gather over the rows of the whole batch."""
    b, lead = c.b, x.shape[:batch]
    count = int(np.prod(lead, dtype=np.int64))
    own = indices.shape[batch:]
    moved = b.transpose(x, perm=(*range(batch), axis, *(i for i in range(batch, len(x.shape)) if i != axis)))
    extent, rest = moved.shape[batch], moved.shape[batch + 1 :]
    rows = b.reshape(moved, shape=(count * extent, *rest))
    flat = b.reshape(indices, shape=(count, int(np.prod(own, dtype=np.int64))))
    flat = b.select(b.less(flat, 0), b.add(flat, extent), flat)
    flat = b.add(flat, b.const((np.arange(count, dtype=np.int32) * extent).reshape(-1, 1)))
    gathered = b.reshape(b.gather(rows, flat, axis=0), shape=(*lead, *own, *rest))
    # The axes of the indices replace the gathered axis.
    before = axis - batch
    order = [
        *range(batch),
        *range(batch + len(own), batch + len(own) + before),
        *range(batch, batch + len(own)),
        *range(batch + len(own) + before, len(gathered.shape)),
    ]
    return b.transpose(gathered, perm=order)


@reads("gather_along_axis x indices axis:int=0 validate_indices:bool=false")
def gather_along_axis(c: Context, _: Any, /, x: Value, indices: Value, axis: int, validate_indices: bool) -> Value:
    return c.b.gather_along_axis(x, _indices(c, indices), axis=axis)


@reads("gather_nd x indices batch_dims:int=0 validate_indices:bool=false")
def gather_nd(c: Context, _: Any, /, x: Value, indices: Value, batch_dims: int, validate_indices: bool) -> Value:
    return c.b.gather_nd(x, _indices(c, indices), batch_dims=batch_dims)


COMBINES = {"add": "add", "mul": "mul", "min": "min", "max": "max", "update": "update"}


def _scatter(c: Context, op: str, data: Value, indices: Value, updates: Value, mode: str, **attrs: Any) -> Value:
    """Scatters. Mode sub adds the negated updates, and div multiplies by their inverse."""
    b = c.b
    updates = cast(b, updates, data.dtype)
    if mode == "sub":
        mode, updates = "add", b.neg(updates)
    elif mode == "div":
        mode, updates = "mul", b.inverse(updates)
    if mode not in COMBINES:
        raise Error(f"mode: got {mode!r}, need add, sub, mul, div, min, max or update")
    return b.apply(op, data, indices, updates, mode=COMBINES[mode], **attrs)


@reads("scatter_nd data indices updates mode:str=add validate_indices:bool=false")
def scatter_nd(
    c: Context, _: Any, /, data: Value, indices: Value, updates: Value, mode: str, validate_indices: bool
) -> Value:
    return _scatter(c, "scatter_nd", data, _indices(c, indices), updates, mode)


@reads("scatter_along_axis data indices updates axis:int=0 mode:str=add validate_indices:bool=false")
def scatter_along_axis(
    c: Context, _: Any, /, data: Value, indices: Value, updates: Value, axis: int, mode: str, validate_indices: bool
) -> Value:
    picks = _indices(c, indices)
    return _scatter(c, "scatter_along_axis", data, picks, updates, mode, axis=axis)


@reads("scatter data indices updates axis:int=0 mode:str=add validate_indices:bool=false")
def scatter(
    c: Context, _: Any, /, data: Value, indices: Value, updates: Value, axis: int, mode: str, validate_indices: bool
) -> Value:
    """Scatters whole slices along one axis."""
    b, at = c.b, axis % len(data.shape)
    rank = len(data.shape)
    perm = (at, *(i for i in range(rank) if i != at))
    moved, rows = b.transpose(data, perm=perm), b.transpose(updates, perm=perm)
    picks = b.reshape(_indices(c, indices), shape=(indices.type.size, 1))
    scattered = _scatter(c, "scatter_nd", moved, picks, rows, mode)
    return b.transpose(scattered, perm=[perm.index(i) for i in range(rank)])


# ---- slices ----


def _bounds(
    shape: tuple[int, ...], begin: Any, end: Any, stride: Any, begin_mask: Any, end_mask: Any, squeeze_mask: Any
) -> tuple[list[slice], list[int]]:
    """Returns Python slices, and the axes to drop."""
    rank = len(shape)

    def padded(given: Any, default: Any) -> list[Any]:
        return [*(given or ()), *[default] * (rank - len(given or ()))]

    steps = padded(stride, 1)
    slices, dropped = [], []
    for i, (extent, first, last, step, no_first, no_last, squeezed) in enumerate(
        zip(shape, padded(begin, 0), padded(end, 0), steps, padded(begin_mask, False), padded(end_mask, False),
            padded(squeeze_mask, False), strict=True)
    ):  # fmt: skip
        if step == 0:
            raise Error("stride: got 0, need another one")
        if squeezed:
            at = 0 if no_first else first
            at += extent if at < 0 else 0
            if not 0 <= at < extent:
                raise Error(f"begin: got {first} for an axis of {extent}, need one of its places")
            slices.append(slice(at, at + 1, 1))
            dropped.append(i)
            continue
        slices.append(slice(None if no_first else first, None if no_last else last, step))
    return slices, dropped


def _cut(b: Builder, x: Value, parts: list[slice]) -> Value:
    begin, end, stride, reversed_axes = [], [], [], []
    for i, (extent, part) in enumerate(zip(x.shape, parts, strict=True)):
        places = range(*part.indices(extent))
        if places.step < 0:
            reversed_axes.append(i)
            places = places[::-1]
        begin.append(places.start if len(places) else 0)
        end.append(places.stop if len(places) else 0)
        stride.append(places.step)
    for i, (first, last, step) in enumerate(zip(begin, end, stride, strict=True)):
        end[i] = min(max(last, first), x.shape[i]) if step > 0 else last
    y = b.slice_by_index(x, begin=begin, end=end, stride=stride)
    return b.reverse(y, axes=reversed_axes) if reversed_axes else y


@reads("slice_by_index x begin:any end:any stride:ints? begin_mask:bools? end_mask:bools? squeeze_mask:bools?")
def slice_by_index(c: Context, operation: Any, /, x: Value, begin: Value, end: Value, **g: Any) -> Value:
    dims = operation.results[0][1].dims
    if begin.node.data is None or end.node.data is None:
        if dims is None or None in dims:
            known_array(end)
        return _at_run_time(c, operation, x, begin, **g)
    first, last = (known_array(v).reshape(-1).tolist() for v in (begin, end))
    return sliced(c.b, x, first, last, **g)


def sliced(b: Builder, x: Value, begin: Sequence[int], end: Sequence[int], **g: Any) -> Value:
    """Returns x[begin:end:stride] by Python's rules, without the axes in squeeze_mask."""
    parts, dropped = _bounds(x.shape, begin, end, g["stride"], g["begin_mask"], g["end_mask"], g["squeeze_mask"])
    return _dropped(b, _cut(b, x, parts), dropped)


def _dropped(b: Builder, y: Value, axes: list[int]) -> Value:
    if not axes:
        return y
    return b.reshape(y, shape=[d for i, d in enumerate(y.shape) if i not in axes])


def _at_run_time(c: Context, operation: Any, x: Value, begin: Value, **g: Any) -> Value:
    """Slices at a computed index. The slice has the extents that the program declares for the result, and 1 on axes
    that are squeezed."""
    dims = operation.results[0][1].dims
    squeezed = [*(g["squeeze_mask"] or ()), *[False] * len(x.shape)][: len(x.shape)]
    open_first = [*(g["begin_mask"] or ()), *[False] * len(x.shape)][: len(x.shape)]
    if dims is None or None in dims or any(s != 1 for s in g["stride"] or ()):
        raise ComputedError(
            "got places that are computed at run time, need constants, or a result of a known shape",
            deciding_inputs(begin),
        )
    extents = iter(dims)
    sizes = [1 if s else next(extents) for s in squeezed]
    b, y = c.b, x
    for axis, (size, whole) in enumerate(zip(sizes, open_first, strict=True)):
        if size == x.shape[axis] or (whole and size == x.shape[axis]):
            continue
        place = b.reshape(b.slice_by_index(begin, begin=(axis,), end=(axis + 1,)), shape=(1,))
        place = b.const(np.zeros(1, np.int32)) if whole else cast(b, place, INT32)
        place = b.select(b.less(place, 0), b.add(place, x.shape[axis]), place)
        picks = b.add(place, b.const(np.arange(size, dtype=np.int32)))
        y = b.gather(y, picks, axis=axis)
    return _dropped(b, y, [i for i, s in enumerate(squeezed) if s])


@reads("slice_by_size x begin:any size:ints")
def slice_by_size(c: Context, operation: Any, /, x: Value, begin: Value, size: tuple[int, ...]) -> Value:
    if begin.node.data is None:
        dims = operation.results[0][1].dims
        if dims is None or None in dims:
            known_array(begin)
        return _at_run_time(c, operation, x, begin, squeeze_mask=None, begin_mask=None, stride=None)
    parts = []
    for extent, first, count in zip(x.shape, begin.node.data.reshape(-1).tolist(), size, strict=True):
        first += extent if first < 0 else 0
        parts.append(slice(first, extent if count == -1 else first + count))
    return _cut(c.b, x, parts)


@reads("slice_update x update begin:any end:any stride:ints? begin_mask:bools? end_mask:bools? squeeze_mask:bools?")
def slice_update(c: Context, _: Any, /, x: Value, update: Value, begin: Value, end: Value, **g: Any) -> Value:
    """Replaces a slice of x."""
    if begin.node.data is None:
        return _updated_at_run_time(c, x, update, begin, **g)
    if end.node.data is None:
        return _updated_from(c, x, update, known_array(begin).reshape(-1).tolist(), **g)
    first, last = (known_array(v).reshape(-1).tolist() for v in (begin, end))
    parts, _squeezed = _bounds(x.shape, first, last, g["stride"], g["begin_mask"], g["end_mask"], g["squeeze_mask"])
    return _replaced(c, x, update, parts)


def _replaced(c: Context, x: Value, update: Value, parts: list[slice]) -> Value:
    shape = [len(range(*part.indices(d))) for d, part in zip(x.shape, parts, strict=True)]
    new = c.b.reshape(cast(c.b, update, x.dtype), shape=shape)
    if shape == list(x.shape) and all((p.step or 1) > 0 for p in parts):
        return new
    places: Array = np.arange(x.type.size, dtype=np.int32).reshape(x.shape)[tuple(parts)].reshape(-1, 1)
    flat = c.b.reshape(x, shape=(x.type.size,))
    scattered = c.b.scatter_nd(flat, places, c.b.reshape(new, shape=(places.shape[0],)), mode="update")
    return c.b.reshape(scattered, shape=x.shape)


def _updated_from(c: Context, x: Value, update: Value, begin: list[int], **g: Any) -> Value:
    """Replaces a slice of x that starts at a constant index. The update and the slice have equal extents."""
    rank = len(x.shape)
    squeezed = [*(g["squeeze_mask"] or ()), *[False] * rank][:rank]
    masked = [*(g["begin_mask"] or ()), *[False] * rank][:rank]
    steps = [*(g["stride"] or ()), *[1] * rank][:rank]
    extents = iter(update.shape)
    parts = []
    for extent, first, step, whole, one in zip(x.shape, begin, steps, masked, squeezed, strict=True):
        count = 1 if one else next(extents)
        at = (0 if step > 0 else extent - 1) if whole else first + (extent if first < 0 else 0)
        last = at + count * step
        if count and not (0 <= at < extent and -1 <= last - step < extent):
            raise Error(f"got {count} elements from {at} on for an axis of {extent}, need places inside")
        parts.append(slice(at, None if last < 0 else last, step))
    return _replaced(c, x, update, parts)


def _updated_at_run_time(c: Context, x: Value, update: Value, begin: Value, **g: Any) -> Value:
    """Replaces a slice of x that starts at a computed index on one axis and spans all other axes."""
    rank = len(x.shape)
    squeezed = [*(g["squeeze_mask"] or ()), *[False] * rank][:rank]
    if any(s != 1 for s in g["stride"] or ()):
        known_array(begin)
    extents = iter(update.shape)
    sizes = [1 if s else next(extents) for s in squeezed]
    moved = [i for i in range(rank) if sizes[i] != x.shape[i]]
    if len(moved) > 1:
        known_array(begin)
    b = c.b
    new = b.reshape(cast(b, update, x.dtype), shape=sizes)
    if not moved:
        return new
    (axis,) = moved
    place = cast(b, b.reshape(b.slice_by_index(begin, begin=(axis,), end=(axis + 1,)), shape=()), INT32)
    place = b.select(b.less(place, 0), b.add(place, x.shape[axis]), place)
    picks = b.reshape(b.add(place, b.const(np.arange(sizes[axis], dtype=np.int32))), shape=(sizes[axis], 1))
    perm = (axis, *(i for i in range(rank) if i != axis))
    scattered = b.scatter_nd(b.transpose(x, perm=perm), picks, b.transpose(new, perm=perm), mode="update")
    whole = b.transpose(scattered, perm=[perm.index(i) for i in range(rank)])
    c.translator.parts[whole] = Part(x, new, place, axis)  # a later write of `whole` to a state writes only `new`
    return whole


@reads(
    "topk x k:int=1 axis:int=-1 ascending:bool=false sort:bool=true return_indices:bool=true"
    " output_indices_dtype:dtype=int32"
)
def topk(
    c: Context, _: Any, /, x: Value, k: int, axis: int, ascending: bool, sort: bool, return_indices: bool,
    output_indices_dtype: DType | str,
) -> Any:  # fmt: skip
    count = x.shape[axis] if k == -1 else k
    several = c.b.several("topk", x, axis=axis, k=count, largest=not ascending, sorted=sort, dtype=INT32)
    return several if return_indices else several[:1]


@reads("one_hot indices one_hot_vector_size:int axis:int=-1 on_value:any? off_value:any?")
def one_hot(
    c: Context, operation: Any, /, indices: Value, one_hot_vector_size: int, axis: int, on_value: Any, off_value: Any
) -> Value:
    """Returns one-hot rows. An index outside the range gives a row of off values."""
    b, at = c.b, axis % (len(indices.shape) + 1)
    wide = b.expand_dims(cast(b, indices, INT32), axes=(at,))
    line = np.arange(one_hot_vector_size, dtype=np.int32).reshape(
        [-1 if i == at else 1 for i in range(len(indices.shape) + 1)]
    )
    is_on = b.equal(wide, line)
    dtype = operation.results[0][1].dtype or INT32
    on, off = (
        cast(b, v, dtype) if isinstance(v, Value) else b.const(np.array(d, dtype.numpy))
        for v, d in ((on_value, 1), (off_value, 0))
    )
    return b.select(is_on, on, off)

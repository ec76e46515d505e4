"""Moving elements: shapes, slices, pads, gathers."""

from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import FP64, INT32, INT64
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.coreml.known import known_array
from hexane.importers.tflite.registry import Context, reads
from hexane.ops.compose import Builder, cast, limited


def _axis(axis: int, rank: int) -> int:
    found = axis + rank if axis < 0 else axis
    if not 0 <= found < max(rank, 1):
        raise Error(f"got axis {axis}, need one of {rank}")
    return found


@reads("RESHAPE")
def reshape(c: Context) -> Value:
    """Reshapes x. The shape operand overrides the option."""
    if c.has(1) and c.x(1).dtype is INT32 and len(c.x(1).shape) == 1:
        shape = c.ints(1)
    else:
        shape = tuple(int(d) for d in c.o["new_shape"])
        if shape == (0,) and not c.is_complex() and c.x().type.size == 1:
            shape = ()
    x, parts = c.any()
    return c.b.reshape(x, shape=(*_filled(shape, x.type.size // prod(parts)), *parts))


def _filled(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    if shape.count(-1) == 1:
        rest = prod(d for d in shape if d != -1)
        return tuple(size // rest if d == -1 and rest else 0 if d == -1 else d for d in shape)
    return shape


@reads("STABLEHLO_RESHAPE")
def stablehlo_reshape(c: Context) -> Value:
    return c.b.reshape(c.x(0), shape=c.out().shape)


@reads("SQUEEZE")
def squeeze(c: Context) -> Value:
    x, parts = c.any()
    shape = _without(x.shape, parts)
    axes = {_axis(int(a), len(shape)) for a in c.o["squeeze_dims"]} or {i for i, d in enumerate(shape) if d == 1}
    if any(shape[a] != 1 for a in axes):
        raise Error(f"got the axes {sorted(axes)} of {list(shape)}, need those of one element")
    return c.b.reshape(x, shape=(*(d for i, d in enumerate(shape) if i not in axes), *parts))


def _without(shape: tuple[int, ...], parts: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape in the file of a value of `Context.any`."""
    return shape[: len(shape) - len(parts)]


@reads("EXPAND_DIMS")
def expand_dims(c: Context) -> Value:
    (x, parts), (axis,) = c.any(), c.ints(1)
    at = _axis(axis, len(_without(x.shape, parts)) + 1)
    return c.b.reshape(x, shape=(*x.shape[:at], 1, *x.shape[at:]))


@reads("SHAPE")
def shape_of(c: Context) -> Value:
    return c.b.const(np.array(_shape_of(c), c.out().dtype.numpy))


def _shape_of(c: Context) -> tuple[int, ...]:
    x, parts = c.any()
    return _without(x.shape, parts)


@reads("RANK")
def rank_of(c: Context) -> Value:
    return c.b.const(np.array(len(_shape_of(c)), np.int32))


@reads("TRANSPOSE")
def transpose(c: Context) -> Value:
    rank = len(c.x(0).shape)
    return c.b.transpose(c.x(0), perm=[_axis(a, rank) for a in c.ints(1)])


@reads("STABLEHLO_TRANSPOSE")
def stablehlo_transpose(c: Context) -> Value:
    return c.b.transpose(c.x(0), perm=[int(v) for v in c.o["permutation"]])


@reads("PACK")
def pack(c: Context) -> Value:
    parts = [c.x(i) for i in range(len(c.op.inputs))]
    at = _axis(int(c.o["axis"]), len(parts[0].shape) + 1)
    shape = (*parts[0].shape[:at], 1, *parts[0].shape[at:])
    wide = [c.b.reshape(p, shape=shape) for p in parts]
    return c.b.concat(*wide, axis=at) if len(wide) > 1 else wide[0]


@reads("UNPACK")
def unpack(c: Context) -> tuple[Value, ...]:
    x, b = c.x(), c.b
    at = _axis(int(c.o["axis"]), len(x.shape))
    parts = _pieces(c, x, at, [1] * x.shape[at])
    return tuple(b.reshape(p, shape=(*x.shape[:at], *x.shape[at + 1 :])) for p in parts)


def _pieces(c: Context, x: Value, axis: int, sizes: list[int]) -> tuple[Value, ...]:
    if sum(sizes) != x.shape[axis] or min(sizes, default=0) < 0:
        raise Error(f"got pieces of {sizes} for {x.shape[axis]}, need all of it")
    found, start = [], 0
    for size in sizes:
        begin, end = [0] * len(x.shape), list(x.shape)
        begin[axis], end[axis] = start, start + size
        found.append(c.b.slice_by_index(x, begin=begin, end=end))
        start += size
    return tuple(found)


@reads("SPLIT")
def split(c: Context) -> tuple[Value, ...]:
    (axis,), x, count = c.ints(0), c.x(1), int(c.o["num_splits"])
    at = _axis(axis, len(x.shape))
    if count < 1 or x.shape[at] % count:
        raise Error(f"got {count} pieces of {x.shape[at]}, need a divisor")
    return _pieces(c, x, at, [x.shape[at] // count] * count)


@reads("SPLIT_V")
def split_v(c: Context) -> tuple[Value, ...]:
    x, sizes, (axis,) = c.x(0), list(c.ints(1)), c.ints(2)
    at = _axis(axis, len(x.shape))
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = x.shape[at] - sum(sizes) - 1
    return _pieces(c, x, at, sizes)


@reads("SLICE")
def slice_of(c: Context) -> Value:
    x, begin, size = c.x(0), c.ints(1), c.ints(2)
    end = [d if s == -1 else p + s for d, p, s in zip(x.shape, begin, size, strict=True)]
    if any(not 0 <= p <= e <= d for p, e, d in zip(begin, end, x.shape, strict=True)):
        raise Error(f"got {begin} and {size} of {list(x.shape)}, need what lies inside")
    return c.b.slice_by_index(x, begin=begin, end=end)


@reads("STRIDED_SLICE")
def strided_slice(c: Context) -> Value:
    """Slices x with NumPy's bounds. Bit i of a mask refers to entry i of begin, end and strides. A negative stride
    reverses the axis."""
    x, b, o = c.x(0), c.b, c.o
    begins, ends, strides = (c.ints(i) for i in (1, 2, 3))
    index: list[Any] = []
    for i, (p, e, s) in enumerate(zip(begins, ends, strides, strict=True)):
        bit = 1 << i
        if o["ellipsis_mask"] & bit:
            index.append(Ellipsis)
        elif o["new_axis_mask"] & bit:
            index.append(None)
        elif o["shrink_axis_mask"] & bit:
            index.append(p)
        else:
            if s == 0:
                raise Error("got the stride 0, need another")
            last = p + e if o["offset"] else e
            index.append(slice(None if o["begin_mask"] & bit else p, None if o["end_mask"] & bit else last, s))
    return _indexed(c, x, index, b)


def _indexed(c: Context, x: Value, index: list[Any], b: Builder) -> Value:
    consumed = sum(1 for i in index if i is not None and i is not Ellipsis)
    rank = len(x.shape)
    if index.count(Ellipsis) > 1 or consumed > rank:
        raise Error(f"got slices of {consumed} axes of {rank}, need as many")
    if Ellipsis not in index:
        index = [*index, Ellipsis]
    at = index.index(Ellipsis)
    index = [*index[:at], *[slice(None)] * (rank - consumed), *index[at + 1 :]]
    begin: list[int] = []
    end: list[int] = []
    stride: list[int] = []
    reversed_axes, shape = [], []
    axis = 0
    for entry in index:
        if entry is None:
            shape.append(1)
            continue
        extent = x.shape[axis]
        if isinstance(entry, int):
            place = entry + extent if entry < 0 else entry
            if not 0 <= place < extent:
                raise Error(f"got index {entry} of {extent}, need one inside")
            bounds = (place, place + 1, 1)
        else:
            places = range(*entry.indices(extent))
            if entry.step is not None and entry.step < 0 and len(places):
                reversed_axes.append(axis)
                bounds = (places[-1], places[0] + 1, -entry.step)
            else:
                bounds = (places.start, places.stop, abs(places.step)) if len(places) else (0, 0, 1)
            shape.append(len(places))
        for listed, bound in zip((begin, end, stride), bounds, strict=True):
            listed.append(bound)
        axis += 1
    y = b.slice_by_index(x, begin=begin, end=end, stride=stride)
    y = b.reverse(y, axes=tuple(reversed_axes)) if reversed_axes else y
    return y if tuple(shape) == y.shape else b.reshape(y, shape=tuple(shape))


@reads("PAD", "PADV2")
def pad(c: Context) -> Value:
    """Pads x with the third operand of PADV2. Without one, the padding is 0, or the zero point."""
    x, pads = c.x(0), c.known(1).reshape(-1, 2).astype(int)
    value = float(c.grid().zero) if c.is_integer else 0.0
    if c.op.name == "PADV2" and c.has(2):
        given = c.known(2).reshape(-1)
        if given.size != 1:
            raise Error(f"got {given.size} numbers to pad with, need one")
        value = float(given[0])
    if (pads < 0).any():
        raise Error("got negative pads, need 0 or more")
    begin, end = [int(v) for v in pads[:, 0]], [int(v) for v in pads[:, 1]]
    if x.dtype.kind == "bool":
        return c.b.not_equal(c.b.pad(cast(c.b, x, INT32), begin=begin, end=end, value=value), 0)
    return c.b.pad(x, begin=begin, end=end, value=value)


@reads("MIRROR_PAD")
def mirror_pad(c: Context) -> Value:
    """Pads x by reflection. REFLECT omits the edge element, and SYMMETRIC repeats it."""
    y, pads, offset = c.x(0), c.known(1).reshape(-1, 2).astype(int), 0 if c.o["mode"] else 1
    for axis, (before, after) in enumerate(pads):
        extent = y.shape[axis]
        if not 0 <= before <= extent - offset or not 0 <= after <= extent - offset:
            raise Error(f"got pads of {before} and {after} for {extent}, need at most that")
        if before or after:
            places = [*range(before - 1 + offset, offset - 1, -1), *range(extent),
                      *range(extent - 1 - offset, extent - 1 - offset - after, -1)]  # fmt: skip
            y = c.b.gather(y, c.b.const(np.array(places, np.int32)), axis=axis)
    return y


@reads("STABLEHLO_PAD")
def stablehlo_pad(c: Context) -> Value:
    x, value, b = c.x(0), float(c.known(1).reshape(-1)[0]), c.b
    low, high, inside = (
        [int(v) for v in c.o[k]] for k in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    for axis, n in enumerate(inside):
        if n and x.shape[axis] > 1:
            shape = x.shape
            y = b.reshape(x, shape=(*shape[: axis + 1], 1, *shape[axis + 1 :]))
            ends = [0] * len(y.shape)
            ends[axis + 1] = n
            y = b.pad(y, begin=[0] * len(ends), end=ends, value=value)
            y = b.reshape(y, shape=(*shape[:axis], shape[axis] * (n + 1), *shape[axis + 1 :]))
            x = b.slice_by_index(
                y, begin=[0] * len(shape), end=[d - n if i == axis else d for i, d in enumerate(y.shape)]
            )
    return b.pad(x, begin=low, end=high, value=value)


@reads("DILATE")
def dilate(c: Context) -> Value:
    x, by, value, b = c.x(0), c.ints(1), float(c.known(2).reshape(-1)[0]), c.b
    for axis, n in enumerate(by):
        if n < 1:
            raise Error(f"got the dilation {n}, need 1 or more")
        if n > 1 and x.shape[axis] > 1:
            shape = x.shape
            y = b.reshape(x, shape=(*shape[: axis + 1], 1, *shape[axis + 1 :]))
            ends = [0] * len(y.shape)
            ends[axis + 1] = n - 1
            y = b.pad(y, begin=[0] * len(ends), end=ends, value=value)
            y = b.reshape(y, shape=(*shape[:axis], shape[axis] * n, *shape[axis + 1 :]))
            stop = [d - n + 1 if i == axis else d for i, d in enumerate(y.shape)]
            x = b.slice_by_index(y, begin=[0] * len(shape), end=stop)
    return x


@reads("TILE")
def tile(c: Context) -> Value:
    return c.b.tile(c.x(0), reps=c.ints(1))


@reads("BROADCAST_TO")
def broadcast_to(c: Context) -> Value:
    return c.b.broadcast_to(c.x(0), shape=c.ints(1))


@reads("STABLEHLO_BROADCAST_IN_DIM")
def broadcast_in_dim(c: Context) -> Value:
    x, shape = c.x(0), c.out().shape
    dims = [int(d) for d in c.o["broadcast_dimensions"]]
    wide = [1] * len(shape)
    for d, extent in zip(dims, x.shape, strict=True):
        wide[d] = extent
    return c.b.broadcast_to(c.b.reshape(x, shape=wide), shape=shape)


@reads("BROADCAST_ARGS")
def broadcast_args(c: Context) -> Value:
    shape = np.broadcast_shapes(c.ints(0), c.ints(1))
    return c.b.const(np.array(shape, c.out().dtype.numpy))


@reads("REVERSE_V2")
def reverse(c: Context) -> Value:
    x = c.x(0)
    return c.b.reverse(x, axes=tuple(sorted({_axis(a, len(x.shape)) for a in c.ints(1)})))


@reads("REVERSE_SEQUENCE")
def reverse_sequence(c: Context) -> Value:
    o = c.o
    return c.b.reverse_sequence(c.x(0), c.x(1), seq_axis=int(o["seq_dim"]), batch_axis=int(o["batch_dim"]))


@reads("GATHER")
def gather(c: Context) -> Value:
    x, indices, b = c.x(0), c.x(1), c.b
    axis, batch = _axis(int(c.o["axis"]), len(x.shape)), int(c.o["batch_dims"])
    batch = batch + len(indices.shape) if batch < 0 else batch
    if not batch:
        return b.gather(x, indices, axis=axis)
    if batch > axis or x.shape[:batch] != indices.shape[:batch]:
        raise Error(f"got {batch} shared axes of {list(x.shape)} and {list(indices.shape)}, need equal ones in front")
    count = prod(x.shape[:batch])
    perm = [*range(batch), axis, *(i for i in range(batch, len(x.shape)) if i != axis)]
    rows = b.reshape(b.transpose(x, perm=perm), shape=(count * x.shape[axis], *(x.shape[i] for i in perm[batch + 1 :])))
    offset = (np.arange(count) * x.shape[axis]).reshape(*x.shape[:batch], *[1] * (len(indices.shape) - batch))
    y = b.gather(rows, b.add(cast(b, indices, INT64), b.const(offset.astype(np.int64))), axis=0)
    inner = len(indices.shape) - batch
    lead = axis - batch
    order = [*range(batch), *range(batch + inner, batch + inner + lead), *range(batch, batch + inner),
             *range(batch + inner + lead, len(y.shape))]  # fmt: skip
    return b.transpose(y, perm=order)


@reads("GATHER_ND")
def gather_nd(c: Context) -> Value:
    return c.b.gather_nd(c.x(0), c.x(1), batch_dims=0)


@reads("SCATTER_ND")
def scatter_nd(c: Context) -> Value:
    """Scatters updates, and adds updates of the same index."""
    b, indices, updates, shape = c.b, c.x(0), c.x(1), c.ints(2)
    limited(prod(shape), updates.dtype.numpy)
    zeros = b.const(np.zeros(shape, updates.dtype.numpy))
    return b.scatter_nd(zeros, cast(b, indices, INT64), updates, mode="add")


@reads("SPARSE_TO_DENSE")
def sparse_to_dense(c: Context) -> Value:
    b, indices, shape, values = c.b, c.x(0), c.ints(1), c.x(2)
    fill = c.known(3).reshape(-1)[0]
    limited(prod(shape), values.dtype.numpy)
    rank = len(shape)
    width = rank if len(indices.shape) == 2 else 1
    rows = b.reshape(indices, shape=(indices.type.size // max(width, 1), width))
    updates = b.broadcast_to(values, shape=(rows.shape[0],)) if len(values.shape) == 0 else values
    return b.scatter_nd(b.const(np.full(shape, fill, values.dtype.numpy)), cast(b, rows, INT64), updates, mode="update")


@reads("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(c: Context) -> Value:
    """Writes an update into x. The start is clamped so that the update lies inside x."""
    x, update, b = c.x(0), c.x(1), c.b
    most = np.array([d - u for d, u in zip(x.shape, update.shape, strict=True)], np.int64)
    if (most < 0).any():
        raise Error(f"got an update {list(update.shape)} of {list(x.shape)}, need one that fits")
    start = b.minimum(b.maximum(cast(b, c.x(2), INT64), 0), b.const(most))
    grid = np.stack(np.meshgrid(*(np.arange(d) for d in update.shape), indexing="ij"), axis=-1).reshape(-1, len(most))
    places = b.add(b.const(grid.astype(np.int64)), b.reshape(start, shape=(1, len(most))))
    flat = b.reshape(update, shape=(update.type.size,))
    return b.scatter_nd(x, places, flat, mode="update")


@reads("ONE_HOT")
def one_hot(c: Context) -> Value:
    """Returns one-hot rows. An index outside 0..depth - 1 gives a row of off values."""
    b, indices, (depth,) = c.b, c.x(0), c.ints(1)
    at = _axis(int(c.o["axis"]), len(indices.shape) + 1)
    shape = (*indices.shape[:at], 1, *indices.shape[at:])
    row = np.arange(depth, dtype=indices.dtype.numpy).reshape(-1, *[1] * (len(indices.shape) - at))
    hit = b.equal(b.reshape(indices, shape=shape), b.const(row))
    on, off = c.x(2), c.x(3)
    return b.select(hit, on, off)


@reads("FILL")
def fill(c: Context) -> Value:
    return c.b.broadcast_to(c.x(1), shape=c.ints(0))


@reads("RANGE")
def arange(c: Context) -> Value:
    start, limit, delta = (known_array(c.x(i)).reshape(-1)[0] for i in range(3))
    if not delta or not np.isfinite([start, limit, delta]).all():
        raise Error("got the step 0, need another")
    count = max(int(np.ceil((float(limit) - float(start)) / float(delta))), 0)
    limited(count, c.out().dtype.numpy)
    dtype = c.out().dtype.numpy
    return c.b.const((start + np.arange(count).astype(dtype) * delta).astype(dtype))


@reads("SELECT", "SELECT_V2", "STABLEHLO_SELECT")
def select(c: Context) -> Value:
    condition, x, y, b = c.x(0), c.x(1), c.x(2), c.b
    if c.op.name == "SELECT" and len(condition.shape) == 1 and len(x.shape) > 1:  # the condition selects rows
        condition = b.reshape(condition, shape=(*condition.shape, *[1] * (len(x.shape) - 1)))
    return b.select(condition, x, y)


@reads("MATRIX_DIAG")
def matrix_diag(c: Context) -> Value:
    x, b = c.x(), c.b
    n = x.shape[-1]
    zero = b.const(np.zeros((), x.dtype.numpy))
    return b.select(b.const(np.eye(n, dtype=bool)), b.reshape(x, shape=(*x.shape, 1)), zero)


@reads("MATRIX_SET_DIAG")
def matrix_set_diag(c: Context) -> Value:
    x, d, b = c.x(0), c.x(1), c.b
    rows, columns = x.shape[-2:]
    n = d.shape[-1]
    tall = b.pad(d, begin=[0] * len(d.shape), end=[*[0] * (len(d.shape) - 1), rows - n])
    return b.select(b.const(np.eye(rows, columns, dtype=bool)), b.reshape(tall, shape=(*tall.shape, 1)), x)


@reads("BUCKETIZE")
def bucketize(c: Context) -> Value:
    x, b = c.x(), c.b
    edges = np.asarray(c.o["boundaries"], np.float32)
    wide = b.reshape(x, shape=(*x.shape, 1))
    edge = b.const(edges if x.dtype.kind == "float" else edges.astype(np.float64))
    compared = b.greater_equal(wide if x.dtype.kind == "float" else cast(b, wide, FP64), edge)
    return b.reduce_sum(cast(b, compared, INT32), axes=(len(x.shape),), keep_dims=False)


def _segments(c: Context, count: int, mode: str, first: Any) -> Value:
    """Reduces segments. Rows with numbers outside 0..count - 1 are put into an additional segment, which is dropped."""
    x, ids, b = c.x(0), c.x(1), c.b
    shape = (count + 1, *x.shape[len(ids.shape) :])
    limited(prod(shape), x.dtype.numpy)
    rows = b.reshape(x, shape=(ids.type.size, *shape[1:]))
    places = b.reshape(cast(b, ids, INT64), shape=(ids.type.size, 1))
    inside = b.logical_and(b.greater_equal(places, 0), b.less(places, count))
    places = b.select(inside, places, b.const(np.int64(count)))
    y = b.scatter_nd(b.const(np.full(shape, first, x.dtype.numpy)), places, rows, mode=mode)
    return b.slice_by_index(y, begin=[0] * len(shape), end=[count, *shape[1:]])


@reads("SEGMENT_SUM")
def segment_sum(c: Context) -> Value:
    ids = c.known(1)
    return _segments(c, int(ids.max()) + 1 if ids.size else 0, "add", 0)


@reads("UNSORTED_SEGMENT_SUM", "UNSORTED_SEGMENT_PROD", "UNSORTED_SEGMENT_MAX", "UNSORTED_SEGMENT_MIN")
def unsorted_segment(c: Context) -> Value:
    kind = c.op.name.removeprefix("UNSORTED_SEGMENT_").lower()
    dtype: Any = c.x(0).dtype.numpy
    info: Any = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
    (count,) = c.ints(2)
    first = {"sum": 0, "prod": 1, "max": info.min, "min": info.max}[kind]
    return _segments(c, count, {"sum": "add", "prod": "mul"}.get(kind, kind), first)


@reads("WHERE")
def where(c: Context) -> Value:
    """Returns the indices of true elements, one row for each. A constant gives a constant; otherwise the number of rows
    is known at run time."""
    x, b = c.x(), c.b
    if x.node.op == "const":
        return b.const(np.argwhere(known_array(x)).astype(c.out().dtype.numpy))
    places, _ = b.several("non_zero", x)
    return cast(b, b.transpose(places, perm=(1, 0)), c.out().dtype)


@reads("UNIQUE")
def unique(c: Context) -> tuple[Value, Value]:
    """Returns the distinct numbers in order of their first occurrence, and for each element the index of its number."""
    x, b = c.x(), c.b
    if x.node.op == "const":
        values, first, places = np.unique(known_array(x), return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.argsort(order)
        return b.const(values[order]), b.const(rank[places.reshape(-1)].astype(c.out(1).dtype.numpy))
    found, _, inverse, _, _ = b.several("unique", x, axis=0, sorted=False)
    return found, cast(b, inverse, c.out(1).dtype)

"""Gathers, scatters, sorts, and updates of slices."""

import numpy as np

from hexane.coreai.table import SCATTER, STEP_OF_SCATTER, by_number
from hexane.dtypes import INT32, INT64
from hexane.graph import Value
from hexane.importers.coreai.operations import Operation
from hexane.importers.coreai.registry import Complex, Context, Found, handles

OF_SCATTER = by_number(SCATTER)
OF_STEP = {step: mode for mode, step in STEP_OF_SCATTER.items()}


def _indices(c: Context, index: int) -> Value:
    """Returns indices as signed integers. A negative index counts from the end."""
    indices = c.value(index)
    if indices.dtype.kind == "uint":
        return c.b.cast(indices, dtype=INT64 if indices.dtype.bits > 32 else INT32)
    return indices if indices.dtype in (INT32, INT64) else c.b.cast(indices, dtype=INT32)


@handles("primitive.gather_nd")
def _gather_nd(c: Context) -> Found:
    x, indices = c.operands[0], _indices(c, 1)
    if isinstance(x, Complex):
        return Complex(c.b.gather_nd(x.real, indices), c.b.gather_nd(x.imaginary, indices))
    return c.b.gather_nd(c.value(0), indices)


@handles("primitive.non_zero")
def _non_zero(c: Context) -> Found:
    """Returns one row for each nonzero element; the number of rows is known at run time."""
    return c.b.transpose(c.b.several("non_zero", c.value(0))[0], perm=(1, 0))


@handles("primitive.gather_along_axis")
def _gather_along_axis(c: Context) -> Found:
    return c.b.gather_along_axis(c.value(0), _indices(c, 1), axis=c.integer(2))


@handles("primitive.scatter_nd")
def _scatter_nd(c: Context) -> Found:
    return c.b.scatter_nd(c.value(0), _indices(c, 1), c.value(2), mode=_mode(c, c.operation))


def _mode(c: Context, operation: Operation) -> str:
    """Returns the mode of a scatter, by the body's operation on the old element (its first argument) and the new
    one."""
    (body,) = operation.bodies
    inner = [o for o in body.operations if not o.name.startswith(("dataflow.yield", "primitive.cast"))]
    last = body.operations[-1]
    if not inner and last.operands and last.operands[0] is body.arguments[-1]:
        return "update"
    name = inner[0].name.rpartition("_v")[0].removeprefix("primitive.").removeprefix("broadcasting_") if inner else ""
    if len(inner) != 1 or name not in OF_STEP:
        c.fail(f"got the step {', '.join(o.name for o in inner) or 'none'}, need one of {', '.join(OF_STEP)}")
    return OF_STEP[name]


@handles("primitive.scatter_along_axis")
def _scatter_along_axis(c: Context) -> Found:
    mode = OF_SCATTER.get(c.setting(), "")
    if mode not in ("update", "add", "mul", "max", "min"):
        c.fail(f"got the mode {mode or c.setting()}, which Hexane does not have")
    return c.b.scatter_along_axis(c.value(0), _indices(c, 1), c.value(2), axis=c.integer(3), mode=mode)


@handles("primitive.argsort")
def _argsort(c: Context) -> Found:
    return c.b.argsort(c.value(0), axis=c.integer(1), descending=bool(c.array(2).item()))


@handles("sort")
def _sort(c: Context) -> Found:
    x, axis = c.value(0), c.integer(1)
    order = c.b.argsort(x, axis=axis, descending=bool(c.array(2).item()))
    ordered = c.b.gather_along_axis(x, order, axis=axis)
    return (ordered, order) if len(c.results) == 2 else ordered


@handles("primitive.slice_update")
def _slice_update(c: Context) -> Found:
    """Returns x with one slice replaced: in place for a state, by a concatenation if the bounds are constants and cut
    one axis without a stride, else by a scatter."""
    x, update = c.value(0), c.value(4)
    starts, ends, strides = (c.value(i) for i in (1, 2, 3))
    if (written := _in_place(c, x, update)) is not None:
        return written
    if all(v.node.op == "const" for v in (starts, ends, strides)):
        return _replaced(c, x, update)
    if strides.node.op != "const" or not (c.array(3) == 1).all():
        c.fail("got strides that are computed at run time, need constants of 1")
    return _moved(c, x, starts, update)


def _in_place(c: Context, x: Value, update: Value) -> Value | None:
    """Returns the state after an in-place write of the slice, or None if the write is not in place, if the
    slice has strides, or if it cuts several axes."""
    handle = c.translator.in_place.get(c.operation.offset)
    if handle is None or x != c.translator.states.get(handle) or not (c.array(3) == 1).all():
        return None
    if update.type.rank != x.type.rank or not update.type.size or update.dtype is not x.dtype:
        return None
    cut = [i for i, (n, d) in enumerate(zip(update.shape, x.shape, strict=True)) if n != d]
    if len(cut) > 1:
        return None
    axis = cut[0] if cut else 0
    if all(c.value(i).node.op == "const" for i in (1, 2)):
        bounds = zip(c.integers(1), c.integers(2), x.shape, strict=True)
        ranges = [range(*slice(start, end).indices(n)) for start, end, n in bounds]
        if tuple(len(r) for r in ranges) != update.shape:
            return None
        place = c.b.const(np.int32(ranges[axis].start))
    else:
        first = c.b.cast(c.value(1), dtype=INT32)
        at = c.b.reshape(c.b.slice_by_size(first, begin=(axis,), size=(1,)), shape=())
        place = c.b.select(c.b.less(at, 0), c.b.add(at, x.shape[axis]), at)
    written = c.b.write_state(x, update, place, axis=axis)
    c.translator.states[handle] = written
    return written


def _replaced(c: Context, x: Value, update: Value) -> Value:
    ranges = [
        range(*slice(*bounds).indices(n))
        for *bounds, n in zip(*(c.integers(i) for i in (1, 2, 3)), x.shape, strict=True)
    ]
    shape = tuple(len(r) for r in ranges)
    if 0 in shape:
        return x
    update = update if update.shape == shape else c.b.broadcast_to(update, shape=shape)
    if shape == x.shape and all(r.step == 1 for r in ranges):
        return update
    whole = [i for i, r in enumerate(ranges) if r != range(x.shape[i])]
    if len(whole) == 1 and ranges[whole[0]].step == 1:
        return _between(c, x, update, whole[0], ranges[whole[0]])
    places = np.stack(np.meshgrid(*[np.array(r) for r in ranges], indexing="ij"), axis=-1).astype(np.int32)
    return c.b.scatter_nd(x, c.b.const(places), update)


def _between(c: Context, x: Value, update: Value, axis: int, place: range) -> Value:
    """x[.., :first], update, x[.., last:]"""
    parts = []
    for start, stop in ((0, place.start), (place.stop, x.shape[axis])):
        if start < stop:
            begin, size = [0] * x.type.rank, list(x.shape)
            begin[axis], size[axis] = start, stop - start
            parts.append(c.b.slice_by_size(x, begin=begin, size=size))
        if start == 0:
            parts.append(update)
    return c.b.concat(*parts, axis=axis)


def _moved(c: Context, x: Value, starts: Value, update: Value) -> Value:
    """Returns x with the update written at a computed index. One scatter writes along all axes; its indices count from
    the computed index."""
    b = c.b
    extents = b.const(np.array(x.shape, np.int32))
    first = b.cast(starts, dtype=INT32)
    first = b.select(b.less(first, b.const(np.int32(0))), b.add(first, extents), first)
    offsets = np.stack(np.meshgrid(*[np.arange(n) for n in update.shape], indexing="ij"), axis=-1).astype(np.int32)
    return b.scatter_nd(x, b.add(b.const(offsets), first), update)

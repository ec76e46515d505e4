"""Views, slices and concatenations. The arithmetic of shapes is folded at import."""

import numpy as np

from hexane.coreai.table import PADDING, by_number
from hexane.dtypes import DTYPES, INT32
from hexane.graph import Value
from hexane.importers.coreai.attributes import Tensor
from hexane.importers.coreai.encoded import is_turned
from hexane.importers.coreai.numbers import DTYPE_OF
from hexane.importers.coreai.registry import Complex, Context, Found, Item, handles
from hexane.ops import OPS, apply

OF_PADDING = by_number(PADDING)


def each(c: Context, change: object) -> Found:
    """Applies a function to a real tensor, or to both parts of a complex one."""
    assert callable(change)
    x = c.operands[0]
    if isinstance(x, Complex):
        return Complex(change(x.real), change(x.imaginary))
    item: Item = change(c.value(0))
    return item


@handles("primitive.constant")
def _constant(c: Context) -> Found:
    return c.translator.constant(c.operation, c.b.sources)


@handles("primitive.cast")
def _cast(c: Context) -> Found:
    kind = c.results[0].type
    if not isinstance(kind, Tensor) or kind.element not in DTYPE_OF:
        c.fail(f"got a cast to {kind}, need a type of real numbers")
    to, x = DTYPES[DTYPE_OF[kind.element]], c.value(0)
    if to.kind == "bool" and x.dtype.kind != "bool":
        return c.b.not_equal(x, c.b.const(np.zeros((), x.dtype.numpy)))
    return x if x.dtype is to else c.b.cast(x, dtype=to)


@handles("primitive.reshape")
def _reshape(c: Context) -> Found:
    shape = c.array(1).astype(np.int64).ravel().tolist()
    # In an unsigned shape, the dtype's largest number stands for -1: this extent follows from the other extents.
    shape = [-1 if n in (-1, 0xFFFFFFFF, 0xFFFF, 0xFF) else n for n in shape]
    return each(c, lambda x: c.b.reshape(x, shape=shape))


@handles("primitive.transpose")
def _transpose(c: Context) -> Found:
    """Returns a transpose. The transpose of a constant matrix is folded unless only products read it."""
    transposed = apply(OPS["transpose"], [c.value(0)], {"perm": c.integers(1)}, c.b.sources)[0] if _is_real(c) else None
    if transposed is not None and is_turned(transposed.node):
        return transposed
    return each(c, lambda x: c.b.transpose(x, perm=c.integers(1)))


def _is_real(c: Context) -> bool:
    return bool(c.operands) and isinstance(c.operands[0], Value)


@handles("primitive.expand_dims")
def _expand_dims(c: Context) -> Found:
    return each(c, lambda x: c.b.expand_dims(x, axes=c.integers(1)) if c.integers(1) else x)


@handles("primitive.shrink_dims")
def _shrink_dims(c: Context) -> Found:
    return each(c, lambda x: c.b.squeeze(x, axes=c.integers(1)) if c.integers(1) else x)


@handles("primitive.concat")
def _concat(c: Context) -> Found:
    axis, rest = c.integer(0), c.operands[1:]
    if any(isinstance(item, Complex) for item in rest):
        parts = [item for item in rest if isinstance(item, Complex)]
        if len(parts) != len(rest):
            c.fail("got real and complex tensors to join, need one kind")
        return Complex(
            *(c.b.concat(*side, axis=axis) for side in zip(*((p.real, p.imaginary) for p in parts), strict=True))
        )
    return c.b.concat(*[_at_least_1d(c, c.value(i + 1)) for i in range(len(rest))], axis=axis)


def _at_least_1d(c: Context, x: Value) -> Value:
    return x if x.type.rank else c.b.reshape(x, shape=(1,))


@handles("primitive.split")
def _split(c: Context) -> Found:
    x, sizes, axis = c.value(0), c.integers(1), c.integer(2)
    if c.array(1).ndim == 0:
        return c.b.several("split", x, axis=axis, num_splits=sizes[0])
    return c.b.several("split", x, axis=axis, split_sizes=sizes)


@handles("primitive.slice")
def _slice(c: Context) -> Found:
    if all(c.value(i).node.op == "const" for i in (1, 2, 3)):
        return each(c, lambda x: _sliced(c, x))
    return _moved(c)


def _moved(c: Context) -> Value:
    """Returns a slice of constant size at a computed index."""
    x, starts, kind = c.value(0), c.value(1), c.results[0].type
    if not isinstance(kind, Tensor) or None in kind.shape or (c.array(3) != 1).any():
        c.fail("got a slice whose size is computed at run time, need a constant one")
    for axis, (extent, size) in enumerate(zip(x.shape, kind.shape, strict=True)):
        if size == extent or size is None:
            continue
        first = c.b.slice_by_size(c.b.cast(starts, dtype=INT32), begin=(axis,), size=(1,))
        first = c.b.select(c.b.less(first, 0), c.b.add(first, c.b.const(np.int32(extent))), first)
        x = c.b.gather(x, c.b.add(first, c.b.const(np.arange(size, dtype=np.int32))), axis=axis)
    return x


def _sliced(c: Context, x: Value) -> Value:
    begin, stop, stride = (c.integers(i) for i in (1, 2, 3))
    # A slice of negative stride is reversed first, then cut with a positive stride.
    ranges = [
        range(*slice(b, e, s).indices(n))
        for b, e, s, n in zip(begin, _ends(stop, stride), stride, x.shape, strict=True)
    ]
    backwards = [i for i, s in enumerate(stride) if s < 0]
    if backwards:
        x = c.b.reverse(x, axes=backwards)
    bounds = []
    for i, (r, extent) in enumerate(zip(ranges, x.shape, strict=True)):
        first, step = (extent - 1 - r.start, -r.step) if i in backwards else (r.start, r.step)
        bounds.append((first, min(first + len(r) * step, extent), step) if len(r) else (0, 0, 1))
    if not bounds:
        return x
    starts, ends, steps = zip(*bounds, strict=True)
    return c.b.slice_by_index(x, begin=starts, end=ends, stride=steps)


def _ends(stop: tuple[int, ...], stride: tuple[int, ...]) -> list[int | None]:
    """Returns the ends of slices. With a negative stride, the smallest number means the slice includes the first
    element."""
    return [None if s < 0 and e <= -(1 << 31) else e for e, s in zip(stop, stride, strict=True)]


@handles("primitive.reverse")
def _reverse(c: Context) -> Found:
    return c.b.reverse(c.value(0), axes=c.integers(1))


@handles("primitive.pad")
def _pad(c: Context) -> Found:
    sizes, mode = c.integers(1), c.setting()
    if mode not in OF_PADDING:
        c.fail("got the mode symmetric, which Hexane does not have")
    x = c.value(0)
    value = float(c.array(2).item()) if mode == 1 else 0.0
    return c.b.pad(x, begin=sizes[::2], end=sizes[1::2], mode=OF_PADDING[mode], value=value)


@handles("primitive.broadcast_to")
def _broadcast_to(c: Context) -> Found:
    return each(c, lambda x: _broadcast(c, x, c.integers(1)))


@handles("primitive.broadcast_in_dims")
def _broadcast_in_dims(c: Context) -> Found:
    sizes = dict(zip(c.integers(2), c.integers(1), strict=True))

    def change(x: Value) -> Value:
        rank = x.type.rank
        wanted = {axis % rank if rank else axis: size for axis, size in sizes.items()}
        return _broadcast(c, x, tuple([wanted.get(i, n) for i, n in enumerate(x.shape)]))

    return each(c, change)


def _broadcast(c: Context, x: Value, shape: tuple[int, ...]) -> Value:
    return x if x.shape == shape else c.b.broadcast_to(x, shape=shape)


@handles("primitive.broadcast_shapes")
def _broadcast_shapes(c: Context) -> Found:
    shape = np.broadcast_shapes(*[c.integers(i) if c.array(i).size else () for i in range(len(c.operands))])
    return c.b.const(np.array(shape, np.uint32))


@handles("primitive.get_shape")
def _get_shape(c: Context) -> Found:
    x = c.operands[0]
    shape = x.real.shape if isinstance(x, Complex) else c.value(0).shape
    return c.b.const(np.array(shape, np.uint32))


@handles("primitive.range")
def _range(c: Context) -> Found:
    start, stop, step = (c.array(i).ravel()[0] for i in range(3))
    if step == 0 or not all(np.isfinite([float(start), float(stop), float(step)])):
        c.fail(f"got a range from {start} to {stop} in steps of {step}, need finite numbers and a step")
    if abs(float(stop) - float(start)) / abs(float(step)) > 1 << 26:
        c.fail(f"got a range from {start} to {stop} in steps of {step}, need fewer numbers")
    return c.b.const(np.arange(start, stop, step).astype(c.value(0).dtype.numpy))


@handles("tile")
def _tile(c: Context) -> Found:
    x, reps = c.value(0), c.integers(1)
    if len(reps) > x.type.rank:
        x = c.b.reshape(x, shape=(1,) * (len(reps) - x.type.rank) + x.shape)
    return c.b.tile(x, reps=(1,) * (x.type.rank - len(reps)) + reps)

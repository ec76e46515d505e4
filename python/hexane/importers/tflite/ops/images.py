"""Resizing of images, and moves of blocks of pixels to and from channels (depth) or images (batch)."""

import numpy as np

from hexane.dtypes import FP32, INT64
from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.importers.tflite.registry import INT8, INT16, UINT8, Context, reads
from hexane.ops.compose import Builder, cast
from hexane.system.limits import MAX_GROWTH_BYTES

MOST_PLACES = MAX_GROWTH_BYTES // 8  # rows or columns of a result; each needs a few constants


def _sizes(c: Context) -> tuple[Value, tuple[int, int], bool, bool]:
    x = c.x(0)
    size = c.ints(1)
    if len(x.shape) != 4 or len(size) != 2 or min(size) < 1 or 0 in x.shape:
        raise Error(f"got x {list(x.shape)} for {size}, need NHWC and a height and a width")
    if max(size) > MOST_PLACES:
        raise Error(f"got a height and a width of {list(size)}, need at most {MOST_PLACES} each")
    return x, (size[0], size[1]), bool(c.o["align_corners"]), bool(c.o["half_pixel_centers"])


def _scale(extent: int, out: int, align: bool) -> np.float32:
    if align and out > 1:
        return np.float32(extent - 1) / np.float32(out - 1)
    return np.float32(extent) / np.float32(out)


@reads("RESIZE_NEAREST_NEIGHBOR")
def resize_nearest_neighbor(c: Context) -> Value:
    x, sizes, align, half = _sizes(c)
    for axis, out in enumerate(sizes, 1):
        extent = x.shape[axis]
        places = (np.arange(out).astype(np.float32) + np.float32(0.5 if half else 0)) * _scale(extent, out, align)
        index = np.floor(places + np.float32(0.5)) if align else np.floor(places)
        index = np.clip(index, 0, extent - 1).astype(np.int32)
        x = c.b.gather(x, c.b.const(index), axis=axis)
    return x


@reads("RESIZE_BILINEAR")
def resize_bilinear(c: Context) -> Value:
    x, sizes, align, half = _sizes(c)
    b = c.b
    if x.dtype in (INT8, INT16):
        y = cast(b, x, INT64)
        for axis, out in enumerate(sizes, 1):
            low, high, part = _integer_places(x.shape[axis], out, align, half)
            shape = (-1, 1, 1) if axis == 1 else (-1, 1)
            first, second = (b.gather(y, b.const(i), axis=axis) for i in (low, high))
            weight = part.reshape(shape)
            y = b.add(b.mul(first, b.const(1024 - weight)), b.mul(second, b.const(weight)))
        nudged = b.select(b.greater(y, 0), b.add(y, 1 << 19), b.sub(y, 1 << 19))
        return cast(b, b.real_div(nudged, 1 << 20), x.dtype)
    y = cast(b, x, FP32)
    if x.dtype is UINT8:
        return _of_bytes(b, y, sizes, align, half)
    for axis, out in enumerate(sizes, 1):
        y = _along(b, y, axis, out, align, half)
    return cast(b, y, x.dtype)


def _of_bytes(b: Builder, x: Value, sizes: tuple[int, int], align: bool, half: bool) -> Value:
    """Resizes bytes in floats, with the summation order of the reference kernel. Halves are rounded up."""
    (y0, y1, dy), (x0, x1, dx) = (_places(x.shape[1 + i], sizes[i], align, half) for i in (0, 1))
    down, across = dy.reshape(-1, 1, 1), dx.reshape(-1, 1)
    total: Value | None = None
    for column, factor in ((x0, 1 - across), (x1, across)):
        for row, part in ((y0, 1 - down), (y1, down)):
            corner = b.gather(b.gather(x, b.const(row), axis=1), b.const(column), axis=2)
            term = b.mul(b.mul(corner, b.const(part)), b.const(factor))
            total = term if total is None else b.add(total, term)
    assert total is not None
    return b.cast(b.add(total, 0.5), dtype=UINT8)


def _places(extent: int, out: int, align: bool, half: bool) -> tuple[Array, Array, Array]:
    """Returns the two neighbours of each output, and the weight of the second in fp32."""
    scale, i = _scale(extent, out, align), np.arange(out).astype(np.float32)
    places = (i + np.float32(0.5)) * scale - np.float32(0.5) if half else i * scale
    low = np.minimum(np.maximum(np.floor(places), 0), extent - 1)
    high = np.maximum(np.minimum(np.ceil(places), extent - 1), 0)
    return low.astype(np.int32), high.astype(np.int32), (places - low).astype(np.float32)


def _along(b: Builder, x: Value, axis: int, out: int, align: bool, half: bool) -> Value:
    low, high, part = _places(x.shape[axis], out, align, half)
    weight = part.reshape((-1, 1, 1) if axis == 1 else (-1, 1))
    first, second = (b.gather(x, b.const(v), axis=axis) for v in (low, high))
    return b.add(b.mul(first, b.const(1 - weight)), b.mul(second, b.const(weight)))


def _integer_places(extent: int, out: int, align: bool, half: bool) -> tuple[Array, Array, Array]:
    """Returns the two neighbours of each output, and the weight of the second in 10 bits."""
    if align and out > 1:
        scale = (1024 * (extent - 1) + (out - 1) // 2) // (out - 1)
    else:
        scale = (1024 * extent + out // 2) // out
    i = np.arange(out, dtype=np.int64)
    place = i * scale + (scale // 2 - 512 if half else 0)

    def cut(v: Array) -> Array:
        return np.asarray(np.sign(v) * (np.abs(v) >> 10))

    low = np.maximum(cut(place), 0)
    high = np.minimum(cut(place + 1023), extent - 1)
    low = np.minimum(low, extent - 1)
    return low.astype(np.int32), np.maximum(high, 0).astype(np.int32), place - 1024 * low


@reads("DEPTH_TO_SPACE")
def depth_to_space(c: Context) -> Value:
    x, r, b = c.x(), int(c.o["block_size"]), c.b
    n, h, w, channels = x.shape
    if r < 1 or channels % (r * r):
        raise Error(f"got blocks of {r} for {channels} channels, need a divisor")
    rest = channels // (r * r)
    y = b.transpose(b.reshape(x, shape=(n, h, w, r, r, rest)), perm=(0, 1, 3, 2, 4, 5))
    return b.reshape(y, shape=(n, h * r, w * r, rest))


@reads("SPACE_TO_DEPTH")
def space_to_depth(c: Context) -> Value:
    x, r, b = c.x(), int(c.o["block_size"]), c.b
    n, h, w, channels = x.shape
    if r < 1 or h % r or w % r:
        raise Error(f"got blocks of {r} for {h} x {w}, need a divisor")
    y = b.transpose(b.reshape(x, shape=(n, h // r, r, w // r, r, channels)), perm=(0, 1, 3, 2, 4, 5))
    return b.reshape(y, shape=(n, h // r, w // r, r * r * channels))


@reads("SPACE_TO_BATCH_ND")
def space_to_batch_nd(c: Context) -> Value:
    x, b, block = c.x(0), c.b, c.ints(1)
    pads = c.known(2).reshape(-1, 2).astype(int)
    spatial = len(block)
    rank = len(x.shape)
    value = float(c.grid().zero) if c.is_integer else 0.0
    rest = [0] * (rank - 1 - spatial)
    padded = b.pad(x, begin=[0, *pads[:, 0], *rest], end=[0, *pads[:, 1], *rest], value=value)
    n, extents, last = padded.shape[0], padded.shape[1 : 1 + spatial], padded.shape[1 + spatial :]
    if any(s < 1 or e % s for s, e in zip(block, extents, strict=True)):
        raise Error(f"got blocks of {block} for {extents}, need divisors")
    split = [n, *(v for e, s in zip(extents, block, strict=True) for v in (e // s, s)), *last]
    perm = [*(2 + 2 * i for i in range(spatial)), 0, *(1 + 2 * i for i in range(spatial)),
            *range(1 + 2 * spatial, len(split))]  # fmt: skip
    y = b.transpose(b.reshape(padded, shape=split), perm=perm)
    count = n * int(np.prod(block))
    return b.reshape(y, shape=(count, *(e // s for e, s in zip(extents, block, strict=True)), *last))


@reads("BATCH_TO_SPACE_ND")
def batch_to_space_nd(c: Context) -> Value:
    x, b, block = c.x(0), c.b, c.ints(1)
    crops = c.known(2).reshape(-1, 2).astype(int)
    spatial, total = len(block), int(np.prod(block))
    if total < 1 or x.shape[0] % total:
        raise Error(f"got blocks of {block} for {x.shape[0]} images, need a divisor")
    n, extents, last = x.shape[0] // total, x.shape[1 : 1 + spatial], x.shape[1 + spatial :]
    perm = [spatial, *(v for i in range(spatial) for v in (spatial + 1 + i, i)),
            *range(1 + 2 * spatial, 1 + 2 * spatial + len(last))]  # fmt: skip
    y = b.transpose(b.reshape(x, shape=(*block, n, *extents, *last)), perm=perm)
    wide = [e * s for e, s in zip(extents, block, strict=True)]
    y = b.reshape(y, shape=(n, *wide, *last))
    begin = [0, *crops[:, 0], *[0] * len(last)]
    end = [n, *(w - e for w, e in zip(wide, crops[:, 1], strict=True)), *last]
    return b.slice_by_index(y, begin=[int(v) for v in begin], end=[int(v) for v in end])

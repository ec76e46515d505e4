"""Ops that put elements elsewhere: sequences turned around, windows added up, poolings undone, caches written."""

from math import prod

import numpy as np

from hexane.dtypes import BOOL, INT64
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.onnx.handlers.arithmetic import cast
from hexane.importers.onnx.handlers.constants import limited
from hexane.importers.onnx.node import Builder, OnnxNode, Result, axis_of


def reverse_sequence(b: Builder, n: OnnxNode) -> Result:
    """The first `length` steps of each sequence turned around."""
    x, lengths = n.value(0), n.value(1)
    time, batch = n.attrs["time_axis"], n.attrs["batch_axis"]
    if {time, batch} != {0, 1} or len(x.shape) < 2 or lengths.shape != (x.shape[batch],):
        raise Error(f"got time_axis {time}, batch_axis {batch}, x {x.shape} and lengths {lengths.shape}")
    rest = (1,) * (len(x.shape) - 2)
    limited(x.shape[time], np.dtype(np.int64))
    step = np.arange(x.shape[time]).reshape((-1, 1) if time == 0 else (1, -1))
    steps = b.const(step.reshape(*step.shape, *rest))
    length = b.reshape(cast(b, lengths, INT64), shape=(*((1, -1) if time == 0 else (-1, 1)), *rest))
    at = b.select(b.less(steps, length), b.sub(b.sub(length, 1), steps), steps)
    return b.gather_along_axis(x, b.broadcast_to(at, shape=x.shape), axis=time)


def tensor_scatter(b: Builder, n: OnnxNode) -> Result:
    """The update written into each item of the cache from its own position on, around the end where circular."""
    cache, update, positions = n.value(0), n.value(1), n.optional(2)
    axis, mode = axis_of(n.attrs["axis"], len(cache.shape)), n.attrs["mode"]
    if axis == 0 or mode not in ("linear", "circular"):
        raise Error(f"got axis {axis} and mode {mode!r}, need an axis behind the batch, linear or circular")
    shape = tuple(1 if i == axis else d for i, d in enumerate(update.shape))
    if len(update.shape) != len(cache.shape) or positions is None or positions.shape != cache.shape[:1]:
        raise Error(f"got the cache {cache.shape} and the update {update.shape}, need equal ranks and positions")
    limited(update.shape[axis], np.dtype(np.int64))
    steps = np.arange(update.shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    at = b.add(b.reshape(cast(b, positions, INT64), shape=(-1, *[1] * (len(shape) - 1))), b.const(steps))
    if mode == "circular":
        at = b.mod(at, cache.shape[axis])
    return b.scatter_along_axis(cache, b.broadcast_to(at, shape=update.shape), update, axis=axis, mode="update")


def col2im(b: Builder, n: OnnxNode) -> Result:
    """Each column's block added to the image at its place; what lies in the padding is dropped."""
    x, image, block = n.value(0), n.ints(1), n.ints(2)
    num = len(image)
    strides, dilations = n.attrs.get("strides") or (1,) * num, n.attrs.get("dilations") or (1,) * num
    pads = n.attrs.get("pads") or (0,) * (2 * num)
    if not num or not num == len(block) == len(strides) == len(dilations) == len(pads) // 2 or min(block) < 1:
        raise Error(f"got image_shape {image} and block_shape {block}, need as many numbers everywhere")
    counts = [(d + pads[i] + pads[num + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
              for i, d in enumerate(image)]  # fmt: skip
    taps, columns = prod(block), prod(counts)
    if min(counts) < 1 or len(x.shape) != 3 or x.shape[1] % taps or x.shape[2] != columns:
        raise Error(f"got x {x.shape}, need (N, C * {taps}, {columns})")
    lines = x.shape[0] * x.shape[1] // taps
    limited(lines * taps * columns, np.dtype(np.int64))
    at, inside = np.zeros((taps, columns), np.int64), np.ones((taps, columns), bool)
    for i in range(num):
        place = (np.indices(block)[i].reshape(-1, 1) * dilations[i]
                 + np.indices(tuple(counts))[i].reshape(1, -1) * strides[i] - pads[i])  # fmt: skip
        inside &= (place >= 0) & (place < image[i])
        at = at * image[i] + place
    at = np.where(inside, at, prod(image)).reshape(1, -1)
    flat = b.reshape(x, shape=(lines, taps * columns))
    empty = b.const(np.zeros((lines, prod(image) + 1), x.dtype.numpy))
    y = b.scatter_along_axis(empty, b.const(np.repeat(at, lines, 0)), flat, axis=1, mode="add")
    y = b.slice_by_index(y, begin=(0, 0), end=(lines, prod(image)))
    return b.reshape(y, shape=(x.shape[0], -1, *image) if lines else (x.shape[0], x.shape[1] // taps, *image))


def max_unpool(b: Builder, n: OnnxNode) -> Result:
    """The elements at the places they were found, counted in the shape that the pooling undoes; zeros elsewhere."""
    x, indices = n.value(0), n.value(1)
    num = len(x.shape) - 2
    kernel, strides = n.attrs["kernel_shape"], n.attrs.get("strides") or (1,) * num
    pads = n.attrs.get("pads") or (0,) * (2 * num)
    if num < 1 or indices.shape != x.shape or not num == len(kernel) == len(strides) == len(pads) // 2:
        raise Error(f"got x {x.shape}, indices {indices.shape} and kernel_shape {kernel}, need equal shapes")
    outs = [(d - 1) * s - pads[i] - pads[num + i] + k
            for i, (d, s, k) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))]  # fmt: skip
    if min(outs) < 1:
        raise Error(f"got the output extents {outs}, need positive ones")
    shape = (*x.shape[:2], *outs)
    limited(prod(shape), x.dtype.numpy)
    flat = [b.reshape(v, shape=(-1,)) for v in (indices, x)]
    y = b.scatter_along_axis(b.const(np.zeros(prod(shape), x.dtype.numpy)), *flat, axis=0, mode="update")
    y = b.reshape(y, shape=shape)
    if not n.has(2):
        return y
    wanted = n.ints(2)
    if len(wanted) != len(shape) or any(w < d for w, d in zip(wanted, shape, strict=True)):
        raise Error(f"output_shape: got {wanted}, need at least {shape}")
    return b.pad(y, begin=(0,) * len(shape), end=[w - d for w, d in zip(wanted, shape, strict=True)])


def compress(b: Builder, n: OnnxNode) -> Result:
    """The slices (or elements) where a condition that is known at import holds."""
    x, condition = n.value(0), n.array(1)
    if condition.ndim != 1 or condition.dtype != BOOL.numpy:
        raise Error(f"got a condition {condition.dtype}{list(condition.shape)}, need a vector of bools")
    if "axis" not in n.attrs:
        x = b.reshape(x, shape=(x.type.size,))
    axis = axis_of(n.attrs.get("axis", 0), len(x.shape))
    at = np.flatnonzero(condition)
    if condition.size > x.shape[axis]:
        raise Error(f"got a condition of {condition.size} for an extent of {x.shape[axis]}, need at most as many")
    return b.gather(x, b.const(at.astype(np.int64)), axis=axis)


def cumulative_product(b: Builder, n: OnnxNode) -> Result:
    """In log2(extent) rounds: each multiplies by what lies 1, 2, 4, ... before."""
    x: Value = n.value(0)
    axis = axis_of(n.integer(1), len(x.shape))
    extent, backwards = x.shape[axis], bool(n.attrs["reverse"])

    def shifted(v: Value, count: int) -> Result:
        ahead = [count if i == axis else 0 for i in range(len(v.shape))]
        behind = [-count if i == axis else 0 for i in range(len(v.shape))]
        return b.pad(v, begin=ahead, end=behind, mode="constant", value=1.0)

    y: Value = b.reverse(x, axes=(axis,)) if backwards else x
    if n.attrs["exclusive"] and extent:
        y = shifted(y, 1)
    count = 1
    while count < extent:
        y = b.mul(y, shifted(y, count))
        count *= 2
    return b.reverse(y, axes=(axis,)) if backwards else y


HANDLERS = {
    "Col2Im": col2im,
    "Compress": compress,
    "CumProd": cumulative_product,
    "MaxUnpool": max_unpool,
    "ReverseSequence": reverse_sequence,
    "TensorScatter": tensor_scatter,
}

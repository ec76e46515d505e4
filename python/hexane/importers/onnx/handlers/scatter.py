"""Ops that scatter elements: reversed sequences, sums of windows, unpooling, updates of caches."""

import numpy as np

from hexane.dtypes import INT64
from hexane.errors import Error
from hexane.importers.onnx.node import Builder, OnnxNode, Result, axis_of
from hexane.importers.onnx.registry import onnx_op
from hexane.ops.compose import cast, limited


@onnx_op("ReverseSequence")
def reverse_sequence(b: Builder, n: OnnxNode) -> Result:
    return b.reverse_sequence(n.value(0), n.value(1), seq_axis=n.attrs["time_axis"], batch_axis=n.attrs["batch_axis"])


@onnx_op("TensorScatter")
def tensor_scatter(b: Builder, n: OnnxNode) -> Result:
    """Writes the update into each item of the cache from the item's position on. In circular mode, positions wrap
    around."""
    cache, update, positions = n.value(0), n.value(1), n.optional(2)
    axis, mode = axis_of(n.attrs["axis"], len(cache.shape)), n.attrs["mode"]
    if axis == 0 or mode not in ("linear", "circular"):
        raise Error(f"got axis {axis} and mode {mode!r}, need an axis after the batch, linear or circular")
    shape = tuple(1 if i == axis else d for i, d in enumerate(update.shape))
    if len(update.shape) != len(cache.shape) or positions is None or positions.shape != cache.shape[:1]:
        raise Error(f"got the cache {cache.shape} and the update {update.shape}, need equal ranks and positions")
    limited(update.shape[axis], np.dtype(np.int64))
    steps = np.arange(update.shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    at = b.add(b.reshape(cast(b, positions, INT64), shape=(-1, *[1] * (len(shape) - 1))), b.const(steps))
    if mode == "circular":
        at = b.mod(at, cache.shape[axis])
    return b.scatter_along_axis(cache, b.broadcast_to(at, shape=update.shape), update, axis=axis, mode="update")


@onnx_op("Col2Im", shape_inputs=(1, 2))
def col2im(b: Builder, n: OnnxNode) -> Result:
    image, block = n.ints(1), n.ints(2)
    num = len(image)
    strides, dilations = n.attrs.get("strides") or (1,) * num, n.attrs.get("dilations") or (1,) * num
    if not num or not num == len(block) == len(strides) == len(dilations):
        raise Error(f"got image_shape {image} and block_shape {block}, need as many numbers everywhere")
    options = {"strides": strides, "dilations": dilations, "pad": _pads(n, num)}
    return b.col2im(n.value(0), image_shape=image, kernel_sizes=block, **options)


@onnx_op("MaxUnpool", shape_inputs=(2,))
def max_unpool(b: Builder, n: OnnxNode) -> Result:
    x, kernel = n.value(0), n.attrs["kernel_shape"]
    num = len(x.shape) - 2
    strides = n.attrs.get("strides") or (1,) * num
    if num < 1 or not num == len(kernel) == len(strides):
        raise Error(f"got x {x.shape}, kernel_shape {kernel} and strides {strides}, need numbers for each spatial axis")
    options = {"kernel_sizes": kernel, "strides": strides, "pad": _pads(n, num)}
    return b.max_unpool(x, n.value(1), output_shape=n.ints(2) if n.has(2) else (), **options)


def _pads(n: OnnxNode, num: int) -> list[int]:
    """Converts ONNX's pads, all begins and then all ends, to (begin, end) of each axis."""
    pads = n.attrs.get("pads") or (0,) * (2 * num)
    if len(pads) != 2 * num:
        raise Error(f"pads: got {pads}, need {2 * num} integers")
    return [p for i in range(num) for p in (pads[i], pads[num + i])]

"""Rewrites transposed convolutions of stride s as convolutions of stride 1 with s * s channels per output channel.

The s * s channels are then interleaved: they become neighbouring pixels of the result.

x: a b    channels:  a0 a1   b0 b1    interleaved:  a0 a1 b0 b1
                     a2 a3   b2 b3                  a2 a3 b2 b3
"""

from math import prod
from typing import Any, NamedTuple

import numpy as np

from hexane.dtypes import DType
from hexane.graph import Array, Node, Value, constant
from hexane.lowering.layouts import first_perm, last_perm
from hexane.ops import OPS, apply
from hexane.ops.fold import Folder
from hexane.ops.taps import pairs
from hexane.passes.fuse.fuse_transpose import transposed
from hexane.passes.legalize.expand import kernel_ops
from hexane.passes.quantize.quantized import dequantized, known

# The largest ratio of the new multiplications to the node's own. The ratio grows because the kernel is padded with
# zeros to a multiple of the stride.
_MAX_GROWTH = 4


class _Window(NamedTuple):
    """One spatial axis: each element of the result is a sum of ceil(kernel / stride) elements of x."""

    stride: int
    taps: int
    begin: int  # padding of the convolution
    end: int
    cut: int  # elements that the node's pad crops from the convolution's first pixel
    out: int

    @property
    def pixels(self) -> int:
        """The extent of the convolution's result."""
        return -(-(self.cut + self.out) // self.stride)


def convolution(node: Node, inputs: tuple[Value | None, ...]) -> Node | None:
    """Returns conv(dequantize(%x), dequantize(%w), %b) {layout=nhwc}, whose result `interleaved` rearranges, or None.

    The node is a conv_transpose without dilations, of a quantised tensor and constant weights with one scale, or with
    one scale per channel.
    """
    x, weight, bias = dequantized(inputs[0]), dequantized(inputs[1]), inputs[2]
    if x is None or weight is None or not x.single or x.real is not weight.real:
        return None
    data, scale = known(weight.value), known(weight.scale)
    zero = np.zeros((), np.int8) if weight.zero is None else known(weight.zero)
    if data is None or not data.size or scale is None or zero is None or not (weight.single or weight.axis == 1):
        return None
    windows = _windows(node)
    grown = prod(w.taps * w.stride for w in windows) > _MAX_GROWTH * prod(data.shape[2:])
    if grown or any(w.begin < 0 or w.end < 0 for w in windows) or set(node.attrs["dilations"]) != {1}:
        return None
    groups, outer = node.attrs["groups"], data.shape[1]
    # For each channel of the convolution, in the order (group, element.., channel of the group), the node's channel.
    own = np.arange(groups * outer).reshape(groups, *[1] * len(windows), outer)
    channels = np.broadcast_to(own, (groups, *(w.stride for w in windows), outer)).reshape(-1)
    scale, each_zero = (v if v.ndim == 0 else np.tile(v, groups)[channels] for v in (scale, zero))
    kernel = [constant(v, node.sources) for v in (_turned(data, zero, groups, windows), scale, each_zero)]
    image = x.value
    if node.attrs["layout"] == "nchw":
        image = transposed(image, last_perm(image.type.rank), node.sources)
    operands = [
        _real([image, x.scale, x.zero], x.real, node),
        _real([*kernel[:2], None if weight.zero is None else kernel[2]], weight.real, node),
        _gathered(bias, channels, node),
    ]
    attrs = {"pad": tuple(p for w in windows for p in (w.begin, w.end)), "groups": groups, "layout": "nhwc"}
    return apply(OPS["conv"], operands, attrs, node.sources)[0].node


def interleaved(product: Value, node: Node) -> Value:
    """Returns the result of a conv_transpose, rearranged from the result of its `convolution`."""
    windows = _windows(node)
    if len(windows) == 2:
        attrs = {
            "block": [w.stride for w in windows],
            "begin": [w.cut for w in windows],
            "shape": [w.out for w in windows],
        }
        y = apply(
            OPS["interleave"],
            [product],
            {k: tuple(v) for k, v in attrs.items()} | {"groups": node.attrs["groups"]},
            node.sources,
        )[0]
        return y if node.attrs["layout"] == "nhwc" else transposed(y, first_perm(4), node.sources)
    b = kernel_ops(*node.sources)
    batch, *pixels, channels = product.shape
    strides = [w.stride for w in windows]
    groups, rank, channels = node.attrs["groups"], len(windows), channels // prod(strides)
    y = b.reshape(product, shape=(batch, *pixels, groups, *strides, channels // groups))
    places = [a for i in range(rank) for a in (1 + i, 2 + rank + i)]
    y = transposed(y, (0, *places, 1 + rank, 2 + 2 * rank), node.sources)
    y = b.reshape(y, shape=(batch, *(w.pixels * w.stride for w in windows), channels))
    ends = [w.cut + w.out for w in windows]
    y = b.slice_by_index(y, begin=(0, *(w.cut for w in windows), 0), end=(batch, *ends, channels))
    return y if node.attrs["layout"] == "nhwc" else transposed(y, first_perm(rank + 2), node.sources)


def _windows(node: Node) -> list[_Window]:
    x, weight = node.inputs[:2]
    assert x is not None
    assert weight is not None
    axes = slice(1, -1) if node.attrs["layout"] == "nhwc" else slice(2, None)
    result = []
    for extent, out, k, s, (pad, _) in zip(
        x.shape[axes],
        node.types[0].shape[axes],
        weight.shape[2:],
        node.attrs["strides"],
        pairs(node.attrs["pad"]),
        strict=True,
    ):
        taps = -(-k // s)
        window = _Window(s, taps, taps - 1 - pad // s, 0, pad % s, out)
        result.append(window._replace(end=window.pixels - extent - window.begin + taps - 1))
    return result


def _turned(data: Array, zero: Array, groups: int, windows: list[_Window]) -> Array:
    """Returns weights [C, O, kernel..] as [groups * elements * O, C / groups, taps..], last tap first. Padded taps get
    the zero point, so that their real value is 0."""
    inner, outer, *kernel = data.shape
    full = np.empty((inner, outer, *(w.taps * w.stride for w in windows)), data.dtype)
    full[...] = zero.reshape(-1, *[1] * len(windows))
    there: Any = (..., *map(slice, kernel))
    full[there] = data
    split = [v for w in windows for v in (w.taps, w.stride)]
    full = full.reshape(groups, inner // groups, outer, *split)
    taps, elements = tuple(range(3, full.ndim, 2)), range(4, full.ndim, 2)
    full = np.flip(full, taps).transpose(0, *elements, 2, 1, *taps)
    return full.reshape(groups * prod(w.stride for w in windows) * outer, inner // groups, *(w.taps for w in windows))


def _real(operands: list[Value | None], real: DType, node: Node) -> Value:
    """Returns a dequantize that is not folded even if its operands are constants: `fold_qdq` needs the integers."""
    return apply(OPS["dequantize"], operands, {"axis": 0, "dtype": real}, node.sources)[0]


def _gathered(vector: Value | None, channels: Array, node: Node) -> Value | None:
    """Returns the elements of a vector at these indices. A quantised vector stays quantised."""
    if vector is None or vector.type.rank == 0:
        return vector
    quantized = dequantized(vector)
    if quantized is None:
        return Folder(*node.sources).gather(vector, channels, axis=0)
    return _real(
        [_gathered(v, channels, node) for v in (quantized.value, quantized.scale, quantized.zero)], quantized.real, node
    )

"""Gradients of convolutions, pools and resizes, computed by products and convolutions."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from hexane.graph import Array, Node, Value
from hexane.ops.compose import Builder
from hexane.ops.gradients.products import Gradients
from hexane.ops.gradients.rule import attrs_of, operand
from hexane.ops.taps import pool_taps


def _first(b: Builder, x: Value, layout: str) -> Value:
    """Returns x with channels first."""
    rank = len(x.shape)
    return b.transpose(x, perm=(0, rank - 1, *range(1, rank - 1))) if layout == "nhwc" else x


def _as_layout(b: Builder, x: Value, layout: str) -> Value:
    rank = len(x.shape)
    return b.transpose(x, perm=(0, *range(2, rank), 1)) if layout == "nhwc" else x


def _bias_gradient(b: Builder, bias: Value | None, g: Value) -> Value | None:
    axes = (0, *range(2, len(g.shape)))
    return None if bias is None else b.reduce_sum(g, axes=axes, keep_dims=False)


def conv(b: Builder, node: Node, g: Value) -> Gradients:
    """The input's gradient is the transposed convolution of g, and the weight's is the correlation of x with g."""
    a, bias = node.attrs, node.inputs[2]
    x, weight = _first(b, operand(node, 0), a["layout"]), operand(node, 1)
    g = _first(b, g, a["layout"])
    dx = _convolved_back(b, g, weight, x.shape[2:], a)
    return (
        _as_layout(b, dx, a["layout"]),
        _weight_gradient(b, x, g, weight.shape, a),
        _bias_gradient(b, bias, g),
    )


def _convolved_back(b: Builder, g: Value, weight: Value, extents: Sequence[int], a: Any) -> Value:
    """Returns the gradient of each input pixel. Pixels at the end that no window reads get 0."""
    pads = _flipped_pads(weight.shape[2:], a)
    if set(a["strides"]) == {1} and min(pads) >= 0:
        return b.conv(g, _flipped(b, weight, a["groups"]), dilations=a["dilations"], pad=pads, groups=a["groups"])
    reach = [
        (n - 1) * s + d * (k - 1) + 1 - before - after
        for n, s, d, k, before, after in zip(
            g.shape[2:], a["strides"], a["dilations"], weight.shape[2:], a["pad"][::2], a["pad"][1::2], strict=True
        )
    ]
    more = [n - r for n, r in zip(extents, reach, strict=True)]
    return b.conv_transpose(
        g, weight, strides=a["strides"], dilations=a["dilations"], pad=a["pad"], output_padding=more, groups=a["groups"]
    )


def _flipped_pads(kernel: Sequence[int], a: Any) -> list[int]:
    """Returns the pads of the convolution with the flipped kernel: the kernel's reach minus the original pads."""
    reach = [d * (k - 1) for d, k in zip(a["dilations"], kernel, strict=True) for _ in range(2)]
    return [r - p for r, p in zip(reach, a["pad"], strict=True)]


def _flipped(b: Builder, weight: Value, groups: int) -> Value:
    """(out, in / groups, kernel..)  ->  (in, out / groups, kernel..), the kernel reversed on each axis"""
    out, each, *kernel = weight.shape
    spatial = range(3, 3 + len(kernel))
    grouped = b.reshape(weight, shape=(groups, out // groups, each, *kernel))
    swapped = b.reshape(b.transpose(grouped, perm=(0, 2, 1, *spatial)), shape=(groups * each, out // groups, *kernel))
    return b.reverse(swapped, axes=tuple(range(2, 2 + len(kernel)))) if max(kernel) > 1 else swapped


def _weight_gradient(b: Builder, x: Value, g: Value, shape: Sequence[int], a: Any) -> Value:
    """Returns the weight's gradient, for images by an op of its own. A line is an image of one row."""
    line = len(shape) == 3
    if len(shape) == 5:
        return correlated(b, x, g, shape, a)
    if line:
        x, g = (b.reshape(v, shape=(*v.shape[:2], 1, v.shape[2])) for v in (x, g))
    ones, none = ((1,), (0, 0)) if line else ((), ())
    gradient = b.conv_weight_gradient(
        *(b.transpose(v, perm=(0, 2, 3, 1)) for v in (x, g)), kernel_sizes=(*ones, *shape[2:]),
        strides=(*ones, *a["strides"]), dilations=(*ones, *a["dilations"]), pad=(*none, *a["pad"]), groups=a["groups"],
    )  # fmt: skip
    return b.reshape(gradient, shape=shape) if line else gradient


def expand_weight_gradient(b: Builder, x: Value, g: Value, kernel_sizes: Sequence[int], **attrs: Any) -> Value:
    """Expands to a convolution over the batch, for images with channels last."""
    shape = (g.shape[3], x.shape[3] // attrs["groups"], *kernel_sizes)
    first, second = (b.transpose(v, perm=(0, 3, 1, 2)) for v in (x, g))
    return correlated(b, first, second, shape, attrs)


def correlated(b: Builder, x: Value, g: Value, shape: Sequence[int], a: Any) -> Value:
    """Returns the gradient of a weight (out, in / groups, kernel...): x (N, C, ...) convolved with g (N, out, ...) over
    the batch, with strides and dilations exchanged."""
    groups, kernel = a["groups"], shape[2:]
    n, channels, out = x.shape[0], x.shape[1], g.shape[1]
    each = channels // groups
    rank = len(x.shape)
    spatial = range(3, rank + 1)
    images = b.reshape(x, shape=(n, groups, each, *x.shape[2:]))
    images = b.reshape(b.transpose(images, perm=(2, 1, 0, *spatial)), shape=(each, groups * n, *x.shape[2:]))
    filters = b.transpose(g, perm=(1, 0, *range(2, rank)))
    correlation = b.conv(images, filters, strides=a["dilations"], dilations=a["strides"], pad=a["pad"], groups=groups)
    cut = b.slice_by_index(correlation, begin=(0,) * rank, end=(each, out, *kernel))
    return b.transpose(cut, perm=(1, 0, *range(2, rank)))


def conv_transpose(b: Builder, node: Node, g: Value) -> Gradients:
    """The input's gradient is a convolution of g. The weight (in, out / groups, ..) already has the form of that
    convolution's weight."""
    a, bias = node.attrs, node.inputs[2]
    x, weight = _first(b, operand(node, 0), a["layout"]), operand(node, 1)
    g = _first(b, g, a["layout"])
    common = attrs_of(node, "strides", "dilations", "pad", "groups")
    dx = b.conv(g, weight, **common)
    dx = b.slice_by_index(dx, begin=(0,) * len(x.shape), end=x.shape)  # With output_padding, dx may be larger than x.
    return _as_layout(b, dx, a["layout"]), _weight_gradient(b, g, x, weight.shape, common), _bias_gradient(b, bias, g)


def avg_pool(b: Builder, node: Node, g: Value) -> Gradients:
    """Each window divides its gradient equally among the elements that it counts."""
    a = node.attrs
    x = _first(b, operand(node, 0), a["layout"])
    g = b.mul(_first(b, g, a["layout"]), b.const((1 / _counts(x.shape, a)).astype(g.dtype.numpy)))
    weight = b.const(np.ones((x.shape[1], 1, *a["kernel_sizes"]), g.dtype.numpy))
    pad, cut = _whole_windows(x.shape[2:], g.shape[2:], a)
    back = _convolved_back(
        b, g, weight, [n + c for n, c in zip(x.shape[2:], cut, strict=True)],
        {**attrs_of(node, "strides", "dilations"), "pad": pad, "groups": x.shape[1]},
    )  # fmt: skip
    return (_as_layout(b, b.slice_by_index(back, begin=(0,) * len(x.shape), end=x.shape), a["layout"]),)


def _counts(shape: Sequence[int], a: Any) -> Array:
    """Returns the number of elements that each window of an image counts."""
    names = ("kernel_sizes", "strides", "dilations", "pad", "ceil_mode")
    _, regions = pool_taps(np.zeros((1, 1, *shape[2:])), 0, **{name: a[name] for name in names})
    return np.asarray(np.maximum((regions >= (2 if a["exclude_padding"] else 1)).sum(axis=0), 1))


def _whole_windows(extents: Sequence[int], outs: Sequence[int], a: Any) -> tuple[list[int], list[int]]:
    """Returns pads for which all windows lie inside, and the number of elements after the image's end that windows
    cover. With ceil_mode, a window may end after the padding."""
    pad, cut = [], []
    for i, (n, out) in enumerate(zip(extents, outs, strict=True)):
        before, after = a["pad"][2 * i], a["pad"][2 * i + 1]
        reach = (out - 1) * a["strides"][i] + a["dilations"][i] * (a["kernel_sizes"][i] - 1) + 1
        more = max(reach - before - after - n, 0)
        pad += [before, after]
        cut.append(more)
    return pad, cut


def max_pool(b: Builder, node: Node, g: Value) -> Gradients:
    """The gradient of a window goes to its first largest element, for images by an op of its own. A line is an image of
    one row."""
    a = node.attrs
    x = _first(b, operand(node, 0), a["layout"])
    g = _first(b, g, a["layout"])
    window = attrs_of(node, "kernel_sizes", "strides", "dilations", "pad")
    if len(a["kernel_sizes"]) == 3:
        return (_as_layout(b, _to_the_first(b, x, g, **window), a["layout"]),)
    line = len(a["kernel_sizes"]) == 1
    if line:
        x, g = (b.reshape(v, shape=(*v.shape[:2], 1, v.shape[2])) for v in (x, g))
        window = {name: ((0, 0, *own) if name == "pad" else (1, *own)) for name, own in window.items()}
    last = [b.transpose(v, perm=(0, 2, 3, 1)) for v in (x, g)]
    dx = b.transpose(b.max_pool_gradient(*last, ceil_mode=a["ceil_mode"], **window), perm=(0, 3, 1, 2))
    return (_as_layout(b, b.reshape(dx, shape=(*dx.shape[:2], dx.shape[3])) if line else dx, a["layout"]),)


def expand_max_pool_gradient(b: Builder, x: Value, g: Value, ceil_mode: bool, **window: Any) -> Value:
    """Expands the gradient for images with channels last."""
    first, given = (b.transpose(v, perm=(0, 3, 1, 2)) for v in (x, g))
    return b.transpose(_to_the_first(b, first, given, **window), perm=(0, 2, 3, 1))


def _to_the_first(
    b: Builder,
    x: Value,
    g: Value,
    kernel_sizes: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pad: Sequence[int],
) -> Value:
    """Extracts the windows of x as columns, puts g at the first largest element of each, and adds the columns up."""
    n, channels, *extents = x.shape
    reach = [(o - 1) * s + d * (k - 1) + 1 for o, s, d, k in
             zip(g.shape[2:], strides, dilations, kernel_sizes, strict=True)]  # fmt: skip
    ends = [r - before - extent for r, before, extent in zip(reach, pad[::2], extents, strict=True)]
    lowest = float(np.finfo(np.float32).min if x.dtype.bits > 16 else np.finfo(np.float16).min)
    padded = b.pad(x, begin=(0, 0, *pad[::2]), end=(0, 0, *ends), value=lowest)
    common: dict[str, Any] = {
        "kernel_sizes": kernel_sizes,
        "strides": strides,
        "dilations": dilations,
        "pad": (0,) * len(pad),
    }
    taps, places = prod(kernel_sizes), prod(g.shape[2:])
    columns = b.reshape(b.im2col(padded, **common), shape=(n, channels, taps, places))
    first = b.reduce_argmax(columns, axis=2)
    chosen = b.cast(b.one_hot(first, axis=2, depth=taps), dtype=g.dtype)
    spread = b.mul(chosen, b.reshape(g, shape=(n, channels, 1, places)))
    added = b.col2im(b.reshape(spread, shape=(n, channels * taps, places)), image_shape=tuple(reach), **common)
    return b.pad(added, begin=(0, 0, *(-p for p in pad[::2])), end=(0, 0, *(-e for e in ends)))


def resize(b: Builder, node: Node, g: Value) -> Gradients:
    """A resize is linear, with a matrix for each axis. The gradient is g times the transposed matrices."""
    from hexane.ops import OPS

    a = node.attrs
    x = _first(b, operand(node, 0), a["layout"])
    g = _first(b, g, a["layout"])
    height, width = x.shape[2:]
    rest = {**a, "layout": "nchw"}

    def matrix(shape: tuple[int, int, int, int], extent: int, **changed: Any) -> Array:
        result = OPS[node.op].ref(np.eye(extent).reshape(shape), **{**rest, **changed})
        return np.asarray(result, np.float64).reshape(extent, -1).astype(g.dtype.numpy)

    # The matrices are resizes of one column and of one row, which leave the other axis unchanged.
    rows = matrix((1, height, height, 1), height, width=1)
    columns = matrix((1, width, 1, width), width, height=1)
    dx = b.matmul(b.matmul(b.const(rows), g), b.const(columns), transpose_y=True)
    return (_as_layout(b, dx, a["layout"]),)


def col2im(b: Builder, node: Node, g: Value) -> Gradients:
    return (b.im2col(g, **attrs_of(node, "kernel_sizes", "strides", "dilations", "pad")),)

"""Forms of pools with windows, strides, dilations or axes that no pool of the chip supports."""

from typing import NamedTuple

import numpy as np

from hexane.graph import Array, Node, Value
from hexane.passes.retarget.windows import (
    ORDER,
    Window,
    channels_first,
    every,
    is_image,
    one_axis,
    padded,
    tile_image,
    windows,
    with_windows,
)
from hexane.passes.retarget.writer import Form, Rewritten, Writer


class _Pool(NamedTuple):
    x: Value
    found: list[Window]
    wide: bool  # a window is larger than the chip supports


def _float_pool(b: Writer, node: Node) -> _Pool | None:
    (x,) = node.inputs
    if x is None or not is_image(node) or node.attrs["ceil_mode"] or x.dtype.kind != "float":
        return None
    most, by_axis = b.chip.extents.pool_window, windows(node)
    return _Pool(x, by_axis, most is not None and any(w.kernel > most and w.kernel != w.extent for w in by_axis))


def max_pool_in_steps(b: Writer, node: Node) -> Rewritten | None:
    """max_pool(%x) with an unsupported window, stride or dilation  ->  pools of smaller windows, then a slice with a stride"""  # noqa: E501
    pool = _float_pool(b, node)
    if pool is None or (not pool.wide and all(w.stride != 3 and w.dilation == 1 for w in pool.found)):
        return None
    x, by_axis, _ = pool
    for w in by_axis:
        x = padded(b, x, w.axis, w.before, w.after, -np.inf)
    for w in by_axis:
        x = _max_along(b, x, w, b.chip.extents.pool_window or w.kernel)
    return Rewritten(
        (every(b, x, [w.stride for w in by_axis]),), "written as pools of stride 1, and a slice with the pool's strides"
    )


def _max_along(b: Writer, x: Value, w: Window, most: int) -> Value:
    """Returns the maximum of each window along one axis, with stride 1."""
    if w.dilation > 1:
        length = x.shape[w.axis] - w.reach + 1
        taps = [b.cut(x, w.axis, t * w.dilation, t * w.dilation + length) for t in range(w.kernel)]
        x = taps[0]
        for tap in taps[1:]:
            x = b.maximum(x, tap)
        return x
    left = w.kernel
    while left > 1:
        size = min(left, most)
        x = b.max_pool(x, kernel_sizes=[size if i == w.axis else 1 for i in (2, 3)])
        left -= size - 1
    return x


def avg_pool_as_conv(b: Writer, node: Node) -> Rewritten | None:
    """avg_pool(%x) with an unsupported window  ->  a depthwise convolution with equal weights, scaled at borders that count fewer elements"""  # noqa: E501
    pool = _float_pool(b, node)
    if pool is None or (not pool.wide and all(w.dilation == 1 for w in pool.found)):
        return None
    x, by_axis, _ = pool
    size = by_axis[0].kernel * by_axis[1].kernel
    weight = b.const(np.full((x.shape[1], 1, by_axis[0].kernel, by_axis[1].kernel), 1 / size, x.dtype.numpy))
    same = {k: v for k, v in with_windows(node, by_axis).items() if k != "kernel_sizes"}
    y = b.conv(x, weight, None, groups=x.shape[1], **same)
    if node.attrs["exclude_padding"] and any(w.before or w.after for w in by_axis):
        rows, columns = (_counted(w) for w in by_axis)
        y = b.mul(y, b.const((size / np.outer(rows, columns)).astype(x.dtype.numpy)))
    hazard = "the weights 1 / n of its means are rounded, and " + ORDER
    return Rewritten((y,), "written as a convolution with equal weights", hazard)


def _counted(w: Window) -> Array:
    """Returns how many elements of the image each window covers along its axis."""
    places = np.arange(w.out)[:, None] * w.stride - w.before + np.arange(w.kernel) * w.dilation
    counts: Array = ((places >= 0) & (places < w.extent)).sum(axis=1)
    return counts


def pool_by_axes(b: Writer, node: Node) -> Rewritten | None:
    """max_pool(%x : [N, C, D, H, W])  ->  a pool of the images (N, C * D, H, W), then a pool along the depth of (N, C, D, H * W)"""  # noqa: E501
    (x,) = node.inputs
    assert x is not None
    if x.type.rank != 5 or node.attrs["layout"] != "nchw" or x.dtype.kind != "float":
        return None

    def part(axes: slice, *trailing: int) -> dict[str, tuple[int, ...]]:
        sizes = {name: (*node.attrs[name][axes], *trailing) for name in ("kernel_sizes", "strides", "dilations")}
        return {**sizes, "pad": (*node.attrs["pad"][axes.start * 2 : axes.stop * 2], *[0] * (2 * len(trailing)))}

    n, channels, depth, *_ = x.shape
    _, _, *out = node.types[0].shape
    images = b.again(node, [b.view(x, (n, channels * depth, *x.shape[3:]))], **part(slice(1, 3)))[0]
    columns = b.view(images, (n, channels, depth, out[1] * out[2]))
    y = b.again(node, [columns], **part(slice(0, 1), 1))[0]
    hazard = "means of means are rounded twice" if node.op == "avg_pool" else ""
    return Rewritten((b.view(y, node.types[0].shape),), "written as pools of images, and along the depth", hazard)


FORMS: dict[str, tuple[Form, ...]] = {
    "max_pool": (channels_first, one_axis, pool_by_axes, max_pool_in_steps, tile_image),
    "avg_pool": (channels_first, one_axis, pool_by_axes, avg_pool_as_conv, tile_image),
}

"""Forms of convolutions, and some of pools. They use axes, strides, dilations and kernels that the chip supports, or
split images into pieces."""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from typing import NamedTuple

import numpy as np

from hexane.graph import Node, Value
from hexane.ops.taps import pairs
from hexane.passes.legalize.split_conv_3d import sum_of_taps
from hexane.passes.retarget.tile import edges
from hexane.passes.retarget.tile_sums import SUMS
from hexane.passes.retarget.writer import Form, Rewritten, Writer
from hexane.validate.convolution import largest_kernel
from hexane.validate.extents import largest
from hexane.validate.rule import made_of_factors

ORDER = "its sums are added in another order"
NAMES = {2: "height", 3: "width"}


class Window(NamedTuple):
    """One spatial axis of a convolution or pool on (N, C, H, W): the extents of input and result, and the window."""

    axis: int
    extent: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    out: int

    @property
    def reach(self) -> int:
        return self.dilation * (self.kernel - 1) + 1


def windows(node: Node) -> list[Window]:
    """Returns the windows along the height and the width."""
    x, weight = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    assert x is not None
    kernel = weight.shape[2:] if weight is not None else node.attrs["kernel_sizes"]
    a, out = node.attrs, node.types[0].shape
    return [
        Window(i + 2, x.shape[i + 2], kernel[i], a["strides"][i], a["dilations"][i], *pairs(a["pad"])[i], out[i + 2])
        for i in range(2)
    ]


def is_image(node: Node) -> bool:
    return node.types[0].rank == 4 and node.attrs["layout"] == "nchw"


def with_windows(node: Node, by_axis: Sequence[Window]) -> dict[str, tuple[int, ...]]:
    """Returns the node's attributes changed to these windows."""
    sizes = {"kernel_sizes": tuple([w.kernel for w in by_axis])} if "kernel_sizes" in node.attrs else {}
    return {
        **sizes,
        "strides": tuple([w.stride for w in by_axis]),
        "dilations": tuple([w.dilation for w in by_axis]),
        "pad": tuple([p for w in by_axis for p in (w.before, w.after)]),
    }


# ---- other axes ----


def channels_first(b: Writer, node: Node) -> Rewritten | None:
    """conv(%x) {layout=nhwc}  ->  transpose(conv(transpose(%x)))"""
    if node.attrs["layout"] != "nhwc":
        return None
    x, *rest = node.inputs
    rank = node.types[0].rank
    first = b.transpose(x, perm=(0, rank - 1, *range(1, rank - 1)))
    (y,) = b.again(node, (first, *rest), layout="nchw")
    return Rewritten(
        (b.transpose(y, perm=(0, *range(2, rank), 1)),), "written with transposes to channels first and back"
    )


def one_axis(b: Writer, node: Node) -> Rewritten | None:
    """conv(%x : [N, C, W])  ->  conv of an image of height 1"""
    if node.types[0].rank != 3 or node.attrs["layout"] != "nchw":
        return None
    x, *rest = node.inputs
    assert x is not None
    if rest and rest[0] is not None:
        rest[0] = b.view(rest[0], (*rest[0].shape[:2], 1, *rest[0].shape[2:]))
    ones = {"strides": 1, "dilations": 1, "kernel_sizes": 1, "output_padding": 0}
    wider = {name: (one, *node.attrs[name]) for name, one in ones.items() if name in node.attrs}
    (y,) = b.again(node, (b.view(x, (*x.shape[:2], 1, x.shape[2])), *rest), pad=(0, 0, *node.attrs["pad"]), **wider)
    return Rewritten((b.view(y, node.types[0].shape),), "written as an image of height 1")


def three_axes(b: Writer, node: Node) -> Rewritten | None:
    """conv(%x : [N, C, D, H, W])  ->  a sum of convolutions of images, one per index of the kernel's depth"""
    if node.types[0].rank != 5 or node.attrs["layout"] != "nchw":
        return None
    depth = node.inputs[1].shape[2]  # type: ignore[union-attr]
    y = sum_of_taps(b, node.inputs, node.attrs)
    return Rewritten((y,), f"written as {depth} convolutions of images", SUMS.format(depth) if depth > 1 else "")


# ---- strides and dilations ----


def every(b: Writer, y: Value, steps: Sequence[int]) -> Value:
    """Returns rows and columns of an image at these strides: by 1 x 1 convolutions with strides that the chip supports,
    or by a slice if no factor of a stride is supported."""
    while max(steps) > 1:
        factors = [_factor(b, step) for step in steps]
        if max(factors) == 1:
            stride = (1, 1, *steps)
            return b.slice_by_index(y, begin=(0,) * 4, end=y.shape, stride=stride)
        ones = b.const(np.ones((y.shape[1], 1, 1, 1), y.dtype.numpy))
        y = b.conv(y, ones, None, strides=factors, groups=y.shape[1])
        steps = [step // factor for step, factor in zip(steps, factors, strict=True)]
    return y


def _factor(b: Writer, stride: int) -> int:
    """Returns the largest factor of a stride that the chip supports."""
    return max([f for f in b.chip.extents.stride_factors if stride % f == 0], default=1)


def large_strides(b: Writer, node: Node) -> Rewritten | None:
    """conv(%x, %w) {strides=16}  ->  every second element of conv(%x, %w) {strides=8}"""
    if not is_image(node):
        return None
    by_axis = windows(node)
    allowed = (1, *b.chip.extents.stride_factors)
    if all(w.stride in allowed for w in by_axis):
        return None
    firsts = [w.stride if w.stride in allowed else _factor(b, w.stride) for w in by_axis]
    rest = [w.stride // first for w, first in zip(by_axis, firsts, strict=True)]
    (y,) = b.again(node, node.inputs, strides=tuple(firsts))
    how = " and ".join(f"{a} x {r}" for a, r in zip(firsts, rest, strict=True) if r > 1)
    return Rewritten((every(b, y, rest),), f"written with strides of {how}")


def dilated(b: Writer, node: Node) -> Rewritten | None:
    """conv(%x, %w) {dilations=5}  ->  undilated convolutions of every fifth pixel, with these images as batch
    entries"""
    if not is_image(node):
        return None
    by_axis = windows(node)
    large = any(w.kernel > most for w, most in zip(by_axis, largest_kernel(b.chip, True, small=True)[1:], strict=True))
    spread = [
        w.dilation > 1 and (large or not made_of_factors(w.dilation, b.chip.extents.stride_factors)) for w in by_axis
    ]
    if not any(spread):
        return None
    steps = [w.stride if s else 1 for w, s in zip(by_axis, spread, strict=True)]
    if max(steps) > 1:
        (y,) = b.again(node, node.inputs, strides=tuple([w.stride // s for w, s in zip(by_axis, steps, strict=True)]))
        return Rewritten((every(b, y, steps),), "written with a stride of 1")
    w = by_axis[spread.index(True)]
    x, weight, bias = node.inputs
    assert x is not None
    rows = ceil(w.out / w.dilation) + w.kernel - 1
    x = padded(b, x, w.axis, w.before, rows * w.dilation - w.extent - w.before)
    x = _to_batch(b, x, w.axis, w.dilation)
    dense = [v._replace(dilation=1, before=0, after=0) if v is w else v for v in by_axis]
    (y,) = b.again(node, (x, weight, bias), **with_windows(node, dense))
    y = b.cut(_from_batch(b, y, w.axis, w.dilation), w.axis, 0, w.out)
    return Rewritten((y,), f"written with {w.dilation} images in the batch instead of a dilation of {w.dilation}")


def padded(b: Writer, x: Value, axis: int, before: int, after: int, value: float = 0.0) -> Value:
    """Returns x padded with this value on both sides of an axis. A negative `after` crops the end instead."""
    if after < 0:
        x, after = b.cut(x, axis, 0, x.shape[axis] + after), 0
    if before == after == 0:
        return x
    sides = [[side if i == axis else 0 for i in range(x.type.rank)] for side in (before, after)]
    return b.pad(x, begin=sides[0], end=sides[1], value=value)


def _to_batch(b: Writer, x: Value, axis: int, step: int) -> Value:
    """Moves the pixels of each step to the batch: [N, C, H, W * step] -> [N * step, C, H, W], or likewise the
    height."""
    n, c, *image = x.shape
    image[axis - 2] //= step
    split = b.view(x, (n, c, *image[: axis - 1], step, *image[axis - 1 :]))
    perm = [0, axis + 1, *[i for i in range(1, 5) if i != axis + 1]]
    return b.view(b.transpose(split, perm=perm), (n * step, c, *image))


def _from_batch(b: Writer, y: Value, axis: int, step: int) -> Value:
    n, c, *image = y.shape
    split = b.transpose(b.view(y, (n // step, step, c, *image)), perm=[0, *[2, 3, 4][:axis], 1, *[2, 3, 4][axis:]])
    image[axis - 2] *= step
    return b.view(split, (n // step, c, *image))


# ---- kernels ----


def kernel_to_depth(b: Writer, node: Node) -> Rewritten | None:
    """conv(%x, %w : [O, C, 16, 16]) {strides=16}  ->  conv(%x with pixels in the channels, %w : [O, C * 256, 1, 1])

    Applies if a kernel is too wide or a stride is not supported, and if the kernel is a multiple of the stride, so that
    no zero weight is added.
    """
    if not is_image(node):
        return None
    x, weight, bias = node.inputs
    assert x is not None
    assert weight is not None
    by_axis, most = windows(node), _largest_kernels(b, node)
    steps = []
    for w, limit in zip(by_axis, most, strict=True):
        wrong = w.kernel > limit or w.stride not in (1, *b.chip.extents.stride_factors)
        steps.append(w.stride if wrong and w.dilation == 1 and w.kernel % w.stride == 0 else 1)
    if max(steps) == 1:
        return None
    for place, step in enumerate(steps):
        if step > 1:
            w = by_axis[place]
            x = padded(b, x, w.axis, w.before, (w.out - 1) * step + w.kernel - w.extent - w.before)
            x, weight = _to_depth(b, x, w.axis, step), _to_depth(b, weight, w.axis, step)
            by_axis[place] = w._replace(kernel=w.kernel // step, stride=1, before=0, after=0)
    (y,) = b.again(node, (x, weight, bias), **with_windows(node, by_axis))
    return Rewritten((y,), f"space to depth: {' x '.join(map(str, steps))} pixels in the channels", ORDER)


def _to_depth(b: Writer, x: Value, axis: int, step: int) -> Value:
    """Moves the pixels of each step to the channels: [N, C, H, W * step] -> [N, C * step, H, W], or likewise the
    height."""
    n, c, *image = x.shape
    image[axis - 2] //= step
    split = b.view(x, (n, c, *image[: axis - 1], step, *image[axis - 1 :]))
    perm = [0, 1, axis + 1, *[i for i in range(2, 5) if i != axis + 1]]
    return b.view(b.transpose(split, perm=perm), (n, c * step, *image))


def _largest_kernels(b: Writer, node: Node) -> tuple[int, int]:
    """Returns (height, width) of the largest kernel that the chip supports for a convolution like this node."""
    transposed, by_axis = node.op == "conv_transpose", windows(node)
    small = node.attrs["groups"] > 1 or any(w.dilation > 1 for w in by_axis)
    _, *large_sides = largest_kernel(b.chip, fp16=True)
    _, *small_sides = largest_kernel(b.chip, fp16=True, small=True)
    height, width = (
        little if small or (transposed and w.stride > 1) else large
        for w, large, little in zip(by_axis, large_sides, small_sides, strict=True)
    )
    return height, width


def split_kernel(b: Writer, node: Node) -> Rewritten | None:
    """conv(%x, %w : [O, C, 3, 20])  ->  conv(%x, %w[.., :10]) + conv(%x[.., 10:], %w[.., 10:])"""
    if not is_image(node):
        return None
    by_axis, most = windows(node), _largest_kernels(b, node)
    w, limit = next(((w, n) for w, n in zip(by_axis, most, strict=True) if w.kernel > n), (None, 0))
    if w is None:
        return None
    pieces = ceil(w.kernel / limit)
    taps = edges(w.kernel, pieces)
    write = _part_transposed if node.op == "conv_transpose" else _part
    total: Value | None = None
    for first, last in pairwise(taps):
        part = write(b, node, by_axis, w, (first, last))
        if part is not None:
            total = part if total is None else b.add(total, part)
    if total is None:  # the result is all padding
        return None
    bias = node.inputs[2]
    if bias is not None:
        total = b.add(total, b.view(bias, (bias.shape[0], 1, 1)))
    return Rewritten((total,), f"tiled: kernel {NAMES[w.axis]}, {pieces} pieces", SUMS.format(pieces))


def _part(b: Writer, node: Node, by_axis: list[Window], w: Window, taps: tuple[int, int]) -> Value | None:
    """Returns the convolution with some taps of the kernel, or None if these taps only read padding."""
    x, weight, _ = node.inputs
    assert x is not None
    assert weight is not None
    start = taps[0] * w.dilation - w.before
    stop = start + (w.out - 1) * w.stride + (taps[1] - taps[0] - 1) * w.dilation + 1
    low, high = max(start, 0), min(stop, w.extent)
    if low >= high:
        return None
    part = w._replace(before=low - start, after=stop - high)
    changed = with_windows(node, [part if v is w else v for v in by_axis])
    (y,) = b.again(node, (b.cut(x, w.axis, low, high), b.cut(weight, w.axis, *taps), None), **changed)
    return y


def _part_transposed(b: Writer, node: Node, by_axis: list[Window], w: Window, taps: tuple[int, int]) -> Value | None:
    """Returns the transposed convolution with some taps of the kernel, or None if these contribute nothing. Outputs
    that the taps do not reach are zeros."""
    x, weight, _ = node.inputs
    assert x is not None
    assert weight is not None
    whole = w._replace(before=0, after=0)
    padding = [0 if v is w else p for v, p in zip(by_axis, node.attrs["output_padding"], strict=True)]
    changed = with_windows(node, [whole if v is w else v for v in by_axis])
    (y,) = b.again(node, (x, b.cut(weight, w.axis, *taps), None), output_padding=tuple(padding), **changed)
    offset = taps[0] * w.dilation - w.before
    low, high = max(0, -offset), min(y.shape[w.axis], w.out - offset)
    if low >= high:
        return None
    return padded(b, b.cut(y, w.axis, low, high), w.axis, offset + low, w.out - offset - high)


# ---- images in pieces ----


def tile_image(b: Writer, node: Node) -> Rewritten | None:
    """conv(%x : [N, C, 20000, W])  ->  concat of two convolutions, of the upper and of the lower rows, with a shared
    halo"""
    if not is_image(node) or node.op == "conv_transpose":
        return None
    by_axis = windows(node)
    for w in by_axis:
        rows = largest(node.inputs[0].type, w.axis, b.chip)  # type: ignore[union-attr]
        # Both the input rows that a piece reads and the piece's own rows are limited.
        most = min((rows - w.reach) // w.stride + 1, rows)
        if (w.out > rows or w.extent > rows) and most > 0:
            pieces = ceil(w.out / most)
            spans = edges(w.out, pieces)
            parts = [_rows(b, node, by_axis, w, *span) for span in pairwise(spans)]
            if any(p is None for p in parts):
                return None
            return Rewritten((b.join([p for p in parts if p is not None], w.axis),), f"tiled: spatial, {pieces} pieces")
    return None


def _rows(b: Writer, node: Node, by_axis: list[Window], w: Window, first: int, last: int) -> Value | None:
    """Returns some rows (or columns) of the result, or None if they only read padding."""
    x, *rest = node.inputs
    assert x is not None
    start = first * w.stride - w.before
    stop = (last - 1) * w.stride + w.reach - w.before
    low, high = max(start, 0), min(stop, w.extent)
    if low >= high:
        return None
    # With ceil_mode the last window may extend past the padding.
    after = min(stop - high, w.after)
    if max(low - start, after) >= w.reach and node.op not in ("conv", "conv_transpose"):
        return None
    part = w._replace(before=low - start, after=after)
    changed = with_windows(node, [part if v is w else v for v in by_axis])
    (y,) = b.again(node, (b.cut(x, w.axis, low, high), *rest), **changed)
    return y


def tile_transposed(b: Writer, node: Node) -> Rewritten | None:
    """conv_transpose(%x) with a result that is too large  ->  concat of pieces, each from the rows of %x that it
    reads"""
    if not is_image(node):
        return None
    x, *rest = node.inputs
    assert x is not None
    by_axis = windows(node)
    for place, w in enumerate(by_axis):
        rows = largest(x.type, w.axis, b.chip)
        if w.out <= rows and w.extent <= rows:
            continue
        pieces = max(ceil(w.out / rows), ceil(w.extent / max(rows - w.reach, 1)))
        spans, parts = edges(w.out, pieces), list[Value]()
        for first, last in pairwise(spans):
            # Row i of x contributes to the rows from i * stride on, counted before the padding is cropped.
            top, bottom = first + w.before, last + w.before
            low = min(max(-(-(top - w.reach + 1) // w.stride), 0), top // w.stride, w.extent - 1)
            high = max(min((bottom - 1) // w.stride + 1, w.extent), low + 1)
            end = (high - 1) * w.stride + w.reach
            part = w._replace(before=top - low * w.stride, after=max(end - bottom, 0))
            padding = list(node.attrs["output_padding"])
            padding[place] = max(bottom - end, 0)
            changed = with_windows(node, [part if v is w else v for v in by_axis])
            parts += b.again(node, (b.cut(x, w.axis, low, high), *rest), output_padding=tuple(padding), **changed)
        return Rewritten((b.join(parts, w.axis),), f"tiled: spatial, {pieces} pieces")
    return None


FORMS: dict[str, tuple[Form, ...]] = {
    "conv": (channels_first, one_axis, three_axes, kernel_to_depth, large_strides, dilated, split_kernel, tile_image),
    "conv_transpose": (channels_first, one_axis, split_kernel, tile_transposed),
    "resize_bilinear": (channels_first,),
    "resize_nearest_neighbor": (channels_first,),
    "instance_norm": (channels_first,),
}

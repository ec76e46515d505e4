"""Convolutions and pools of images, and convolutions of volumes, with channels last."""

from typing import Any

import numpy as np

from hexane.dtypes import FP32, INT32, INT64
from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.importers.tflite.integer import bounds, check_bias, clamped, multipliers, one, stored, two
from hexane.importers.tflite.ops.activations import activated
from hexane.importers.tflite.ops.hybrid import quantised
from hexane.importers.tflite.registry import INT8, INT16, NARROW, UINT8, Context, reads
from hexane.ops.compose import Builder, cast, held

SAME = 0
BIAS_INT32 = 2  # A TensorType of the option quantized_bias_type.
MOST_PRODUCTS = 33_025  # The most products of two bytes whose sum always fits int32.


def pads_of(extents: Any, kernel: Any, strides: Any, dilations: Any, padding: int) -> list[int]:
    """Returns (before, after) padding of each axis."""
    pads: list[int] = []
    for n, k, s, d in zip(extents, kernel, strides, dilations, strict=True):
        if k < 1 or s < 1 or d < 1:
            raise Error(f"got a window of {k}, the stride {s} and the dilation {d}, need 1 or more")
        if padding == SAME:
            total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
            pads += [total // 2, total - total // 2]
        elif padding == 1:
            pads += [0, 0]
        else:
            raise Error(f"got the padding {padding}, need SAME or VALID")
    return pads


def _window(c: Context, x: Value, kernel: Any) -> dict[str, Any]:
    strides = (c.o["stride_h"], c.o["stride_w"])
    dilations = (c.o.get("dilation_hfactor", 1), c.o.get("dilation_wfactor", 1))
    return {"strides": strides, "dilations": dilations,
            "pad": pads_of(x.shape[1:3], kernel, strides, dilations, c.o["padding"])}  # fmt: skip


@reads("CONV_2D")
def conv_2d(c: Context) -> Value:
    x, w = c.x(0), c.x(1)
    if len(x.shape) != 4 or len(w.shape) != 4 or not w.shape[3] or x.shape[3] % w.shape[3]:
        raise Error(f"got x {list(x.shape)} and a weight {list(w.shape)}, need NHWC and OHWI")
    attrs = {**_window(c, x, w.shape[1:3]), "groups": x.shape[3] // w.shape[3], "layout": "nhwc"}
    return _convolved(c, x, c.b.transpose(w, perm=(0, 3, 1, 2)), attrs, 0)


@reads("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(c: Context) -> Value:
    x, w = c.x(0), c.x(1)
    if len(x.shape) != 4 or len(w.shape) != 4 or w.shape[0] != 1 or not x.shape[3] or w.shape[3] % x.shape[3]:
        raise Error(f"got x {list(x.shape)} and a weight {list(w.shape)}, need NHWC and (1, H, W, C * multiplier)")
    attrs = {**_window(c, x, w.shape[1:3]), "groups": x.shape[3], "layout": "nhwc"}
    return _convolved(c, x, c.b.transpose(w, perm=(3, 0, 1, 2)), attrs, 3)


def _convolved(c: Context, x: Value, w: Value, attrs: dict[str, Any], axis: int) -> Value:
    """w is OIHW. axis: the file's axis of w that has the scales."""
    b, bias = c.b, c.maybe(2)
    if x.dtype.kind == "float":
        if w.dtype.kind == "float":
            return activated(
                b, b.conv(x, cast(b, w, x.dtype), _as(b, bias, x), **attrs), c.o["fused_activation_function"]
            )
        return _hybrid(c, x, w, bias, attrs)
    if x.dtype not in NARROW or w.dtype not in NARROW:
        raise Error(f"got {x.dtype} and a weight of {w.dtype}, need floats, int8, uint8 or int16")
    return finished(c, x, w, bias, attrs, c.grid(0), axis)


def _as(b: Builder, bias: Value | None, x: Value) -> Value | None:
    return None if bias is None else cast(b, bias, x.dtype)


def finished(c: Context, x: Value, w: Value, bias: Value | None, attrs: dict[str, Any], grid: Any, axis: int) -> Value:
    """Returns an integer convolution. How int16 results are rounded depends on the dtype of the bias, int32 or
    int64."""
    b, weights, to, dtype = c.b, c.grid(1), c.out_grid, c.out().dtype
    if weights.blocks is not None:
        raise Error("got weights quantised in blocks, need a scale for each channel")
    if weights.scales.size > 1 and weights.axis != axis:
        raise Error(f"got scales along axis {weights.axis}, need axis {axis}")
    check_bias(bias)
    reals = np.float64(grid.scale) * weights.scales.astype(np.float64) / np.float64(to.scale)
    m, shift = multipliers(reals)
    low, high = bounds(c.o["fused_activation_function"], to, dtype)
    if x.dtype is INT16:
        if weights.zeros.any() or grid.zero:
            raise Error("got a zero point with int16, need none")
        total = wide_sums(b, x, w, attrs)
        narrow = c.o.get("quantized_bias_type", 0) == BIAS_INT32
        if bias is not None and (bias.dtype is INT32) != narrow:
            raise Error(f"got a bias of {bias.dtype}, need int64, or int32 where quantized_bias_type says so")
        if bias is not None:
            total = b.add(total, cast(b, bias, INT64))
        scaled = two(b, total, m, shift) if bias is not None and narrow else one(b, total, m, shift)
        return stored(b, scaled, dtype, to.zero, (low, high))
    zeros = None
    if weights.zeros.any():
        if weights.zeros.size > 1:
            raise Error("got zero points of channels, need 0")
        zeros = b.const(np.array(weights.zeros[0], w.dtype.numpy))
    if dtype not in (INT8, UINT8):
        total = b.quantized_conv(
            x, w, None, None, b.const(held(grid.zero, x.dtype.numpy)), zeros, **attrs, dtype="int32"
        )
        total = cast(b, total, INT64) if bias is None else b.add(cast(b, total, INT64), cast(b, bias, INT64))
        return stored(b, two(b, total, m, shift), dtype, to.zero, (low, high))
    if bias is not None and bias.dtype is not INT32:
        raise Error(f"got a bias of {bias.dtype}, need int32")
    numbers = [b.const(m.astype(np.int32)), b.const(shift.astype(np.int8))]
    if m.size == 1:
        numbers = [b.const(m.astype(np.int32).reshape(())), b.const(shift.astype(np.int8).reshape(()))]
    return b.q31_conv(
        x, w, numbers[0], bias, b.const(held(grid.zero, x.dtype.numpy)), zeros, numbers[1], **attrs, dtype=dtype,
        output_zero=to.zero, low=low, high=high,
    )  # fmt: skip


def wide_sums(b: Builder, x: Value, w: Value, attrs: dict[str, Any]) -> Value:
    """Returns the int64 sums of an int16 x and an int8 weight, added from the sums of the high bytes and of the low
    bytes."""
    products = int(np.prod(w.shape[1:]))
    if products > MOST_PRODUCTS:
        raise Error(f"got {products} products in a sum of int16, need at most {MOST_PRODUCTS}")
    wide = cast(b, x, INT32)
    high = cast(b, b.shift_right(wide, b.const(np.int32(8))), INT8)
    low = cast(b, b.bitwise_and(wide, 255), UINT8)
    first, second = (
        cast(b, b.quantized_conv(v, w, None, None, None, None, **attrs, dtype="int32"), INT64) for v in (high, low)
    )
    return b.add(b.mul(first, 256), second)


def _hybrid(c: Context, x: Value, w: Value, bias: Value | None, attrs: dict[str, Any]) -> Value:
    """Convolves. Each image is quantised at run time: without a zero point in CONV_2D if the weights have one scale,
    else with one."""
    b, weights = c.b, c.grid(1)
    symmetric = weights.scales.size == 1 and c.op.name == "CONV_2D"
    q, scale, zero = quantised(b, x, 1, symmetric)
    scales = b.const(weights.scales.astype(np.float32).reshape(-1))
    if symmetric:
        total = cast(b, b.quantized_conv(q, w, None, None, None, None, **attrs, dtype="int32"), FP32)
        y = b.mul(total, b.mul(scale, scales))
    elif c.op.name != "CONV_2D":
        y = b.mul(_sums(b, q, w, zero, attrs), b.mul(scale, scales))
    else:
        y = b.mul(b.mul(_sums(b, q, w, zero, attrs), scales), scale)
    y = y if bias is None else b.add(y, cast(b, bias, FP32))
    return activated(b, y, c.o["fused_activation_function"])


def _sums(b: Builder, q: Value, w: Value, zero: Value, attrs: dict[str, Any]) -> Value:
    """Returns the fp32 sums of products with x minus the zero point of its image. Padding has the real value 0, which
    is stored as the zero point."""
    if q.shape[0] == 1:
        middle = b.reshape(cast(b, zero, INT8), shape=())
        return cast(b, b.quantized_conv(q, w, None, None, middle, None, **attrs, dtype="int32"), FP32)
    pad = attrs["pad"]
    inside = b.sub(cast(b, q, FP32), zero)
    inside = b.pad(inside, begin=[0, pad[0], pad[2], 0], end=[0, pad[1], pad[3], 0])
    total = b.conv(inside, cast(b, w, FP32), None, **{**attrs, "pad": (0, 0, 0, 0)})
    # Because of the cast to int32, no pass moves later scales into the weights.
    return cast(b, cast(b, total, INT32), FP32)


@reads("TRANSPOSE_CONV")
def transpose_conv(c: Context) -> Value:
    """Convolves, transposed: x[i] is added to y[i * stride - p + tap]. Equivalently, x with zeros between its pixels is
    convolved with the flipped weight.

    If x is float and the weight is integer, each image is quantised at run time, as in convolutions.
    """
    b, shape, w, x, bias = c.b, c.ints(0), c.x(1), c.x(2), c.maybe(3)
    if len(shape) != 4 or len(w.shape) != 4 or len(x.shape) != 4 or w.shape[3] != x.shape[3] or w.shape[0] != shape[3]:
        raise Error(f"got x {list(x.shape)}, a weight {list(w.shape)} for {shape}, need NHWC and OHWI")
    if shape[0] != x.shape[0]:
        raise Error(f"got a result of {shape[0]} images for {x.shape[0]}, need as many")
    strides, kernel = (c.o["stride_h"], c.o["stride_w"]), w.shape[1:3]
    if min(strides) < 1 or min(kernel) < 1:
        raise Error(f"got the strides {strides} and a window of {kernel}, need 1 or more")
    cuts = [
        max((-(-out // s) - 1) * s + k - out, 0) // 2 if c.o["padding"] == SAME else 0
        for s, k, out in zip(strides, kernel, shape[1:3], strict=True)
    ]
    if x.dtype.kind == "float":
        return _floats_transposed(c, x, w, bias, shape, cuts)
    n, h, wide, channels = x.shape
    zero, spread = c.grid(2).zero, x
    if max(strides) > 1:
        spread = b.reshape(x, shape=(n, h, 1, wide, 1, channels))
        spread = b.pad(spread, begin=[0] * 6, end=[0, 0, strides[0] - 1, 0, strides[1] - 1, 0], value=float(zero))
        spread = b.reshape(spread, shape=(n, h * strides[0], wide * strides[1], channels))
    begin, end = [0], [0]
    for axis in (0, 1):
        before = kernel[axis] - 1 - cuts[axis]
        begin.append(before)
        end.append(shape[1 + axis] + kernel[axis] - 1 - spread.shape[1 + axis] - before)
    spread = b.pad(spread, begin=[*begin, 0], end=[*end, 0], value=float(zero))
    flipped = b.transpose(b.reverse(w, axes=(1, 2)), perm=(0, 3, 1, 2))
    attrs: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pad": (0, 0, 0, 0), "groups": 1, "layout": "nhwc"}
    return finished(c, spread, flipped, bias, attrs, c.grid(2), 0)


def _floats_transposed(c: Context, x: Value, w: Value, bias: Value | None, shape: Any, cuts: list[int]) -> Value:
    """Convolves floats, transposed. cuts: elements cropped before each axis of the result. The result's shape decides
    the crop or padding after it."""
    b, weights = c.b, None
    if w.dtype.kind != "float":
        weights = c.grid(1)
        if weights.blocks is not None or weights.zeros.any():
            raise Error("got weights with blocks or a zero point, need a scale for each channel")
        q, scale, middle = quantised(b, x, 1, False)
        x = b.mul(b.sub(cast(b, q, FP32), middle), scale)
    strides, pad, more = (c.o["stride_h"], c.o["stride_w"]), [], []
    for axis, (s, cut) in enumerate(zip(strides, cuts, strict=True)):
        end = (x.shape[1 + axis] - 1) * s + w.shape[1 + axis] - cut - shape[1 + axis]
        pad += [cut, max(end, 0)]
        more.append(max(-end, 0))
    y = b.conv_transpose(
        x, b.transpose(cast(b, w, x.dtype), perm=(3, 0, 1, 2)), None if weights else _as(b, bias, x), strides=strides,
        dilations=(1, 1), pad=pad, output_padding=more, groups=1, layout="nhwc",
    )  # fmt: skip
    if weights is not None:
        y = b.mul(y, b.const(weights.scales.astype(np.float32)))
        y = y if bias is None else b.add(y, cast(b, bias, FP32))
    return activated(b, y, c.o["fused_activation_function"])


@reads("CONV_3D")
def conv_3d(c: Context) -> Value:
    x, w, bias, b = c.x(0), c.x(1), c.maybe(2), c.b
    if len(x.shape) != 5 or len(w.shape) != 5 or x.dtype.kind != "float" or w.dtype.kind != "float":
        raise Error(f"got x {x.type} and a weight {w.type}, need floats of rank 5")
    strides = tuple(c.o[f"stride_{a}"] for a in "dhw")
    dilations = tuple(c.o[f"dilation_{a}factor"] for a in "dhw")
    pads = pads_of(x.shape[1:4], w.shape[:3], strides, dilations, c.o["padding"])
    groups = x.shape[4] // w.shape[3]
    y = b.conv(
        b.transpose(x, perm=(0, 4, 1, 2, 3)), b.transpose(w, perm=(4, 3, 0, 1, 2)), bias, strides=strides,
        dilations=dilations, pad=pads, groups=groups,
    )  # fmt: skip
    return activated(b, b.transpose(y, perm=(0, 2, 3, 4, 1)), c.o["fused_activation_function"])


# ---- pools ----


def _pool(c: Context, x: Value) -> dict[str, Any]:
    if len(x.shape) != 4:
        raise Error(f"got x {list(x.shape)}, need NHWC")
    kernel, strides = (c.o["filter_height"], c.o["filter_width"]), (c.o["stride_h"], c.o["stride_w"])
    pads = pads_of(x.shape[1:3], kernel, strides, (1, 1), c.o["padding"])
    return {"kernel_sizes": kernel, "strides": strides, "pad": pads, "layout": "nhwc"}


def _same_grid(c: Context) -> None:
    first, second = c.grid(0), c.out_grid
    if first.scale != second.scale or first.zero != second.zero:
        raise Error("got another scale or zero point for the result than for the operand, need the same")


def _ends(c: Context, x: Value) -> tuple[int, int] | None:
    code = c.o["fused_activation_function"]
    return bounds(code, c.out_grid, x.dtype) if code else None


@reads("AVERAGE_POOL_2D")
def average_pool_2d(c: Context) -> Value:
    x, b = c.x(), c.b
    attrs = _pool(c, x)
    if x.dtype.kind == "float":
        return activated(b, b.avg_pool(x, exclude_padding=True, **attrs), c.o["fused_activation_function"])
    if x.dtype not in NARROW:
        raise Error(f"got {x.dtype}, need floats, int8, uint8 or int16")
    _same_grid(c)
    y = _wide_average(b, x, attrs) if x.dtype is INT16 else b.q31_avg_pool(x, **attrs)
    ends = _ends(c, x)
    return y if ends is None else clamped(b, y, *ends)


def _wide_average(b: Builder, x: Value, attrs: dict[str, Any]) -> Value:
    """Returns the sums of windows divided by their number of pixels, with halves rounded away from 0."""
    channels, (kh, kw) = x.shape[3], attrs["kernel_sizes"]
    window = {
        "strides": attrs["strides"],
        "dilations": (1, 1),
        "pad": attrs["pad"],
        "groups": channels,
        "layout": "nhwc",
    }
    total = wide_sums(b, x, b.const(np.ones((channels, 1, kh, kw), np.int8)), window)
    counts: Array = np.ones(())
    for axis, (k, s) in enumerate(zip((kh, kw), attrs["strides"], strict=True)):
        start = np.arange(total.shape[1 + axis]) * s - attrs["pad"][2 * axis]
        inside = np.minimum(start + k, x.shape[1 + axis]) - np.maximum(start, 0)
        counts = counts * (inside[:, None, None] if axis == 0 else inside[:, None])
    count = np.maximum(counts, 1).astype(np.int64)[None]
    magnitude = b.real_div(b.add(b.abs(total), b.const(count // 2)), b.const(count))
    return cast(b, b.mul(b.sign(total), magnitude), x.dtype)


@reads("MAX_POOL_2D")
def max_pool_2d(c: Context) -> Value:
    x, b = c.x(), c.b
    attrs = _pool(c, x)
    if x.dtype.kind == "float":
        return activated(b, b.max_pool(x, **attrs), c.o["fused_activation_function"])
    if x.dtype not in NARROW:
        raise Error(f"got {x.dtype}, need floats, int8, uint8 or int16")
    _same_grid(c)
    y = cast(b, b.max_pool(cast(b, x, FP32), **attrs), x.dtype) if x.dtype is not INT8 else b.max_pool(x, **attrs)
    ends = _ends(c, x)
    return y if ends is None else clamped(b, y, *ends)


@reads("L2_POOL_2D")
def l2_pool_2d(c: Context) -> Value:
    x, b = c.x(), c.b
    y = b.sqrt(b.avg_pool(b.mul(x, x), exclude_padding=True, **_pool(c, x)))
    return activated(b, y, c.o["fused_activation_function"])

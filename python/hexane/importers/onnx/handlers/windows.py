"""Convolutions and pooling."""

from collections.abc import Sequence
from operator import gt
from typing import Any

from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.onnx.node import Builder, OnnxNode, Result
from hexane.importers.onnx.registry import onnx_op


@onnx_op("Conv")
def conv(b: Builder, n: OnnxNode) -> Result:
    x, weight = read_by_windows(b, n, n.value(0), n.value(1)), n.value(1)
    return b.conv(x, weight, n.optional(2), **convolution_options(n, x, weight))


def read_by_windows(b: Builder, n: OnnxNode, x: Value, weight: Value) -> Value:
    """Returns the image of a convolution without border pixels that no window reads."""
    num = _spatial(x)
    kernel, dilations = _kernel(n, weight, num), _each(n, "dilations", num)
    reach = [(k - 1) * r + 1 for k, r in zip(kernel, dilations, strict=True)]
    return _cropped(b, x, n.attrs["auto_pad"], reach, _each(n, "strides", num), spared=1)


def convolution_options(n: OnnxNode, x: Value, weight: Value) -> dict[str, Any]:
    """Returns the attributes of a convolution, with numbers for every spatial axis."""
    num = _spatial(x)
    kernel = _kernel(n, weight, num)
    strides, dilations = _each(n, "strides", num), _each(n, "dilations", num)
    pad = _pads(n, x.shape[2:], kernel, strides, dilations)
    return {"strides": strides, "dilations": dilations, "pad": pad, "groups": n.attrs["group"]}


@onnx_op("ConvTranspose")
def conv_transpose(b: Builder, n: OnnxNode) -> Result:
    """Convolves, transposed. output_shape overrides the attribute `pads`, and auto_pad allows no pads.
    The odd element of a pad goes to the end for SAME_UPPER, else to the start."""
    x, weight, bias = n.value(0), n.value(1), n.optional(2)
    num = _spatial(x)
    kernel = _kernel(n, weight, num)
    strides, dilations = _each(n, "strides", num), _each(n, "dilations", num)
    extra = tuple(n.attrs.get("output_padding") or (0,) * num)
    wanted, given = n.attrs.get("output_shape"), n.attrs.get("pads")
    auto = n.attrs["auto_pad"]
    if wanted is None and auto != "NOTSET" and any(given or ()):
        raise Error(f"got pads {given} with auto_pad {auto}, need one or the other")
    if wanted is not None and len(wanted) == num + 2:
        wanted = wanted[2:]
    if wanted is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(d * s for d, s in zip(x.shape[2:], strides, strict=True))
    if any(len(v) != num for v in (extra, wanted or kernel)):
        raise Error(f"got output_padding {extra} and output_shape {wanted}, need {num} integers each")
    if wanted is None:
        pad = _pads(n, x.shape[2:], kernel, strides, dilations)
    else:
        pad, grown = [], []
        for d, k, s, r, o, w in zip(x.shape[2:], kernel, strides, dilations, extra, wanted, strict=True):
            total = s * (d - 1) + o + (k - 1) * r + 1 - w
            if total < 0 and "output_shape" not in n.attrs:
                raise Error(f"auto_pad: got {auto} for a kernel of {kernel} and strides {strides}, need pads")
            grown.append(o + max(-total, 0))  # outputs that no window reaches equal the bias
            begin = max(total, 0) // 2
            if auto != "SAME_UPPER":
                begin = max(total, 0) - begin
            pad += [begin, max(total, 0) - begin]
        extra = tuple(grown)
    options: dict[str, Any] = {"strides": strides, "dilations": dilations, "groups": n.attrs["group"]}
    return b.conv_transpose(x, weight, bias, pad=pad, output_padding=extra, **options)


@onnx_op("MaxPool", ignores=("storage_order",))
def max_pool(b: Builder, n: OnnxNode) -> Result:
    x, options = _pool(b, n)
    if not n.wants(1):
        return [b.max_pool(x, **options)]
    order = n.attrs["storage_order"]
    if x is not n.value(0):
        raise Error(f"got the output Indices with auto_pad {n.attrs['auto_pad']} and strides beyond it, need pads")
    if x.dtype.kind != "float" or (order and len(x.shape) > 4):
        raise Error(f"got the output Indices for {x.type} with storage_order {order}, need floats, of two axes for 1")
    return list(b.max_pool_with_indices(x, column_major=bool(order) and len(x.shape) == 4, **options))


@onnx_op("AveragePool")
def average_pool(b: Builder, n: OnnxNode) -> Result:
    x, options = _pool(b, n)
    return b.avg_pool(x, exclude_padding=not n.attrs.get("count_include_pad", 0), **options)


@onnx_op("LpPool")
def lp_pool(b: Builder, n: OnnxNode) -> Result:
    x, options = _pool(b, n)
    if options.pop("ceil_mode"):
        raise Error("ceil_mode: got 1 where it makes a window more, need 0")
    return b.lp_pool(x, p=n.attrs["p"], **options)


@onnx_op("GlobalAveragePool", "GlobalMaxPool")
def global_pool(b: Builder, n: OnnxNode) -> Result:
    x = n.value(0)
    _spatial(x)
    pool = b.reduce_mean if n.op == "GlobalAveragePool" else b.reduce_max
    return pool(x, axes=tuple(range(2, len(x.shape))), keep_dims=True)


@onnx_op("GlobalLpPool")
def global_lp_pool(b: Builder, n: OnnxNode) -> Result:
    x, p = n.value(0), n.attrs["p"]
    _spatial(x)
    axes = tuple(range(2, len(x.shape)))
    if p in (1, 2):
        return b.apply(f"reduce_l{p}_norm", x, axes=axes)
    return b.pow(b.reduce_sum(b.pow(b.abs(x), float(p)), axes=axes), 1 / float(p))


def _spatial(x: Value) -> int:
    """Returns the number of spatial axes."""
    if not 3 <= len(x.shape) <= 5:
        raise Error(f"got an input of shape {x.shape}, need a batch, channels and 1 to 3 spatial axes")
    return len(x.shape) - 2


def _kernel(n: OnnxNode, weight: Value, num: int) -> tuple[int, ...]:
    kernel: tuple[int, ...] = n.attrs.get("kernel_shape", weight.shape[2:])
    if len(weight.shape) != num + 2 or kernel != weight.shape[2:]:
        raise Error(f"got kernel_shape {kernel} and a weight of shape {weight.shape}, need {num} dims that agree")
    return kernel


def _each(n: OnnxNode, name: str, num: int) -> tuple[int, ...]:
    values: tuple[int, ...] = n.attrs.get(name) or (1,) * num
    if len(values) != num or min(values) < 1:
        raise Error(f"{name}: got {values}, need {num} positive integers")
    return values


def _pool(b: Builder, n: OnnxNode) -> tuple[Value, dict[str, Any]]:
    """Returns the image for a pooling, and the pooling's attributes."""
    x = n.value(0)
    num = _spatial(x)
    kernel = _each(n, "kernel_shape", num)
    strides, dilations = _each(n, "strides", num), _each(n, "dilations", num)
    ceil = bool(n.attrs.get("ceil_mode", 0))
    auto = n.attrs["auto_pad"]
    reach = [(k - 1) * r + 1 for k, r in zip(kernel, dilations, strict=True)]
    if auto.startswith("SAME") and any(map(gt, reach, kernel)):  # onnxruntime computes the pads without dilations
        raise Error(f"got dilations {dilations} with auto_pad {auto}, need pads")
    x = _cropped(b, x, auto, kernel, strides)
    pad = _pads(n, x.shape[2:], kernel, strides, dilations)
    padded = [d + sum(pad[2 * i : 2 * i + 2]) for i, d in enumerate(x.shape[2:])]
    # Extents need no rounding up if the last window ends with the image, or if SAME gives the number of windows.
    ceil = (
        ceil
        and not auto.startswith("SAME")
        and any((d - k) % s for d, k, s in zip(padded, reach, strides, strict=True))
    )
    if ceil and auto != "NOTSET":
        raise Error(f"got ceil_mode with auto_pad {auto}, need one or the other")
    return x, {"kernel_sizes": kernel, "strides": strides, "dilations": dilations, "pad": pad, "ceil_mode": ceil}


def _cropped(b: Builder, x: Value, auto: str, kernel: Sequence[int], strides: Sequence[int], spared: int = 0) -> Value:
    """Returns the image without border pixels that no window reads, for a SAME padding that would be negative.
    onnxruntime crops the image in this case. The crop is divided over both sides like positive padding, so the first
    window may start inside the image. spared: pixels that are cropped at the end before the crop is divided, 1 for a
    convolution.

    pooling 8 pixels by windows of 1 with stride 4 (two windows, 3 pixels too many): 1 is cut at the start, 2 at the end
    """
    if not auto.startswith("SAME"):
        return x
    begin, end = [0] * len(x.shape), list(x.shape)
    for axis, (k, s) in enumerate(zip(kernel, strides, strict=True), 2):
        extent = x.shape[axis]
        beyond = max(extent - ((-(-extent // s) - 1) * s + k), 0)
        begin[axis] = max(beyond - spared - (auto == "SAME_LOWER"), 0) // 2
        end[axis] = extent - (beyond - begin[axis])
    if end == list(x.shape):
        return x
    cropped: Value = b.slice_by_index(x, begin=begin, end=end)
    return cropped


def _pads(
    n: OnnxNode, extents: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """Returns (begin, end) for each spatial axis, from the attribute `pads` or from auto_pad."""
    num, auto = len(kernel), n.attrs["auto_pad"]
    if auto == "NOTSET":
        pads = n.attrs.get("pads") or (0,) * (2 * num)
        if len(pads) != 2 * num or min(pads) < 0:
            raise Error(f"pads: got {pads}, need {2 * num} integers that are not negative")
        return [p for i in range(num) for p in (pads[i], pads[num + i])]
    if auto not in ("VALID", "SAME_UPPER", "SAME_LOWER"):
        raise Error(f"auto_pad: got {auto!r}, need NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    if any(n.attrs.get("pads") or ()):
        raise Error(f"got pads {n.attrs['pads']} with auto_pad {auto}, need one or the other")
    result = []
    for d, k, s, r in zip(extents, kernel, strides, dilations, strict=True):
        total = 0 if auto == "VALID" else max((-(-d // s) - 1) * s + (k - 1) * r + 1 - d, 0)
        begin = total // 2 if auto == "SAME_UPPER" else total - total // 2
        result += [begin, total - begin]
    return result

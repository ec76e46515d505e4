"""Convolutions with what stands beside them, pooling, resizing."""

from typing import Any

import numpy as np

import hexane as hx
from random_graphs.graph import DIMS, RandomGraph


def window(g: RandomGraph, spatial: tuple[int, ...], widest: int = 3) -> tuple[list[int], dict[str, Any]]:
    num = len(spatial)
    kernel = [g.integer(1, widest + 1) for _ in range(num)]
    attrs: dict[str, Any] = {"strides": [g.pick((1, 1, 2, 3)) for _ in range(num)]}
    attrs["dilations"] = [g.pick((1, 1, 1, 2)) for _ in range(num)]
    if g.coin(0.7):
        attrs["pad"] = [g.integer(0, k) for k in kernel for _ in range(2)]
    return kernel, attrs


def conv(g: RandomGraph) -> None:
    x = g.of_rank(3, 5)
    last = len(x.shape) < 5 and g.coin(0.08)
    channels, spatial = (x.shape[-1], x.shape[1:-1]) if last else (x.shape[1], x.shape[2:])
    kernel, attrs = window(g, spatial)
    groups = g.pick([1, 1, channels, *[n for n in (2, 3, 4) if channels and channels % n == 0]]) or 1
    out = groups * g.pick((1, 2, 3, 5)) if groups > 1 else g.pick(DIMS)
    weight = g.weight((out, channels // groups, *kernel))
    bias = g.weight((out,)) if g.coin(0.4) else None
    padded = x
    if g.coin(0.15):  # a pad for it to fold
        axes = range(1, len(x.shape) - 1) if last else range(2, len(x.shape))
        begin, end = ([g.integer(0, 2) if i in axes else 0 for i in range(len(x.shape))] for _ in "be")
        padded = hx.pad(x, begin=begin, end=end)
    y = hx.conv(padded, weight, bias=bias, groups=groups, layout="nhwc" if last else "nchw", **attrs)
    while g.coin(0.4):  # a bias, a scale, a norm beside it
        y = per_channel(g, y, len(y.shape) - 1 if last else 1)
    g.keep(y)
    if g.coin(0.2) and x.shape == y.shape:
        g.keep(y + x)


def per_channel(g: RandomGraph, y: hx.Tensor, axis: int) -> hx.Tensor:
    which = g.pick(("add", "add", "sub", "mul") if g.exact else ("add", "mul", "sub", "norm", "div"))
    c = (y.shape[axis],)
    if which == "norm":
        positive = g.weight(c, array=np.abs(g.values(c)) + np.array(0.5, g.values(()).dtype))
        return hx.batch_norm(y, g.weight(c), positive, g.weight(c), axis=axis)
    other = g.weight(tuple(d if i == axis else 1 for i, d in enumerate(y.shape))[int(g.coin()) :])
    if which == "div":
        return y / (hx.abs(other) + 0.5)
    return getattr(hx, which)(*((y, other) if g.coin(0.7) else (other, y)))  # type: ignore[no-any-return]


def conv_transpose(g: RandomGraph) -> None:
    x = g.of_rank(3, 4)
    channels = x.shape[1]
    kernel, attrs = window(g, x.shape[2:])
    groups = g.pick([1, 1, channels, *[n for n in (2, 3) if channels and channels % n == 0]]) or 1
    weight = g.weight((channels, g.pick((1, 2, 3, 5)), *kernel))
    attrs["output_padding"] = [g.integer(0, s) for s in attrs["strides"]]
    bias = g.weight((weight.shape[1] * groups,)) if g.coin(0.4) else None
    y = hx.conv_transpose(x, weight, bias=bias, groups=groups, **attrs)
    while g.coin(0.4):
        y = per_channel(g, y, 1)
    g.keep(y)


def pool_op(g: RandomGraph) -> None:
    x = spatial(g, 3, 5)
    kernel, attrs = window(g, x.shape[2:])
    attrs["ceil_mode"] = g.coin(0.3)
    if g.exact or x.dtype.kind != "float" or g.coin():
        g.keep(hx.max_pool(x, kernel_sizes=kernel, **attrs))
    else:
        g.keep(hx.avg_pool(x, kernel_sizes=kernel, exclude_padding=g.coin(), **attrs))


def spatial(g: RandomGraph, low: int, high: int) -> hx.Tensor:
    dtypes = {t.dtype.name for t in g.pool} & {g.dtype, "int8", "uint8"}
    return g.tensor(lambda t: low <= len(t.shape) <= high, g.pick(sorted(dtypes)) if g.quantized and dtypes else "")


def resize(g: RandomGraph) -> None:
    x = spatial(g, 4, 4)
    height, width = g.integer(1, 12), g.integer(1, 12)
    attrs: dict[str, Any] = {
        "height": height,
        "width": width,
        "scale_h": x.shape[2],
        "scale_w": x.shape[3],
        "unit_h": height,
        "unit_w": width,
    }
    if g.exact or x.dtype.kind != "float" or g.coin():
        mode = g.pick(("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"))
        g.keep(hx.resize_nearest_neighbor(x, mode=mode, **attrs))
    else:
        g.keep(hx.resize_bilinear(x, offset_h=0.25, offset_w=-0.3, **attrs))


STEPS = (conv, conv, conv_transpose, pool_op, resize)

"""Convolutions, pools and resampling. In the file, padding is a separate operation before a convolution or pool.
Only transposed convolutions have a padding of their own."""

from math import prod

import numpy as np

from hexane.coreai.table import INTERPOLATION, by_number
from hexane.graph import Value
from hexane.importers.coreai.registry import Context, Found, handles


@handles("primitive.conv2d", "primitive.conv3d")
def _conv(c: Context) -> Found:
    x, weight = c.value(0), c.value(1)
    return c.b.conv(x, weight, None, strides=c.integers(2), dilations=c.integers(3), groups=c.integer(4))


@handles("primitive.conv_transpose2d", "primitive.conv_transpose3d")
def _conv_transpose(c: Context) -> Found:
    x, weight = c.value(0), c.value(1)
    padding = c.integers(3)
    spatial = x.type.rank - 2
    pad = padding if len(padding) == 2 * spatial else tuple([p for p in padding for _ in range(2)])
    return c.b.conv_transpose(
        x, weight, None,
        strides=c.integers(2), pad=pad, dilations=c.integers(4), output_padding=c.integers(5), groups=c.integer(6),
    )  # fmt: skip


@handles("primitive.max_pool_2d", "primitive.max_pool_3d")
def _max_pool(c: Context) -> Found:
    return c.b.max_pool(
        c.value(0), kernel_sizes=c.integers(1), strides=c.integers(2), dilations=c.integers(3),
        ceil_mode=bool(c.array(4).item()),
    )  # fmt: skip


@handles("primitive.sum_pool_2d", "primitive.sum_pool_3d")
def _sum_pool(c: Context) -> Found:
    kernel = c.integers(1)
    mean = c.b.avg_pool(c.value(0), kernel_sizes=kernel, strides=c.integers(2), dilations=c.integers(3))
    return c.b.mul(mean, float(prod(kernel)))


@handles("primitive.interpolate")
def _interpolate(c: Context) -> Found:
    """Returns a resized tensor. Output i samples the source at (i + 0.5 - offset) / scale - 0.5."""
    x, sizes = c.value(0), c.integers(1)
    scales, offsets = (np.atleast_1d(c.array(i)).astype(np.float64) for i in (2, 3))
    axes = [i for i, n in enumerate(sizes) if n != x.shape[i] or scales[i] != 1 or offsets[i] != 0]
    if not axes:
        return x
    return _resized(c, x, sizes, axes, scales, offsets)


def _resized(c: Context, x: Value, sizes: tuple[int, ...], axes: list[int], scales: object, offsets: object) -> Value:
    assert isinstance(scales, np.ndarray)
    assert isinstance(offsets, np.ndarray)
    mode = by_number(INTERPOLATION)[c.setting()]
    return c.b.resize(
        x,
        sizes=[sizes[i] for i in axes],
        axes=axes,
        mode=mode,
        scales=[1.0] * len(axes),
        offsets=[0.5 - float(offsets[i]) - 0.5 * float(scales[i]) for i in axes],
        units=[float(scales[i]) for i in axes],
    )

"""The elements of windows: the number of windows on an axis, and the elements that each tap reads in all windows."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.ops.shape_rules import Shape

Array = Any
Pads = tuple[tuple[int, int], ...]


def pairs(pad: Sequence[int]) -> Pads:
    return tuple(zip(pad[::2], pad[1::2], strict=True))


def window_count(size: int, kernel: int, stride: int, dilation: int, pad: tuple[int, int], ceil: bool = False) -> int:
    reach = dilation * (kernel - 1) + 1
    room = size + pad[0] + pad[1] - reach
    if room < 0:
        raise Error(f"got {size} padded by {pad[0]} and {pad[1]}, need at least {reach} for the kernel to fit")
    out = -(-room // stride) + 1 if ceil else room // stride + 1
    # The last window must start within the input or the padding before it.
    return out - 1 if ceil and (out - 1) * stride >= size + pad[0] else out


def windows(x: Array, kernel: Shape, strides: Shape, dilations: Shape, out: Shape) -> Any:
    """Yields each tap, and the elements it reads for every output position, on the spatial axes of a padded NCHW
    array."""
    for tap in product(*map(range, kernel)):
        index = tuple(
            slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, s, o in zip(tap, dilations, strides, out, strict=True)
        )
        yield tap, x[(slice(None), slice(None), *index)]


def pool_taps(
    x: Array, fill: float, kernel_sizes: Shape, strides: Shape, dilations: Shape, pad: Shape, ceil_mode: bool
) -> Any:
    """Returns the values and padding masks of every tap, stacked on a new first axis."""
    num = len(kernel_sizes)
    spatial = x.shape[2:]
    out = tuple(
        window_count(*args, ceil=ceil_mode)
        for args in zip(spatial, kernel_sizes, strides, dilations, pairs(pad), strict=True)
    )
    full = tuple(
        max((o - 1) * s + d * (k - 1) + 1, n + p[0] + p[1])
        for o, s, d, k, n, p in zip(out, strides, dilations, kernel_sizes, spatial, pairs(pad), strict=True)
    )
    margins = tuple((p[0], f - n - p[0]) for p, f, n in zip(pairs(pad), full, spatial, strict=True))
    padded = np.pad(x, ((0, 0), (0, 0), *margins), constant_values=fill)
    # 2: input, 1: padding, 0: beyond the padding (only with ceil_mode).
    region = np.pad(np.full((1, 1, *spatial), 2), ((0, 0), (0, 0), *pairs(pad)), constant_values=1)
    beyond = tuple((0, f - n - p[0] - p[1]) for p, f, n in zip(pairs(pad), full, spatial, strict=True))
    region = np.pad(region, ((0, 0), (0, 0), *beyond))
    values = np.stack([v for _, v in windows(padded, kernel_sizes, strides, dilations, out)])
    regions = np.stack([v for _, v in windows(region, kernel_sizes, strides, dilations, out)])
    assert values.ndim == num + 3
    return values, regions

"""Attributes and shapes of convolutions and pools: windows over images in the layout nchw or nhwc."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import TensorType
from hexane.ops.attributes import flag, integers, text
from hexane.ops.shape_rules import Shape
from hexane.ops.taps import pairs, window_count

Array = Any
LAYOUT = text("nchw", ("nchw", "nhwc"))


def to_nchw(x: Array, layout: str) -> Array:
    """Returns x with channels on axis 1."""
    return np.moveaxis(x, -1, 1) if layout == "nhwc" else x


def from_nchw(x: Array, layout: str) -> Array:
    return np.moveaxis(x, 1, -1) if layout == "nhwc" else x


def split_shape(x: Shape, layout: str) -> tuple[int, int, Shape]:
    return (x[0], x[-1], x[1:-1]) if layout == "nhwc" else (x[0], x[1], x[2:])


def join_shape(batch: int, channels: int, spatial: Sequence[int], layout: str) -> Shape:
    return (batch, *spatial, channels) if layout == "nhwc" else (batch, channels, *spatial)


def spread(name: str, value: tuple[int, ...], num: int) -> tuple[int, ...]:
    """Returns a number for each spatial axis, from one number or one for each."""
    if len(value) == 1:
        return value * num
    if len(value) != num:
        raise Error(f"{name}: got {value}, need 1 or {num} integers")
    return value


def spread_pad(value: tuple[int, ...], num: int) -> tuple[int, ...]:
    """Returns (begin, end) of every spatial axis, from one number, one number for each axis, or all begins and ends."""
    if (len(value) == 2 * num and num > 1) or (num == 1 and len(value) == 2):
        return value
    return tuple(p for p in spread("pad", value, num) for _ in range(2))


def window_attrs(types: Sequence[TensorType | None], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes with kernel sizes, strides, dilations and pads for every spatial axis."""
    x = types[0]
    assert x is not None
    num = x.rank - 2
    if not 1 <= num <= 3:
        raise Error(f"got an input of rank {x.rank}, need 3 to 5 (batch, channels, 1 to 3 spatial axes)")
    result = dict(attrs)
    for name in ("kernel_sizes", "strides", "dilations"):
        if name in attrs:
            result[name] = spread(name, attrs[name], num)
            if any(v < 1 for v in result[name]):
                raise Error(f"{name}: got {attrs[name]}, need positive integers")
    result["pad"] = spread_pad(attrs["pad"], num)
    if any(p < 0 for p in result["pad"]):
        raise Error(f"pad: got {attrs['pad']}, need integers that are not negative")
    if "output_padding" in attrs:
        result["output_padding"] = spread("output_padding", attrs["output_padding"], num)
    return result


def check_weight(
    weight: Shape, bias: Shape | None, rank: int, groups: int, channels: int, in_axis: int, out: int
) -> None:
    if len(weight) != rank:
        raise Error(f"got a weight of rank {len(weight)} for an input of rank {rank}, need the same rank")
    if groups < 1 or channels % groups:
        raise Error(f"groups: got {groups} for {channels} input channels, need a divisor")
    need = channels if in_axis == 0 else channels // groups
    if weight[in_axis] != need:
        raise Error(
            f"got a weight of shape {weight} for {channels} input channels in {groups} groups, need {need} at axis"
            f" {in_axis}"
        )
    if 0 in weight[2:]:
        raise Error(f"got a weight of shape {weight}, need a kernel of at least 1 element")
    if in_axis == 1 and weight[0] % groups:
        raise Error(f"groups: got {groups} for {weight[0]} output channels, need a divisor")
    if bias is not None and bias != (out,):
        raise Error(f"got a bias of shape {bias}, need ({out},)")


def convolved_shape(
    x: Shape, weight: Shape, bias: Shape | None, strides: Shape, dilations: Shape, pad: Shape, groups: int, layout: str
) -> Shape:
    batch, channels, spatial = split_shape(x, layout)
    check_weight(weight, bias, len(x), groups, channels, 1, weight[0] if weight else 0)
    out = [window_count(*args) for args in zip(spatial, weight[2:], strides, dilations, pairs(pad), strict=True)]
    return join_shape(batch, weight[0], out, layout)


def pool_shape(
    x: Shape, kernel_sizes: Shape, strides: Shape, dilations: Shape, pad: Shape, ceil_mode: bool, layout: str, **_: Any
) -> Shape:
    batch, channels, spatial = split_shape(x, layout)
    if 0 in spatial:
        raise Error(f"got the shape {x}, need spatial axes that are not empty: a window of padding alone has no value")
    for (before, after), k, d in zip(pairs(pad), kernel_sizes, dilations, strict=True):
        if max(before, after) >= d * (k - 1) + 1:
            raise Error(f"pad: got {pad} for kernels of {kernel_sizes}, need less than the kernel reaches")
    out = [
        window_count(*args, ceil=ceil_mode)
        for args in zip(spatial, kernel_sizes, strides, dilations, pairs(pad), strict=True)
    ]
    return join_shape(batch, channels, out, layout)


def window_kernel_attrs(_: Any, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the kernel's attributes. Kernels exist only for channels last, and call the attribute `pad` `pads`."""
    return {"pads" if k == "pad" else k: v for k, v in attrs.items() if k != "layout"}


WINDOW = {"strides": integers((1,)), "dilations": integers((1,)), "pad": integers((0,))}
POOL = {"kernel_sizes": integers(), **WINDOW, "ceil_mode": flag(False)}

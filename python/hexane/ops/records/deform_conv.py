"""Convolutions whose taps are moved by offsets."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Value
from hexane.ops.attributes import integer, integers
from hexane.ops.compose import Builder, cast, limited, part, wide
from hexane.ops.dtype_rules import floating
from hexane.ops.interpolation import (
    channels_behind,
    interpolated,
    kept_inside,
    linear_taps,
    pairs_of,
    read_pairs,
)
from hexane.ops.shape_rules import Shape
from hexane.ops.spec import Case, Op
from hexane.ops.window_rules import spread, spread_pad

Array = Any


def _deform_canonical(types: Any, attrs: Any) -> dict[str, Any]:
    result = {
        **attrs,
        "strides": spread("strides", attrs["strides"], 2),
        "dilations": spread("dilations", attrs["dilations"], 2),
    }
    result["pad"] = spread_pad(attrs["pad"], 2)
    if min(*result["strides"], *result["dilations"]) < 1 or min(result["pad"]) < 0:
        raise Error(f"got strides {attrs['strides']}, dilations {attrs['dilations']} and pads {attrs['pad']}, "
                    "need positive strides and dilations and no negative pad")  # fmt: skip
    return result


def _deform_shape(
    x: Shape, weight: Shape, offset: Shape, bias: Shape | None, mask: Shape | None, strides: Shape, dilations: Shape,
    pad: Shape, groups: int, offset_groups: int,
) -> Shape:  # fmt: skip
    if len(x) != 4 or len(weight) != 4 or len(offset) != 4 or 0 in x or 0 in weight:
        raise Error(f"got x {x}, weight {weight} and offset {offset}, need two spatial axes")
    batch, channels, *extents = x
    wrong = min(groups, offset_groups) < 1 or channels % offset_groups or channels != weight[1] * groups
    if wrong or weight[0] % groups or bias not in (None, weight[:1]):
        raise Error(
            f"got {channels} channels, {groups} groups and {offset_groups} offset groups for {weight}, bias {bias}, "
            "need (out, in / groups, height, width), (out,) and divisors"
        )
    outs = [(d + pad[2 * i] + pad[2 * i + 1] - dilations[i] * (weight[2 + i] - 1) - 1) // strides[i] + 1
            for i, d in enumerate(extents)]  # fmt: skip
    taps = offset_groups * weight[2] * weight[3]
    if min(outs) < 1 or offset != (batch, taps * 2, *outs):
        raise Error(f"got offsets of shape {offset}, need {(batch, taps * 2, *outs)}")
    if mask is not None and mask != (batch, taps, *outs):
        raise Error(f"got a mask of shape {mask}, need {(batch, taps, *outs)}")
    limited(weight[2] * weight[3] * prod(outs), np.dtype(np.float32))
    return (batch, weight[0], *outs)


def _expand_deform_conv(
    b: Builder, x: Value, weight: Value, offset: Value, bias: Value | None, mask: Value | None, strides: Shape, dilations: Shape, pad: Shape,
    groups: int, offset_groups: int,
) -> Value:  # fmt: skip
    batch, channels, *extents = x.shape
    kernel, outs = weight.shape[2:], offset.shape[2:]
    kind = wide(x, weight, offset, bias, mask)
    taps, points, each = prod(kernel), prod(outs), channels // offset_groups
    offsets = b.reshape(cast(b, offset, kind), shape=(batch, offset_groups, taps, 2, points))
    columns = []
    for g in range(offset_groups):
        axes = []
        for i, extent in enumerate(extents):
            moved = b.slice_by_index(offsets, begin=(0, g, 0, i, 0), end=(batch, g + 1, taps, i + 1, points))
            start = _tap_places(kernel, outs, i, strides[i], dilations[i], pad[2 * i])
            at = b.add(b.reshape(moved, shape=(batch, taps * points)), b.const(start.astype(kind.numpy)))
            axes.append(kept_inside(b, linear_taps(b, at), extent))
        piece = part(b, x, 1, g * each, (g + 1) * each)
        column = b.transpose(interpolated(b, channels_behind(b, piece, kind), axes, extents), perm=(0, 2, 1))
        if mask is not None:
            weights = part(b, mask, 1, g * taps, (g + 1) * taps)
            column = b.mul(column, b.reshape(cast(b, weights, kind), shape=(batch, 1, taps * points)))
        columns.append(b.reshape(column, shape=(batch, each, taps, points)))
    inner = channels // groups * taps
    stacked = b.reshape(b.concat(*columns, axis=1), shape=(batch, groups, inner, points))
    rows = b.reshape(cast(b, weight, kind), shape=(groups, weight.shape[0] // groups, inner))
    y = b.reshape(b.matmul(rows, stacked), shape=(batch, weight.shape[0], *outs))
    if bias is not None:
        y = b.add(y, b.reshape(cast(b, bias, kind), shape=(-1, 1, 1)))
    return cast(b, y, x.dtype)


def _tap_places(kernel: Sequence[int], outs: Sequence[int], axis: int, stride: int, dilation: int, pad: int) -> Array:
    """Returns the position of each output's taps on an axis without offsets, (taps * points,)."""
    tap = np.indices(tuple(kernel))[axis].reshape(-1, 1)
    out = np.indices(tuple(outs))[axis].reshape(1, -1)
    places: Array = (tap * dilation + out * stride - pad).astype(np.float32)
    return places.reshape(-1)


def _deform_conv(
    x: Array, weight: Array, offset: Array, bias: Array | None, mask: Array | None, strides: Shape, dilations: Shape,
    pad: Shape, groups: int, offset_groups: int,
) -> Array:  # fmt: skip
    kernel, outs = weight.shape[2:], offset.shape[2:]
    shared, each = x.shape[1] // offset_groups, x.shape[1] // groups
    rows = weight.shape[0] // groups
    moves = offset.reshape(x.shape[0], offset_groups, *kernel, 2, *outs)
    weights = np.ones((x.shape[0], offset_groups, *kernel, *outs)) if mask is None else mask.reshape(
        x.shape[0], offset_groups, *kernel, *outs)  # fmt: skip
    y = np.zeros((x.shape[0], weight.shape[0], *outs))
    for item, channel, kh, kw, row, column in np.ndindex(*x.shape[:2], *kernel, *outs):
        g = channel // shared
        at = [row * strides[0] + kh * dilations[0] - pad[0], column * strides[1] + kw * dilations[1] - pad[2]]
        at = [v + float(moves[item, g, kh, kw, i, row, column]) for i, v in enumerate(at)]
        axes = [pairs_of(v, e, "bilinear", "zeros", True) for v, e in zip(at, x.shape[2:], strict=True)]
        value = read_pairs(x[item, channel : channel + 1], axes)[0] * weights[item, g, kh, kw, row, column]
        group = channel // each
        y[item, group * rows : (group + 1) * rows, row, column] += (
            weight[group * rows : (group + 1) * rows, channel % each, kh, kw] * value
        )
    return y if bias is None else y + bias.reshape(-1, 1, 1)


OPS = (
    Op(
        name="deform_conv",
        doc="A convolution whose taps are moved by offset (N, offset_groups * taps * 2, H, W), dy and dx for each tap "
            "and output. The mask (N, offset_groups * taps, H, W) weighs the taps. Shapes: x (N, C, ...), weight "
            "(out, C / groups, height, width), bias (out,).",
        inputs=("x", "weight", "offset", "bias?", "mask?"),
        attrs={"strides": integers((1,)), "dilations": integers((1,)), "pad": integers((0,)), "groups": integer(1),
               "offset_groups": integer(1)},
        shape=_deform_shape, dtype=floating, canonical=_deform_canonical, expand=_expand_deform_conv, ref=_deform_conv,
        cases=(Case(((2, 4, 5, 6), (6, 2, 3, 3), (2, 36, 5, 6), (6,), (2, 18, 5, 6)), {"groups": 2, "offset_groups": 2, "pad": 1}),
               Case(((1, 2, 6, 6), (3, 2, 2, 2), (1, 8, 3, 2)), {"strides": 2, "dilations": (1, 3)})),
    ),
)  # fmt: skip

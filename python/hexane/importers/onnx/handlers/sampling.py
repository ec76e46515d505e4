"""Ops that read tensors between their elements: GridSample, RoiAlign, DeformConv."""

from collections.abc import Sequence
from functools import reduce
from math import prod

import numpy as np

from hexane.dtypes import FP32, INT64
from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.importers.onnx.handlers.arithmetic import cast
from hexane.importers.onnx.handlers.constants import limited
from hexane.importers.onnx.node import Builder, OnnxNode, Result

CUBIC = -0.75
Taps = list[tuple[Value, Value]]  # (index of an element, its weight), both (batch, points) in fp32


def pick(b: Builder, flat: Value, indices: Sequence[Value], extents: Sequence[int]) -> Result:
    """(batch, points, channels) of flat (batch, elements, channels), by an index along each of the extents."""
    at = cast(b, indices[0], INT64)
    for index, extent in zip(indices[1:], extents[1:], strict=True):
        at = b.add(b.mul(at, extent), cast(b, index, INT64))
    return b.gather_nd(flat, b.expand_dims(at, axes=(-1,)), batch_dims=1)


def channels_behind(b: Builder, x: Value) -> Result:
    """(batch, elements, channels) in fp32 of (batch, channels, extents...)."""
    flat = b.reshape(cast(b, x, FP32), shape=(*x.shape[:2], prod(x.shape[2:])))
    return b.transpose(flat, perm=(0, 2, 1))


def interpolated(b: Builder, flat: Value, taps: Sequence[Taps], extents: Sequence[int]) -> Value:
    """The weighted sum over every combination of the axes' taps."""
    total: Value | None = None
    combinations: list[list[tuple[Value, Value]]] = [[]]
    for axis in taps:
        combinations = [[*c, tap] for c in combinations for tap in axis]
    for combination in combinations:
        found = pick(b, flat, [i for i, _ in combination], extents)
        weight = reduce(lambda x, y: b.mul(x, y), [w for _, w in combination])
        term = b.mul(found, b.expand_dims(weight, axes=(-1,)))
        total = term if total is None else b.add(total, term)
    assert total is not None
    return total


def linear_taps(b: Builder, at: Value) -> Taps:
    low = b.floor(at)
    part = b.sub(at, low)
    return [(low, b.sub(1.0, part)), (b.add(low, 1.0), part)]


def _cubic_taps(b: Builder, at: Value) -> Taps:
    low = b.floor(at)
    part = b.sub(at, low)

    def outer(t: Value) -> Result:
        """((a t - 5 a) t + 8 a) t - 4 a, for 1 <= t <= 2."""
        inner = b.add(b.mul(b.sub(b.mul(t, CUBIC), 5 * CUBIC), t), 8 * CUBIC)
        return b.sub(b.mul(inner, t), 4 * CUBIC)

    def near(t: Value) -> Result:
        """((a + 2) t - (a + 3)) t t + 1, for 0 <= t <= 1."""
        return b.add(b.mul(b.mul(b.sub(b.mul(t, CUBIC + 2), CUBIC + 3), t), t), 1.0)

    return [
        (b.sub(low, 1.0), outer(b.add(part, 1.0))),
        (low, near(part)),
        (b.add(low, 1.0), near(b.sub(1.0, part))),
        (b.add(low, 2.0), outer(b.sub(2.0, part))),
    ]


def kept_inside(b: Builder, taps: Taps, extent: int) -> Taps:
    """Taps beyond the edge weigh nothing."""
    nothing, last = b.const(np.float32(0)), extent - 1.0
    result = []
    for index, weight in taps:
        inside = b.logical_and(b.greater_equal(index, 0.0), b.less_equal(index, last))
        result.append((_clipped(b, index, extent), b.select(inside, weight, nothing)))
    return result


def _clipped(b: Builder, index: Value, extent: int) -> Result:
    return b.clip(index, alpha=0.0, beta=extent - 1.0)


def _reflected(b: Builder, at: Value, low: float, high: float) -> Result:
    """at, bounced off the borders until it lies between them."""
    span = high - low
    if span == 0:
        return b.mul(at, 0.0)
    beyond = b.abs(b.sub(at, low))
    times = b.floor(b.real_div(beyond, span))
    rest = b.sub(beyond, b.mul(times, span))
    odd = b.greater(b.sub(times, b.mul(b.floor(b.mul(times, 0.5)), 2.0)), 0.5)
    return b.select(odd, b.sub(high, rest), b.add(rest, low))


def _outside(b: Builder, at: Value, low: float, high: float) -> Result:
    return b.logical_or(b.less(at, low), b.greater(at, high))


def grid_sample(b: Builder, n: OnnxNode) -> Result:
    """The grid's last axis holds coordinates in -1..1, that of x's last axis first."""
    x, grid = n.value(0), n.value(1)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(n.attrs["mode"], n.attrs["mode"])
    padding, corners = n.attrs["padding_mode"], bool(n.attrs["align_corners"])
    extents = x.shape[2:]
    if mode not in ("nearest", "linear", "cubic") or padding not in ("zeros", "border", "reflection"):
        raise Error(f"got mode {mode!r} and padding_mode {padding!r}, need those of ONNX")
    if mode == "cubic" and padding == "border":  # whether places or only taps move to the border
        raise Error("got mode cubic with padding_mode border, whose meaning differs between ONNX and its peers")
    fits = len(x.shape) >= 3 and len(grid.shape) == len(x.shape) and grid.shape[-1] == len(extents)
    if not fits or grid.shape[0] != x.shape[0] or x.dtype.kind != "float" or 0 in extents:
        raise Error(f"got x {x.type} and a grid of shape {grid.shape}, need floats and a coordinate for each axis")
    points = prod(grid.shape[1:-1])
    flat_grid = b.reshape(cast(b, grid, FP32), shape=(x.shape[0], points, len(extents)))
    taps = []
    for axis, extent in enumerate(extents):
        at = len(extents) - 1 - axis
        place = b.slice_by_index(flat_grid, begin=(0, 0, at), end=(x.shape[0], points, at + 1))
        place = b.add(b.reshape(place, shape=(x.shape[0], points)), 1.0)
        if corners:
            place = b.mul(b.mul(place, 0.5), extent - 1.0)
        else:
            place = b.mul(b.sub(b.mul(place, float(extent)), 1.0), 0.5)
        taps.append(_padded_taps(b, place, extent, mode, padding, corners))
    y = interpolated(b, channels_behind(b, x), taps, extents)
    y = b.reshape(b.transpose(y, perm=(0, 2, 1)), shape=(*x.shape[:2], *grid.shape[1:-1]))
    return cast(b, y, x.dtype)


def _padded_taps(b: Builder, at: Value, extent: int, mode: str, padding: str, corners: bool) -> Taps:
    low, high = (0.0, extent - 1.0) if corners else (-0.5, extent - 0.5)
    if mode == "nearest":
        at = b.round(at)
    if padding == "border":
        at = b.select(_outside(b, at, low, high), _clipped(b, at, extent), at)
    elif padding == "reflection":
        at = b.select(_outside(b, at, low, high), _reflected(b, at, low, high), at)
    if mode == "nearest":
        taps = [(at, b.broadcast_to(b.const(np.float32(1)), shape=at.shape))]
    else:
        taps = linear_taps(b, at) if mode == "linear" else _cubic_taps(b, at)
    if padding == "zeros":
        return kept_inside(b, taps, extent)
    if padding == "reflection":
        taps = [(b.select(_outside(b, i, low, high), _reflected(b, i, low, high), i), w) for i, w in taps]
    return [(_clipped(b, i, extent), w) for i, w in taps]


def roi_align(b: Builder, n: OnnxNode) -> Result:
    """Each region is a grid of bins, each bin the mean (or maximum) of sampling_ratio^2 points."""
    x, rois, batch = n.value(0), n.value(1), n.value(2)
    samples, mode = n.attrs["sampling_ratio"], n.attrs["mode"]
    half = n.attrs.get("coordinate_transformation_mode", "output_half_pixel")
    if samples < 1 or mode not in ("avg", "max") or half not in ("half_pixel", "output_half_pixel"):
        raise Error(f"got sampling_ratio {samples}, mode {mode!r} and {half!r}, need a positive ratio, avg or max")
    if len(x.shape) != 4 or 0 in x.shape or rois.shape != (*batch.shape, 4):
        raise Error(
            f"got x {x.shape}, rois {rois.shape} and batch_indices {batch.shape}, need (N, C, H, W), (R, 4), (R,)"
        )
    outs = (n.attrs["output_height"], n.attrs["output_width"])
    if min(outs) < 1:
        raise Error(f"got the output extents {outs}, need positive ones")
    count, channels, extents = rois.shape[0], x.shape[1], x.shape[2:]
    corners = b.mul(cast(b, rois, FP32), float(n.attrs["spatial_scale"]))
    if half == "half_pixel":
        corners = b.sub(corners, 0.5)
    axes = []
    for i, (extent, out) in enumerate(zip(extents, outs, strict=True)):
        limited(out * samples, np.dtype(np.float32))
        begin, end = (b.slice_by_index(corners, begin=(0, c), end=(count, c + 1)) for c in (1 - i, 3 - i))
        length = b.sub(end, begin)
        if half != "half_pixel":
            length = b.maximum(length, 1.0)
        steps = (np.arange(out * samples, dtype=np.float32) // samples
                 + (np.arange(out * samples, dtype=np.float32) % samples + np.float32(0.5)) / np.float32(samples))  # fmt: skip
        at = b.add(begin, b.mul(b.mul(length, 1 / out), b.const(steps)))
        outside = _outside(b, at, -1.0, float(extent))
        low = linear_taps(b, _clipped(b, at, extent))
        nothing = b.const(np.float32(0))
        axes.append([(_clipped(b, index, extent), b.select(outside, nothing, w)) for index, w in low])
    grid = tuple(out * samples for out in outs)
    taps = [[(_over(b, v, grid, i), _over(b, w, grid, i)) for v, w in axis] for i, axis in enumerate(axes)]
    flat = b.gather(channels_behind(b, x), cast(b, batch, INT64), axis=0)
    bins = (count, outs[0], samples, outs[1], samples, channels)
    if mode == "avg":
        y = b.reduce_mean(b.reshape(interpolated(b, flat, taps, extents), shape=bins), axes=(2, 4), keep_dims=False)
    else:  # of the weighted elements, as the definition has it
        terms = [interpolated(b, flat, [[v], [h]], extents) for v in taps[0] for h in taps[1]]
        top = reduce(lambda p, q: b.maximum(p, q), terms)
        y = b.reduce_max(b.reshape(top, shape=bins), axes=(2, 4), keep_dims=False)
    return cast(b, b.transpose(y, perm=(0, 3, 1, 2)), x.dtype)


def _over(b: Builder, v: Value, grid: tuple[int, int], axis: int) -> Result:
    """(regions, rows) or (regions, columns) for every point of the grid."""
    deep = b.expand_dims(v, axes=(2 - axis,))
    return b.reshape(b.broadcast_to(deep, shape=(v.shape[0], *grid)), shape=(v.shape[0], prod(grid)))


def deform_conv(b: Builder, n: OnnxNode) -> Result:
    """A convolution whose taps are moved by offsets, (dy, dx) for each group, tap and output, and weighed by a mask."""
    x, weight, offset, bias, mask = n.value(0), n.value(1), n.value(2), n.optional(3), n.optional(4)
    if len(x.shape) != 4 or len(weight.shape) != 4 or len(offset.shape) != 4 or 0 in x.shape:
        raise Error(f"got x {x.shape}, weight {weight.shape} and offset {offset.shape}, need two spatial axes")
    groups, shared = n.attrs["group"], n.attrs["offset_group"]
    kernel, extents, outs = weight.shape[2:], x.shape[2:], offset.shape[2:]
    strides, dilations = n.attrs.get("strides") or (1, 1), n.attrs.get("dilations") or (1, 1)
    pads = n.attrs.get("pads") or (0, 0, 0, 0)
    if not len(strides) == len(dilations) == len(pads) // 2 == 2 or min(*strides, *dilations) < 1 or min(pads) < 0:
        raise Error(f"got strides {strides}, dilations {dilations} and pads {pads}, need those of two axes")
    if n.attrs.get("kernel_shape", kernel) != kernel:
        raise Error(f"kernel_shape: got {n.attrs['kernel_shape']}, need {kernel}")
    batch, channels, taps, points = x.shape[0], x.shape[1], prod(kernel), prod(outs)
    if (
        groups < 1
        or shared < 1
        or channels % shared
        or channels != weight.shape[1] * groups
        or weight.shape[0] % groups
    ):
        raise Error(f"got {channels} channels, {groups} groups and {shared} offset groups for {weight.shape}")
    need = tuple((d + pads[i] + pads[2 + i] - dilations[i] * (k - 1) - 1) // strides[i] + 1
                 for i, (d, k) in enumerate(zip(extents, kernel, strict=True)))  # fmt: skip
    if outs != need or offset.shape != (batch, shared * taps * 2, *outs):
        raise Error(f"got offsets of shape {offset.shape}, need {(batch, shared * taps * 2, *need)}")
    if mask is not None and mask.shape != (batch, shared * taps, *outs):
        raise Error(f"got a mask of shape {mask.shape}, need {(batch, shared * taps, *outs)}")
    limited(taps * points, np.dtype(np.float32))
    offsets = b.reshape(cast(b, offset, FP32), shape=(batch, shared, taps, 2, points))
    columns = []
    for g in range(shared):
        axes = []
        for i, extent in enumerate(extents):
            moved = b.slice_by_index(offsets, begin=(0, g, 0, i, 0), end=(batch, g + 1, taps, i + 1, points))
            start = _tap_places(kernel, outs, i, strides[i], dilations[i], pads[i])
            at = b.add(b.reshape(moved, shape=(batch, taps * points)), b.const(start))
            axes.append(kept_inside(b, linear_taps(b, at), extent))
        part = channels // shared
        piece = b.slice_by_index(x, begin=(0, g * part, 0, 0), end=(batch, (g + 1) * part, *extents))
        found = b.transpose(interpolated(b, channels_behind(b, piece), axes, extents), perm=(0, 2, 1))
        if mask is not None:
            weights = b.slice_by_index(mask, begin=(0, g * taps, 0, 0), end=(batch, (g + 1) * taps, *outs))
            found = b.mul(found, b.reshape(cast(b, weights, FP32), shape=(batch, 1, taps * points)))
        columns.append(b.reshape(found, shape=(batch, part, taps, points)))
    inner = channels // groups * taps
    stacked = b.reshape(b.concat(*columns, axis=1), shape=(batch, groups, inner, points))
    rows = b.reshape(cast(b, weight, FP32), shape=(groups, weight.shape[0] // groups, inner))
    y = b.reshape(b.matmul(rows, stacked), shape=(batch, weight.shape[0], *outs))
    if bias is not None:
        y = b.add(y, b.reshape(cast(b, bias, FP32), shape=(-1, 1, 1)))
    return cast(b, y, x.dtype)


def _tap_places(kernel: Sequence[int], outs: Sequence[int], axis: int, stride: int, dilation: int, pad: int) -> Array:
    """Where along an axis each tap of each output lies without offsets, (taps * points,)."""
    tap = np.indices(tuple(kernel))[axis].reshape(-1, 1)
    out = np.indices(tuple(outs))[axis].reshape(1, -1)
    places: Array = (tap * dilation + out * stride - pad).astype(np.float32)
    return places.reshape(-1)


HANDLERS = {"DeformConv": deform_conv, "GridSample": grid_sample, "RoiAlign": roi_align}

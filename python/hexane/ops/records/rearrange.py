"""More ops that move elements, expanded to slices, pads, reshapes, transposes and gathers: crops, blocks, sequences."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import INT32, INT64
from hexane.errors import Error
from hexane.graph import TensorType, Value
from hexane.ops.attributes import integer, integers, typed
from hexane.ops.compose import Builder, check_lengths, checked_lengths, limited
from hexane.ops.dtype_rules import same_dtype
from hexane.ops.gradients import movement as grads
from hexane.ops.shape_rules import Shape, axis_index
from hexane.ops.slice_rules import expand_size, resolve_size
from hexane.ops.spec import Case, Op
from hexane.ops.view_rules import flatten_shape, resolve_flatten

Array = Any


def _crop_shape(x: Shape, crop_height: Shape, crop_width: Shape) -> Shape:
    if len(x) < 2 or len(crop_height) != 2 or len(crop_width) != 2 or min(*crop_height, *crop_width) < 0:
        raise Error(
            f"got x {x}, crop_height {crop_height} and crop_width {crop_width}, need (.., H, W) and two numbers each"
        )
    out = (*x[:-2], x[-2] - sum(crop_height), x[-1] - sum(crop_width))
    if min(out[-2:]) < 0:
        raise Error(f"got x {x}, crop_height {crop_height} and crop_width {crop_width}, need no more than there is")
    return out


def _expand_crop(b: Builder, x: Value, crop_height: Shape, crop_width: Shape) -> Value:
    rest = [0] * (len(x.shape) - 2)
    begin = (*rest, crop_height[0], crop_width[0])
    end = (*x.shape[:-2], x.shape[-2] - crop_height[1], x.shape[-1] - crop_width[1])
    return b.slice_by_index(x, begin=begin, end=end)


def _crop(x: Array, crop_height: Shape, crop_width: Shape) -> Array:
    (top, bottom), (left, right) = crop_height, crop_width
    return x[..., top : x.shape[-2] - bottom, left : x.shape[-1] - right]


def _center_attrs(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    rank, shape = types[0].rank, attrs["shape"]
    axes = tuple(axis_index(a, rank) for a in attrs["axes"]) or tuple(range(rank))
    if len(shape) != len(axes) or len(set(axes)) != len(axes) or min(shape, default=0) < 0:
        raise Error(f"got the shape {shape} for the axes {axes}, need an extent for each")
    return {"shape": shape, "axes": axes}


def _centered(x: Shape, shape: Shape, axes: tuple[int, ...]) -> Shape:
    wanted = dict(zip(axes, shape, strict=True))
    return tuple(wanted.get(i, d) for i, d in enumerate(x))


def _expand_center(b: Builder, x: Value, shape: Shape, axes: tuple[int, ...]) -> Value:
    """An odd element is cropped or padded at the end."""
    more = [w - d for w, d in zip(_centered(x.shape, shape, axes), x.shape, strict=True)]
    begin = [m // 2 if m >= 0 else -(-m // 2) for m in more]
    return b.pad(x, begin=begin, end=[m - first for m, first in zip(more, begin, strict=True)]) if any(more) else x


def _center(x: Array, shape: Shape, axes: tuple[int, ...]) -> Array:
    y = np.zeros(_centered(x.shape, shape, axes), x.dtype)
    source, target = [], []
    for have, want in zip(x.shape, y.shape, strict=True):
        length = min(have, want)
        source.append(slice((have - length) // 2, (have - length) // 2 + length))
        target.append(slice((want - length) // 2, (want - length) // 2 + length))
    y[tuple(target)] = x[tuple(source)]
    return y


def _unshuffle_shape(x: Shape, downscale_factor: int) -> Shape:
    r = downscale_factor
    if len(x) != 4 or r < 1 or x[2] % r or x[3] % r:
        raise Error(f"got the shape {x} and downscale_factor {r}, need (N, C, H * factor, W * factor)")
    return (x[0], x[1] * r * r, x[2] // r, x[3] // r)


def _expand_unshuffle(b: Builder, x: Value, downscale_factor: int) -> Value:
    n, c, h, w = x.shape
    r = downscale_factor
    y = b.transpose(b.reshape(x, shape=(n, c, h // r, r, w // r, r)), perm=(0, 1, 3, 5, 2, 4))
    return b.reshape(y, shape=_unshuffle_shape(x.shape, r))


def _unshuffle(x: Array, downscale_factor: int) -> Array:
    r = downscale_factor
    places = [x[:, :, i::r, j::r] for i in range(r) for j in range(r)]
    return np.stack(places, 2).reshape(_unshuffle_shape(x.shape, r))


def _sequence_attrs(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, lengths = types
    time, batch = axis_index(attrs["seq_axis"], x.rank), axis_index(attrs["batch_axis"], x.rank)
    if time == batch or lengths.shape != (x.shape[batch],):
        raise Error(f"got seq_axis {time}, batch_axis {batch}, x {x.shape} and lengths {lengths.shape}, need two axes and "
                    "a length for each item of the batch")  # fmt: skip
    limited(x.shape[time], np.dtype(np.int64))
    return {"seq_axis": time, "batch_axis": batch}


def _sequence_dtype(x: Any, lengths: Any, **_: Any) -> Any:
    if lengths not in (INT32, INT64):
        raise Error(f"got lengths of dtype {lengths}, need int32 or int64")
    return x


def _expand_reverse_sequence(b: Builder, x: Value, lengths: Value, seq_axis: int, batch_axis: int) -> Value:
    """Gathers slices by their index on both axes, which are transposed to the front."""
    first, second = sorted((seq_axis, batch_axis))
    perm = [first, second, *(i for i in range(len(x.shape)) if i not in (first, second))]
    moved = b.transpose(x, perm=perm) if perm != sorted(perm) else x
    line = ((-1, 1), (1, -1)) if seq_axis == first else ((1, -1), (-1, 1))
    steps = b.const(np.arange(x.shape[seq_axis]).reshape(line[0]))
    items = b.const(np.arange(x.shape[batch_axis]).reshape(line[1]))
    length = b.reshape(checked_lengths(b, lengths, x.shape[seq_axis]), shape=items.shape)
    at = b.select(b.less(steps, length), b.sub(b.sub(length, 1), steps), steps)
    places = (at, items) if seq_axis == first else (items, at)
    gathered = b.gather_nd(moved, b.stack(*(b.broadcast_to(v, shape=at.shape) for v in places), axis=2))
    return b.transpose(gathered, perm=[perm.index(i) for i in range(len(perm))]) if perm != sorted(perm) else gathered


def _reverse_sequence(x: Array, lengths: Array, seq_axis: int, batch_axis: int) -> Array:
    check_lengths(lengths, x.shape[seq_axis])
    y = np.moveaxis(x, (batch_axis, seq_axis), (0, 1)).copy()
    for item, length in zip(y, lengths, strict=True):
        item[:length] = item[:length][::-1].copy()
    return np.moveaxis(y, (0, 1), (batch_axis, seq_axis))


def _interleave_shape(x: Shape, block: Shape, begin: Shape, shape: Shape, groups: int) -> Shape:
    if len(x) != 4 or any(len(v) != 2 for v in (block, begin, shape)) or min(*block, groups) < 1:
        raise Error(
            f"got x {x}, block {block}, begin {begin}, shape {shape} and groups {groups}, need (N, H, W, C), pairs and"
            " groups from 1 on"
        )
    if x[3] % (prod(block) * groups):
        raise Error(
            f"got {x[3]} channels, need a multiple of {prod(block) * groups}: {groups} groups of {block[0]} x"
            f" {block[1]} pixels"
        )
    for there, size, first, wanted in zip(x[1:3], block, begin, shape, strict=True):
        if not 0 <= first < size or not 0 <= wanted <= max(0, there * size - first):
            raise Error(
                f"got {wanted} from {first} on, need a part of {there} blocks of {size}, from the first of them on"
            )
    return (x[0], *shape, x[3] // prod(block))


def _interleave(x: Array, block: Shape, begin: Shape, shape: Shape, groups: int) -> Array:
    n, h, w, c = x.shape
    y = x.reshape(n, h, w, groups, *block, c // (prod(block) * groups)).transpose(0, 1, 4, 2, 5, 3, 6)
    y = y.reshape(n, h * block[0], w * block[1], c // prod(block))
    return y[:, begin[0] : begin[0] + shape[0], begin[1] : begin[1] + shape[1]]


OPS = (
    Op(
        name="crop", doc="x (.., H, W) without crop_height = (top, bottom) rows and crop_width = (left, right) columns.",
        inputs=("x",), attrs={"crop_height": integers(), "crop_width": integers()}, shape=_crop_shape, dtype=same_dtype,
        expand=_expand_crop, moves=("x",), ref=_crop, cases=(Case(((1, 2, 6, 7),), {"crop_height": (1, 2), "crop_width": (0, 3)}),),
    ),
    Op(
        name="center_crop_pad", doc="x cropped or zero-padded on both sides of the axes (all, if none is given) to a "
                                    "shape.",
        inputs=("x",), attrs={"shape": integers(), "axes": integers(())}, canonical=_center_attrs, shape=_centered,
        dtype=same_dtype, expand=_expand_center, moves=("x",), fills=True, ref=_center,
        cases=(Case(((5, 8),), {"shape": (8, 5)}), Case(((3, 4, 5),), {"shape": (7, 2), "axes": (-1, 0)})),
    ),
    Op(
        name="slice_by_size", doc="`size` elements from `begin` on along every axis; a size of -1 extends to the end.",
        inputs=("x",), attrs={"begin": integers(), "size": integers()}, canonical=resolve_size,
        shape=lambda x, begin, size: size, dtype=same_dtype, expand=expand_size,
        moves=("x",), ref=lambda x, begin, size: x[tuple(slice(v, v + s) for v, s in zip(begin, size, strict=True))],
        cases=(Case(((4, 9),), {"begin": (1, -8), "size": (2, -1)}),),
    ),
    Op(
        name="flatten2d", doc="x as a matrix, with the axes before `axis` as rows, as in flatten.", inputs=("x",),
        attrs={"axis": typed(integer(1))}, canonical=resolve_flatten, shape=flatten_shape, dtype=same_dtype,
        expand=lambda b, x, axis: b.flatten(x, axis=axis),
        moves=("x",), ref=lambda x, axis: x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:])),
        cases=(Case(((2, 3, 4),)), Case(((2, 3, 4),), {"axis": -1})),
    ),
    Op(
        name="pixel_unshuffle", doc="(N, C, H * r, W * r) -> (N, C * r * r, H, W): the "
                                    "inverse of pixel_shuffle.", inputs=("x",),
        attrs={"downscale_factor": integer()}, shape=_unshuffle_shape, dtype=same_dtype, expand=_expand_unshuffle,
        moves=("x",), ref=_unshuffle, cases=(Case(((1, 2, 4, 6),), {"downscale_factor": 2}),),
    ),
    Op(
        name="interleave", doc="(N, H, W, G * R * S * C) -> (N, *shape, G * C): unpacks channels into pixels. In each "
            "group, the channels of a pixel become a block of R x S pixels. The result starts at pixel `begin` of the "
            "first block.", inputs=("x",),
        attrs={"block": integers(), "begin": integers((0, 0)), "shape": integers(), "groups": integer(1)}, shape=_interleave_shape, dtype=same_dtype,
        kernel="interleave", kernel_attrs=lambda types, attrs: {name: attrs[name] for name in ("block", "begin", "groups")},
        moves=("x",), ref=_interleave,
        cases=(Case(((1, 3, 2, 24),), {"block": (2, 3), "shape": (6, 6), "groups": 2}),
               Case(((2, 3, 4, 8),), {"block": (2, 2), "begin": (1, 0), "shape": (5, 7)})), grad=grads.interleave,
    ),
    Op(
        name="reverse_sequence", doc="Reverses the first lengths[i] elements along seq_axis in item i of batch_axis.",
        inputs=("x", "lengths"), attrs={"seq_axis": integer(0), "batch_axis": integer(1)}, canonical=_sequence_attrs,
        shape=lambda x, lengths, **_: x, dtype=_sequence_dtype, expand=_expand_reverse_sequence, moves=("x",), ref=_reverse_sequence,
        cases=(Case(arrays=(np.arange(24, dtype=np.float32).reshape(4, 3, 2), np.array([4, 0, 3]))),
               Case(arrays=(np.arange(24).reshape(2, 3, 4), np.array([1, 4], np.int32)),
                    attrs={"seq_axis": -1, "batch_axis": 0}),
               Case(arrays=(np.arange(6, dtype=np.float32).reshape(2, 3), np.array([3, 2])), attrs={"seq_axis": 1, "batch_axis": 0})),
    ),
)  # fmt: skip

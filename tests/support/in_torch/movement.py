"""Ops that move elements, in PyTorch: by torch's own function, or by where the reference interpreter finds each element."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from hexane.graph import Array, Node
from hexane.ops import evaluate

T = torch.Tensor
Ints = Sequence[int]

# Each element of their result is one of the first input, or 0. Which one, the reference says of numbers in order.
MOVED = (
    "depth_to_space", "space_to_depth", "pixel_unshuffle", "crop", "center_crop_pad", "interleave", "reverse_sequence",
    "resize_nearest_neighbor", "upsample_nearest_neighbor", "gather", "gather_along_axis", "gather_nd", "max_unpool",
)  # fmt: skip


def moved(node: Node, arrays: Sequence[Array | None], x: T) -> T:
    """The op as one look-up of elements; place 0 holds a 0."""
    numbers = np.arange(1, x.numel() + 1, dtype=np.float64).reshape(x.shape)
    at = evaluate(node, [numbers, *arrays[1:]])[0].astype(np.int64)
    return torch.cat([torch.zeros(1, dtype=x.dtype), x.reshape(-1)])[torch.from_numpy(at)]


def scattered(node: Node, arrays: Sequence[Array | None], x: T, updates: T) -> T:
    places = np.arange(x.numel()).reshape(x.shape)
    indices = arrays[1]
    assert indices is not None
    if node.op == "scatter_nd":
        at = places[tuple(np.moveaxis(indices, -1, 0))]
    else:
        axis = node.attrs["axis"]
        part = places[tuple(slice(None) if i == axis else slice(d) for i, d in enumerate(indices.shape))]
        at = np.take_along_axis(part, indices.astype(np.int64) % max(x.shape[axis], 1), axis)
    flat, new = torch.from_numpy(at.reshape(-1)), updates.reshape(-1)
    if node.attrs["mode"] == "add":
        return x.reshape(-1).index_add(0, flat, new).reshape(x.shape)
    last = np.full(x.numel(), -1)
    last[at.reshape(-1)] = np.arange(at.size)  # the last of several writes stays
    source = np.where(last >= 0, x.numel() + last, np.arange(x.numel()))
    return torch.cat([x.reshape(-1), new])[torch.from_numpy(source)].reshape(x.shape)


def slice_by_index(x: T, begin: Ints, end: Ints, stride: Ints) -> T:
    return x[tuple(slice(*bounds) for bounds in zip(begin, end, stride, strict=True))]


def pad(x: T, begin: Ints, end: Ints, mode: str, value: float) -> T:
    if mode == "constant":
        widths = [n for pair in zip(begin[::-1], end[::-1], strict=True) for n in pair]
        return F.pad(x, widths, value=value)
    for axis, (before, after) in enumerate(zip(begin, end, strict=True)):
        around = np.pad(np.arange(x.shape[axis]), (max(before, 0), max(after, 0)), mode=mode)  # type: ignore[call-overload]
        around = around[max(-before, 0) : len(around) - max(-after, 0)]
        x = x.index_select(axis, torch.from_numpy(around))
    return x


def expand_dims(x: T, axes: Ints) -> T:
    rank = x.ndim + len(axes)
    rest = iter(x.shape)
    return x.reshape([1 if i in {a % rank for a in axes} else next(rest) for i in range(rank)])


def squeeze(x: T, axes: Ints) -> T:
    gone = {a % x.ndim for a in axes} if axes else {i for i, d in enumerate(x.shape) if d == 1}
    return x.reshape([d for i, d in enumerate(x.shape) if i not in gone])


def flatten(x: T, axis: int) -> T:
    rows = int(np.prod(x.shape[:axis], dtype=np.int64))
    return x.reshape(rows, x.numel() // rows if rows else int(np.prod(x.shape[axis:], dtype=np.int64)))


def split(x: T, axis: int, num_splits: int, split_sizes: Ints) -> tuple[T, ...]:
    return torch.split(x, list(split_sizes) if split_sizes else x.shape[axis] // num_splits, axis)


def slice_by_size(x: T, begin: Ints, size: Ints) -> T:
    return x[tuple(slice(b, None if n == -1 else b + n) for b, n in zip(begin, size, strict=True))]


def resize_bilinear(x: T, height: int, width: int, layout: str, **a: float) -> T:
    x = x.movedim(-1, 1) if layout == "nhwc" else x
    for axis, size, letter in ((2, height, "h"), (3, width, "w")):
        at = (np.arange(size) * a[f"scale_{letter}"] + a[f"offset_{letter}"]) / a[f"unit_{letter}"]
        at = np.clip(at, 0, x.shape[axis] - 1)
        low = np.floor(at).astype(np.int64)
        share = torch.from_numpy(at - low).reshape([-1 if i == axis else 1 for i in range(4)])
        below, above = (x.index_select(axis, torch.from_numpy(np.minimum(low + n, x.shape[axis] - 1))) for n in (0, 1))
        x = below * (1 - share) + above * share
    return x.movedim(1, -1) if layout == "nhwc" else x


def grid_sample(x: T, grid: T, mode: str, padding_mode: str, align_corners: bool) -> T:
    return F.grid_sample(x, grid, mode, padding_mode, align_corners)


def affine(x: T, theta: T, output_height: int, output_width: int, align_corners: bool, **modes: str) -> T:
    grid = F.affine_grid(theta, [*x.shape[:2], output_height, output_width], align_corners)
    return F.grid_sample(x, grid, align_corners=align_corners, **modes)


FORMS: dict[str, Callable[..., Any]] = {
    "reshape": lambda x, shape: x.reshape(tuple(shape)),
    "transpose": lambda x, perm: x.permute(tuple(perm)),
    "expand_dims": expand_dims, "squeeze": squeeze, "flatten": flatten, "flatten2d": flatten,
    "slice_by_index": slice_by_index, "slice_by_size": slice_by_size,
    "broadcast_to": lambda x, shape: torch.broadcast_to(x, tuple(shape)),
    "split": split,
    "concat": lambda *values, axis: torch.cat(values, axis), "stack": lambda *values, axis: torch.stack(values, axis),
    "pad": pad, "tile": lambda x, reps: torch.tile(x, tuple(reps)), "reverse": lambda x, axes: x.flip(tuple(axes)),
    "pixel_shuffle": lambda x, upscale_factor: F.pixel_shuffle(x, upscale_factor),
    "resize_bilinear": resize_bilinear, "grid_sample": grid_sample, "affine": affine,
    "affine_grid": lambda theta, size, align_corners: F.affine_grid(theta, list(size), align_corners),
}  # fmt: skip

"""Expands the sparse constants of TFLite files."""

from math import prod
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Array

DENSE = 0


def dense(stored: Array, sparsity: Any, shape: tuple[int, ...]) -> Array:
    """Returns the dense tensor. In the traversal order, numbers from the rank on stand for axes inside blocks.
    An axis is dense, or a list of indices.

    Raises Error if the description contradicts itself or the tensor's shape.
    """
    order = [int(v) for v in sparsity["traversal_order"]]
    blocks = [int(v) for v in sparsity["block_map"]]
    metadata, rank = sparsity["dim_metadata"], len(shape)
    if sorted(order) != list(range(rank + len(blocks))) or len(metadata) != len(order):
        raise Error(f"got the traversal order {order}, need all of {rank} axes and {len(blocks)} blocks")
    if any(not 0 <= b < rank for b in blocks) or len(set(blocks)) != len(blocks):
        raise Error(f"got the blocks {blocks}, need axes of {rank}")
    sizes = dict(enumerate(shape))
    for i, axis in enumerate(blocks):
        extent = int(metadata[order.index(rank + i)]["dense_size"])
        if extent < 1 or shape[axis] % extent:
            raise Error(f"got blocks of {extent} for an axis of {shape[axis]}, need a divisor")
        sizes[rank + i], sizes[axis] = extent, shape[axis] // extent
    places = np.zeros((1, 0), np.int64)  # coordinates in traversal order, one row per element
    for level, axis in enumerate(order):
        table = metadata[level]
        if table["format"] == DENSE:
            if len(places) * sizes[axis] > max(stored.size, 1):
                raise Error(f"got {stored.size} elements, need {len(places) * sizes[axis]}")
            indices = np.tile(np.arange(sizes[axis]), len(places))
            counts = np.full(len(places), sizes[axis])
        else:
            segments, found = (_values(table[name]) for name in ("array_segments", "array_indices"))
            counts = np.diff(segments)
            if len(counts) != len(places) or (counts < 0).any() or counts.sum() != len(found) or segments[0]:
                raise Error(f"got {len(segments)} segments for {len(found)} indices, need {len(places) + 1}")
            indices = found
            if ((indices < 0) | (indices >= sizes[axis])).any():
                raise Error(f"got an index outside an axis of {sizes[axis]}")
        places = np.column_stack([np.repeat(places, counts, axis=0), indices])
    if len(places) > stored.size:
        raise Error(f"got {stored.size} elements, need {len(places)}")
    of = {axis: places[:, level] for level, axis in enumerate(order)}
    at = []
    for axis in range(rank):
        index = of[axis]
        if axis in blocks:
            block = rank + blocks.index(axis)
            index = index * sizes[block] + of[block]
        at.append(index)
    made = np.zeros(shape, stored.dtype)
    if prod(shape):
        made[tuple(at)] = stored[: len(places)]
    return made


def _values(table: Any) -> Array:
    return np.zeros(1, np.int64) if table is None else table["values"].astype(np.int64)

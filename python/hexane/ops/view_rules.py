"""Rules of views: attributes, shapes and references of reshape, transpose, squeeze, flatten and broadcasts."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import TensorType
from hexane.ops.shape_rules import Shape, axis_index, axis_indices, broadcast

Array = Any


def resolve_shape(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, shape = types[0], attrs["shape"]
    if shape.count(-1) > 1 or any(d < -1 for d in shape):
        raise Error(f"shape: got {shape}, need dims with at most one -1")
    if -1 in shape:
        rest = prod(d for d in shape if d != -1)
        if rest == 0 or x.size % rest:
            raise Error(f"got the shape {x.shape} for {shape}, need a multiple of {rest} elements")
        shape = tuple(x.size // rest if d == -1 else d for d in shape)
    if prod(shape) != x.size:
        raise Error(f"got the shape {x.shape} of {x.size} elements for {shape} of {prod(shape)}, need as many")
    return {"shape": shape}


def resolve_perm(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    rank = types[0].rank
    perm = tuple(axis_index(a, rank) for a in attrs["perm"]) or tuple(reversed(range(rank)))
    if sorted(perm) != list(range(rank)):
        raise Error(f"perm: got {attrs['perm']} for rank {rank}, need each axis once")
    return {"perm": perm}


def given_shape(_: Shape, shape: Shape) -> Shape:
    return shape


def reshaped(x: Array, shape: Shape) -> Array:
    return np.reshape(x, shape)


def permuted_shape(x: Shape, perm: tuple[int, ...]) -> Shape:
    return tuple(x[p] for p in perm)


def permuted(x: Array, perm: tuple[int, ...]) -> Array:
    return np.transpose(x, perm)


def resolve_axes(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"axes": axis_indices(attrs["axes"], types[0].rank)}


def resolve_new_axes(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"axes": axis_indices(attrs["axes"], types[0].rank + len(attrs["axes"]))}


def expand_dims_shape(x: Shape, axes: tuple[int, ...]) -> Shape:
    rest = iter(x)
    return tuple(1 if i in axes else next(rest) for i in range(len(x) + len(axes)))


def resolve_squeeze(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x = types[0].shape
    axes = axis_indices(attrs["axes"], len(x)) or tuple(i for i, d in enumerate(x) if d == 1)
    if any(x[a] != 1 for a in axes):
        raise Error(f"axes: got {axes} for the shape {x}, need axes of extent 1")
    return {"axes": axes}


def resolve_flatten(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a non-negative `axis` of at most the rank."""
    rank, axis = types[0].rank, attrs["axis"]
    if not -rank <= axis <= rank:
        raise Error(f"axis: got {axis}, need {-rank}..{rank} for rank {rank}")
    return {"axis": axis + rank if axis < 0 else axis}


def flatten_shape(x: Shape, axis: int) -> Shape:
    """Returns the shape of a matrix, with the axes before `axis` as rows and the later axes as columns."""
    return (prod(x[:axis]), prod(x[axis:]))


def broadcast_to_shape(x: Shape, shape: Shape) -> Shape:
    if any(d < 0 for d in shape) or broadcast(x, shape) != shape:
        raise Error(f"got {x} for {shape}, need a shape it broadcasts to")
    return shape

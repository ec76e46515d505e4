"""Rules of slices: attributes, shapes and references of slices by index and by size."""

from collections.abc import Mapping, Sequence
from typing import Any

from hexane.errors import Error
from hexane.graph import TensorType, Value
from hexane.ops.compose import Builder
from hexane.ops.shape_rules import Shape

Array = Any


def resolve_slice(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns begin and end as non-negative numbers within the axis, by Python's rules for slices, and positive
    strides."""
    shape = types[0].shape
    begin, end, stride = attrs["begin"], attrs["end"], attrs["stride"] or (1,) * len(shape)
    if not len(begin) == len(end) == len(stride) == len(shape):
        raise Error(f"got {len(begin)} begins, {len(end)} ends and {len(stride)} strides, need {len(shape)} each")
    if any(s < 1 for s in stride):
        raise Error(f"stride: got {stride}, need positive integers; reverse the axis first")
    bounds = [slice(*b).indices(d) for b, d in zip(zip(begin, end, stride, strict=True), shape, strict=True)]
    return {
        "begin": tuple(b[0] for b in bounds),
        "end": tuple(max(b[0], b[1]) for b in bounds),
        "stride": stride,
    }


def slice_shape(x: Shape, begin: Shape, end: Shape, stride: Shape) -> Shape:
    return tuple(len(range(b, e, s)) for b, e, s in zip(begin, end, stride, strict=True))


def sliced(x: Array, begin: Shape, end: Shape, stride: Shape) -> Array:
    return x[tuple(slice(b, e, s) for b, e, s in zip(begin, end, stride, strict=True))]


def resolve_size(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    shape, begin, size = types[0].shape, attrs["begin"], attrs["size"]
    if not len(begin) == len(size) == len(shape):
        raise Error(f"got {len(begin)} begins and {len(size)} sizes, need {len(shape)} each")
    begin = tuple(v + d if v < 0 else v for v, d in zip(begin, shape, strict=True))
    size = tuple(d - v if s == -1 else s for v, s, d in zip(begin, size, shape, strict=True))
    if any(v < 0 or s < 0 or v + s > d for v, s, d in zip(begin, size, shape, strict=True)):
        raise Error(f"got begin {attrs['begin']} and size {attrs['size']} for the shape {shape}, need a part of it")
    return {"begin": begin, "size": size}


def expand_size(b: Builder, x: Value, begin: Shape, size: Shape) -> Value:
    return b.slice_by_index(x, begin=begin, end=[v + s for v, s in zip(begin, size, strict=True)])

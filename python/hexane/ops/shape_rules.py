"""Shape rules shared by op records, and conversions of axes to non-negative ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from hexane.errors import Error
from hexane.graph import TensorType

Shape = tuple[int, ...]


def same(x: Shape, *_: Shape | None, **__: Any) -> Shape:
    """Returns the shape of the first input."""
    return x


def broadcast(*shapes: Shape | None, **_: Any) -> Shape:
    """Returns the shape of all inputs broadcast, by NumPy's rules."""
    present = [s for s in shapes if s is not None]
    rank = max(map(len, present))
    dims = [1] * rank
    for s in present:
        for i, d in enumerate(s, rank - len(s)):
            if dims[i] == 1:
                dims[i] = d
            elif d not in (1, dims[i]):
                raise Error(f"got the shapes {', '.join(map(str, present))}, need shapes that broadcast")
    return tuple(dims)


def axis_index(axis: int, rank: int) -> int:
    """Returns a non-negative axis. Raises Error outside -rank .. rank-1."""
    if not -rank <= axis < rank:
        raise Error(f"axis: got {axis}, need {-rank}..{rank - 1} for rank {rank}")
    return axis % rank


def one_axis(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes with a non-negative `axis` of the first input."""
    return {**attrs, "axis": axis_index(attrs["axis"], types[0].rank)}


def axis_indices(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Returns sorted non-negative axes. Raises Error for an axis out of range, or given twice."""
    result = sorted(axis_index(a, rank) for a in axes)
    if len(set(result)) != len(result):
        raise Error(f"axes: got {tuple(axes)}, need each axis once")
    return tuple(result)


def reduced(x: Shape, axes: tuple[int, ...] = (), keep_dims: bool = True, **_: Any) -> Shape:
    """Returns the shape after a reduction of `axes`; no axes mean all."""
    indices = axis_indices(axes, len(x)) or tuple(range(len(x)))
    return tuple(1 if i in indices else d for i, d in enumerate(x) if keep_dims or i not in indices)


def resolve_reduced_axes(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes of a reduction with sorted non-negative `axes`; no axes mean all."""
    rank = types[0].rank
    return {"axes": axis_indices(attrs["axes"], rank) or tuple(range(rank)), "keep_dims": attrs["keep_dims"]}

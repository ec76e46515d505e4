"""Finds the MIL ops that a node of a graph is written as."""

from collections.abc import Callable, Mapping
from typing import Any

from hexane.graph import TensorType
from hexane.targets.floors import mil_ops

Types = tuple[TensorType | None, ...]
Attrs = Mapping[str, Any]


def in_mil(op: str, types: Types, attrs: Attrs) -> tuple[str, ...] | None:
    """The MIL ops that a node is written as, () if it needs none, None if that is unknown."""
    chosen = _BY_ATTRS.get(op)
    return chosen(types, attrs) if chosen else mil_ops(op)


# ---- ops whose form in MIL their attributes decide ----


def _slice(types: Types, attrs: Attrs) -> tuple[str, ...]:
    steps = attrs["stride"]
    if any(s < 0 for s in steps):
        return ("slice_by_size", "reverse") if all(abs(s) == 1 for s in steps) else ("slice_by_index", "reverse")
    return ("slice_by_size",) if all(s == 1 for s in steps) else ("slice_by_index",)


def _resize(types: Types, attrs: Attrs) -> tuple[str, ...]:
    return {"nearest": ("resize_nearest_neighbor",), "linear": ("resize_bilinear",)}.get(attrs["mode"], ())


def _lp_pool(types: Types, attrs: Attrs) -> tuple[str, ...]:
    return {1: ("abs", "avg_pool", "mul"), 2: ("l2_pool",)}.get(attrs["p"], ("pow", "avg_pool", "mul"))


def _conv(op: str) -> Callable[[Types, Attrs], tuple[str, ...]]:
    def names(types: Types, attrs: Attrs) -> tuple[str, ...]:
        rank = types[0].rank if types[0] is not None else 4
        return {3: ("reshape", op), 5: ("conv_3d",)}.get(rank, (op,))

    return names


def _prelu(types: Types, attrs: Attrs) -> tuple[str, ...]:
    return ("prelu",) if types[0] is not None and types[0].rank >= 3 else ("relu", "mul", "sub")


_BY_ATTRS: dict[str, Callable[[Types, Attrs], tuple[str, ...]]] = {
    "slice_by_index": _slice,
    "resize": _resize,
    "lp_pool": _lp_pool,
    "conv": _conv("conv"),
    "conv_transpose": _conv("conv_transpose"),
    "prelu": _prelu,
}

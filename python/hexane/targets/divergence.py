"""Predicts, without a run, whether two chips may give different numbers for an op in fp16."""

from collections.abc import Sequence
from typing import Literal

from hexane.targets.chip import Chip
from hexane.targets.query import load_chip

Divergence = Literal["saturation", "round1", "ulp1", "none"]

SLICES = ("slice_by_size", "slice_by_index", "crop")
SQUARED = (
    "rms_norm",
    "layer_norm",
    "group_norm",
    "instance_norm",
    "l2_norm",
    "reduce_l2_norm",
    "mean_variance_norm",
    "batch_norm_training",
)


def fp16_divergence(
    op: str,
    first: str | Chip,
    second: str | Chip,
    *,
    begin: Sequence[int] = (),
    largest: float | None = None,
    extent: int | None = None,
) -> Divergence:
    """The strongest reason why two chips may give different numbers for an op.

    "saturation": on one chip, a slice that begins inside its last axis (`begin`) makes numbers above a limit infinite,
    unless the largest number is known to be below. "round1": one chip squares a reduction's result without rounding the
    result first. "ulp1": one chip sums a reduction of this extent (None: unknown) in another order, which changes at
    most the last place. "none": no known difference. Sources: the facts hazards.width_slice_limit,
    gates.square_after_reduction and extents.reduction_route of both chips. Raises Error for a target that is no chip.
    """
    a, b = load_chip(first), load_chip(second)
    if op in SLICES and begin and begin[-1]:
        limits = a.hazards.width_slice_limit, b.hazards.width_slice_limit
        if limits[0] != limits[1] and (
            largest is None or largest > min(limit for limit in limits if limit is not None)
        ):
            return "saturation"
    if op in SQUARED and a.gates.square_after_reduction != b.gates.square_after_reduction:
        return "round1"
    if op.startswith("reduce_") or op.endswith("_norm") or op in ("softmax", "log_softmax", "logsumexp"):
        routes = [_transposes(chip.extents.reduction_route, extent) for chip in (a, b)]
        if routes[0] != routes[1]:
            return "ulp1"
    return "none"


def _transposes(route: int | None, extent: int | None) -> object:
    """True if a reduction goes through a transpose. If the extent is unknown, the least extent with a transpose, or
    None."""
    return route if extent is None or route is None else extent >= route

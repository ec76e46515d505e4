"""Finds nodes for which a chip silently computes something else than the network says."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from hexane.graph import Node
from hexane.targets import Chip
from hexane.validate.in_mil import Types
from hexane.validate.width_slices import joins_width_slices

SLICES = ("slice_by_index", "slice_by_size")


class Hazard(NamedTuple):
    """A silent deviation of a chip, and the source that found it."""

    reason: str
    source: str


# Results of these ops are at most 1, so no slice of them becomes infinite.
SMALL = frozenset(("softmax", "sigmoid", "tanh", "sigmoid_hard", "erf", "softsign", "sin", "cos"))


def hazard(node: Node, chip: Chip) -> Hazard | None:
    """The silent deviation of a chip in a node that it runs; None if there is none."""
    if joins_width_slices(node) and chip.hazards.width_slice_concat:
        return joined_slices(chip)
    if node.op in SLICES and node.inputs[0] is not None and node.inputs[0].node.op in SMALL:
        return None
    return hazard_of(node.op, tuple([None if v is None else v.type for v in node.inputs]), node.attrs, chip)


def joined_slices(chip: Chip) -> Hazard:
    fact = chip.facts["hazards.width_slice_concat"]
    reason = "the chip gives wrong elements where several slices that begin inside a row are concatenated"
    return Hazard(reason, f"{fact.source}, {fact.status}")


def hazard_of(op: str, types: Types, attrs: Mapping[str, Any], chip: Chip) -> Hazard | None:
    """The silent deviation of an op. On some chips a slice that begins inside a row turns large numbers into infinity,
    and no chip finds a NaN. Ops with such a deviation are allowed, and the report mentions the deviation."""
    if op == "is_nan":
        return Hazard("no number is found to be NaN: the engine reads a NaN as infinity", "docs/numerics.md, measured")
    limit = chip.hazards.width_slice_limit
    begins = attrs.get("begin") if op in SLICES else None
    if limit is None or not types or types[0] is None or not begins or not begins[-1]:
        return None
    fact = chip.facts["hazards.width_slice_limit"]
    reason = f"numbers above {limit} become infinity, because the slice of the last axis does not begin at 0"
    return Hazard(reason, f"{fact.source}, {fact.status}")

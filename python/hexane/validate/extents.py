"""Checks the extents of tensors: a chip's limits for each axis, and additional limits of single ops."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import gt
from typing import Any

from hexane.graph import TensorType
from hexane.targets import Chip, Verdict
from hexane.validate.in_mil import Types
from hexane.validate.rule import AXES, judged, refused
from hexane.validate.verdict_cache import VerdictCache, cache_of

WEIGHTED = {"conv", "conv_transpose", "batch_norm", "instance_norm", "layer_norm", "group_norm", "rms_norm"}
GATHERS = {"gather", "gather_along_axis", "gather_nd"}


def largest(t: TensorType, axis: int, chip: Chip) -> int:
    """The largest extent of this axis that the chip takes for a tensor of this rank."""
    return cache_of(chip).largest[t.rank][axis]


def fits(t: TensorType, chip: Chip) -> bool:
    """True if the chip takes a tensor of this rank and these extents."""
    most = cache_of(chip).largest.get(t.rank)
    return most is not None and not any(map(gt, t.shape, most))


def live_types(op: str, types: Types, constant: tuple[bool, ...]) -> list[TensorType]:
    """The inputs whose extents are checked: computed ones, empty floats, and the constant table of a gather. Of the ops
    in `WEIGHTED` only the first input counts, because weights are part of the layer."""
    data = types[:1] if op in WEIGHTED else types
    live = [
        t
        for t, known in zip(data, constant, strict=False)
        if t is not None and (not known or (0 in t.shape and t.dtype.kind == "float"))
    ]
    if op in GATHERS and constant[0] and types[0] is not None:
        live.append(types[0])  # a constant table with computed indices
    return live


def plain(types: Sequence[TensorType], cache: VerdictCache) -> bool:
    """True if all types are floats or bools of extents that the chip takes, as nearly all types are. `dtypes.integers`
    and `extents` find nothing in such types."""
    for t in types:
        shape, most = t.shape, cache.largest.get(len(t.shape))
        if most is None or t.dtype.kind not in ("float", "bool") or 0 in shape or any(map(gt, shape, most)):
            return False
    return True


def extents(op: str, types: tuple[TensorType, ...], cache: VerdictCache) -> Iterator[Verdict]:
    chip = cache.chip
    for t in types:
        largest = cache.largest.get(len(t.shape))
        if largest is None:
            said = "Cannot reshape a tensor of rank > 5" if op == "reshape" else ""
            got = f"{t} has {t.rank} axes, the chip takes {chip.extents.rank}"
            yield _oversize(chip, "rank", got, "fold axes into one", reject=said)
            continue
        for axis, extent, most in zip(AXES.get(t.rank, ("width",) * t.rank), t.shape, largest, strict=True):
            if extent > most:
                pieces = f"split the axis into pieces of at most {most}"
                change = "write it on four axes" if axis == "depth" and most == 1 else pieces
                yield _oversize(chip, axis, f"{t}: {axis} {extent}, the chip takes {most}", change)
        if 0 in t.shape:
            yield refused(f"{t} has an axis of extent 0", "extent 0", "guide ch4", "leave the empty tensor out")


def _transposed(x: TensorType, attrs: Mapping[str, Any], chip: Chip) -> Iterator[Verdict]:
    most = chip.extents.transpose_elements
    if most is not None and x.size > most:
        got = f"{x} has {x.size} elements, a transpose takes {most}"
        yield _oversize(chip, "transpose_elements", got, "transpose pieces and concatenate them")


# Limits of single ops besides the extents of their tensors.
OWN_EXTENTS = {"transpose": _transposed}


def _oversize(chip: Chip, field: str, reason: str, change: str, reject: str = "") -> Verdict:
    fact = chip.facts[f"extents.{field}"]
    verdict = judged("oversize", reason, f"extents.{field}", fact.source, fact.status, change)
    return replace(verdict, reject=reject, published=bool(reject))

"""The third check of a program: the driver validates a compiled program again when it loads it.

Sources publish that this check exists, and the four forms of tensors, but not the conditions of the check. The rules
here hold for the tensors of all loaded programs that were seen.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from hexane.targets import Chip, Verdict

FORMS = ("single plane", "multi-plane", "uncompressed", "tiled compressed")
TILES = (16, 32)  # edges of the tiles of lossless compression; guide ch34


@dataclass(frozen=True, slots=True)
class Matrix:
    """A tensor of a compiled program, as it is stored in memory. Strides and sizes are in bytes."""

    name: str
    form: str
    planes: int
    rows: int
    row_bytes: int
    row_stride: int
    plane_stride: int
    size: int
    tile: int = 0


def validate_program(matrices: Iterable[Matrix], cpu_subtype: int, chip: Chip) -> list[Verdict]:
    """The reasons why the driver refuses to load a compiled program. cpu_subtype: the generation in its header."""
    result = []
    if chip.cpu_subtype is not None and cpu_subtype != chip.cpu_subtype:
        result.append(_refused(f"program of generation {cpu_subtype}: {chip.label} takes {chip.cpu_subtype}"))
    for m in matrices:
        result += [_refused(f"{m.name}: {message}") for message in _wrong(m, chip)]
    return result


def _wrong(m: Matrix, chip: Chip) -> list[str]:
    if m.form not in FORMS:
        return [f"got the form {m.form!r}, need one of {', '.join(FORMS)}"]
    result = []
    if m.form == "single plane" and m.planes != 1:
        result.append(f"got {m.planes} planes, need 1")
    if m.form == "multi-plane" and m.planes < 2:
        result.append(f"got {m.planes} plane, need 2 or more")
    if m.form == "tiled compressed":
        if m.tile not in TILES:
            result.append(f"got tiles of {m.tile}, need 16 or 32")
    elif m.row_stride < m.row_bytes or m.row_stride % chip.memory.row_alignment:
        result.append(
            f"got rows {m.row_stride} bytes apart, need a multiple of {chip.memory.row_alignment}, {m.row_bytes} or"
            " more"
        )
    elif m.plane_stride < m.row_stride * m.rows:
        result.append(f"got planes {m.plane_stride} bytes apart, need {m.row_stride * m.rows} or more")
    if m.size < m.plane_stride * m.planes or m.size % chip.memory.page:
        result.append(f"got {m.size} bytes, need a multiple of {chip.memory.page}, {m.plane_stride * m.planes} or more")
    return result


def _refused(reason: str) -> Verdict:
    return Verdict(
        verdict="rejected",
        reason=reason,
        rule="loading a program",
        source="guide ch22; guide app. C",
        status="inferred",
        reject=reason,
    )

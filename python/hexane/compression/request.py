"""What a user asks for: the encoding of weights, for all layers or some, or a tolerance."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from difflib import get_close_matches
from math import isfinite
from typing import Any

from hexane.errors import Error

PALETTES = {f"palette{bits}": bits for bits in (1, 2, 3, 4, 6, 8)}
ALIASES = {"int4": "palette4"}  # what the chips' facts call so
MODES = ("none", "int8", *PALETTES, "palette4:g16", *ALIASES, "auto")
_GROUPED = re.compile(r"(palette[123468]):g([1-9][0-9]{0,5})")
Feeds = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Compression:
    """How weights are stored (docs/compression.md). Raises Error for a mode that is none, and for a tolerance that is
    not above 0."""

    mode: str = "auto"
    """"int8": integers with a scale for each output channel. "palette1", "palette2", "palette3", "palette4",
    "palette6", "palette8": indices of so many bits into a table for each weight. "palette4:g16", or another palette and
    number: a table for each group of 16 output channels. "int4": palette4. "none": as they are. "auto": for each layer
    the smallest of these with which the network's outputs stay within `tolerance`."""

    _: KW_ONLY

    per_layer: Mapping[str, str] = field(default_factory=dict)
    """Modes of some layers: the key is a pattern as in file names, `*layer4*`, of the place of the layer as reports
    print it ("conv at net.py:12", "conv at /layer1/conv"). The first that fits counts; Error for one that fits no
    layer."""

    tolerance: float = 0.02
    """For "auto": the largest relative error of an output, |y - y'| / |y| in Euclidean norms."""

    calibration: Feeds | None = None
    """For "auto": inputs by name, or a sequence of them, on which errors are measured. None: two seeded random ones."""

    def __post_init__(self) -> None:
        for where, mode in (("mode", self.mode), *((f"per_layer[{k!r}]", v) for k, v in self.per_layer.items())):
            _check_mode(where, mode)
        is_number = isinstance(self.tolerance, (int, float)) and not isinstance(self.tolerance, bool)
        if not is_number or not isfinite(self.tolerance) or self.tolerance <= 0:
            raise Error(f"[compress] tolerance: got {self.tolerance!r}, need a number above 0, such as 0.02")

    @property
    def searches(self) -> bool:
        """Whether some layer's encoding depends on the tolerance."""
        return "auto" in (self.mode, *self.per_layer.values())

    @property
    def feeds(self) -> list[Mapping[str, Any]]:
        """The calibration inputs."""
        given = self.calibration
        return [] if given is None else [given] if isinstance(given, Mapping) else list(given)


def as_compression(given: object) -> Compression:
    """A mode, or a Compression. Raises Error for anything else."""
    if isinstance(given, Compression):
        return given
    if isinstance(given, str):
        return Compression(given)
    raise Error(f"[compress] got {given!r}, need one of {', '.join(MODES)}, or an hx.Compression")


def palette_of(encoding: str) -> tuple[int, int] | None:
    """The bits of an index, and the output channels that share a table, 0 for all. None for other encodings."""
    grouped = _GROUPED.fullmatch(encoding)
    if grouped is not None:
        return PALETTES[grouped[1]], int(grouped[2])
    return (PALETTES[encoding], 0) if encoding in PALETTES else None


def _check_mode(where: str, mode: object) -> None:
    if mode in MODES or (isinstance(mode, str) and palette_of(mode) is not None):
        return
    near = get_close_matches(str(mode), MODES, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise Error(f"[compress] {where}: got {mode!r}, need one of {', '.join(MODES)}{hint}")

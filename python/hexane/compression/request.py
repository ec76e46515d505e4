"""A user's request: the encoding of weights, for all layers or some, a tolerance, or a budget of bytes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from difflib import get_close_matches
from math import isfinite
from typing import Any

from hexane.errors import Error
from hexane.memory import byte_count

PALETTES = {f"palette{bits}": bits for bits in (1, 2, 3, 4, 6, 8)}
# "int4" is the name of palette4 in the chips' facts.
ALIASES = {"int4": "palette4", "blockwise": "blockwise4:b32"}
MODES = (
    "none",
    "int8",
    *PALETTES,
    "palette4:g16",
    "palette4:v2",
    "palette4:int8",
    "palette4:g16:int8",
    "blockwise4:b32",
    "blockwise8:b32",
    "sparse",
    "sparse:0.5",
    "sparse:0.5+palette4",
    *ALIASES,
    "auto",
)
# What messages and --help say of the modes without a search.
FIXED_TEXT = (
    "int8, int4, blockwise, sparse, palette1, 2, 3, 4, 6 or 8; and, also with other numbers, palette4:g16 (groups of"
    " channels), palette4:v2 (vectors), palette4:int8, blockwise4:b32, sparse:0.5, sparse:0.5+palette4"
    " (docs/compression.md)"
)
LEAST_ZEROS = 0.5  # With fewer zeros a mask saves little, and MIL stores the weight whole.
TOLERANCE = 0.02  # Default tolerance of "auto".
_GROUPED = re.compile(r"(palette[123468]):g([1-9][0-9]{0,5})")
_VECTORS = re.compile(r"(palette[123468]):v([24])")
_INT8_TABLES = re.compile(r"(palette[23468](?::g[1-9][0-9]{0,5})?):int8")  # two int8 entries and a scale save nothing
_SPARSE = re.compile(r"sparse(?::(0\.[0-9]{1,6}))?")
_BLOCKWISE = re.compile(r"blockwise([48]):b([1-9][0-9]{0,5})")
Feeds = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Compression:
    """The storage of weights (docs/compression.md). Raises Error for an unknown mode, for a tolerance that is not
    above 0, and for `bytes` that are no number."""

    mode: str = "auto"
    """"int8": integers with a scale for each output channel. "palette1", "palette2", "palette3", "palette4",
    "palette6", "palette8": indices of this many bits into a table for each weight. "palette4:g16", or another palette
    and number: a table for each group of 16 output channels. "palette4:v2", other palettes, and v4: an entry has the
    numbers of 2 (or 4) neighbouring output channels, so each number takes 2 (or 1) bits. "palette4:int8",
    "palette4:g16:int8", and others of 2 bits or more: the entries of a table are 8-bit integers with a scale for each
    table. "int4": palette4. "blockwise4:b32": 4-bit integers with a scale for each 32 input channels of an output
    channel; "blockwise8:b32" and other block sizes likewise. "blockwise": blockwise4:b32. "sparse": a mask of the
    nonzero numbers, and these numbers; "sparse:0.5": first sets the smallest half of each weight to 0, or another part
    from 0.5 to below 1. "sparse:0.5+palette4", "sparse+palette4", other parts and palettes, also with tables of groups:
    a mask, and an index into a table for each nonzero number. "none": unchanged. "auto": for each layer the smallest
    encoding with which the network's outputs stay within `tolerance`, of "int8", palettes with one table, palettes of
    2 to 4 bits with tables of 16 channels, "sparse" and "none"; on a chip that streams some of them, only of those and
    "none"."""

    _: KW_ONLY

    per_layer: Mapping[str, str] = field(default_factory=dict)
    """Modes of some layers. A key is a pattern as for file names, such as `*layer4*`. It is matched with the name of
    the layer in reports ("conv at net.py:12", "conv at /layer1/conv"). The first match counts. A pattern that matches
    no layer is an error."""

    tolerance: float | None = None
    """For "auto": the largest relative error of an output, |y - y'| / |y| in Euclidean norms. None: 0.02, or any error
    if `bytes` is given."""

    calibration: Feeds | None = None
    """Inputs by name, or a sequence of them. "auto" measures errors on them; None: on two seeded random inputs. Scales
    of the blockwise modes are fitted to them, so that errors are small where a layer's inputs are large; None: the
    scales are fitted only to the weights. Inputs that make a layer's input infinite or NaN are an error."""

    bytes: int | str | None = None
    """The highest number of bytes of all layers' weights, scales and tables included: 4000000, "4M". "auto" then
    chooses the encodings with the least error of the outputs. If a tolerance is given too, compiling raises Error
    unless both hold."""

    def __post_init__(self) -> None:
        for where, mode in (("mode", self.mode), *((f"per_layer[{k!r}]", v) for k, v in self.per_layer.items())):
            _check_mode(where, mode)
        _check_tolerance(self.tolerance)
        _ = self.budget

    @property
    def searches(self) -> bool:
        """True if the encoding of some layer is searched for."""
        return "auto" in (self.mode, *self.per_layer.values())

    @property
    def limit(self) -> float | None:
        """The largest allowed error; None for no limit."""
        return TOLERANCE if self.tolerance is None and self.bytes is None else self.tolerance

    @property
    def budget(self) -> int | None:
        """The largest number of bytes. Raises Error if `bytes` is no number."""
        return None if self.bytes is None else byte_count("[compress] bytes", self.bytes)

    @property
    def feeds(self) -> list[Mapping[str, Any]]:
        """The calibration inputs."""
        return feeds_of(self.calibration)


def feeds_of(given: Feeds | None) -> list[Mapping[str, Any]]:
    return [] if given is None else [given] if isinstance(given, Mapping) else list(given)


def as_compression(given: object) -> Compression:
    """Returns the Compression of a mode or a Compression. Raises Error for anything else."""
    if isinstance(given, Compression):
        return given
    if isinstance(given, str):
        return Compression(given)
    raise Error(f"[compress] got {given!r}, need an hx.Compression, none, auto, {FIXED_TEXT}")


def palette_of(encoding: str) -> tuple[int, int] | None:
    """Returns the bits of an index and the number of output channels that share a table, 0 for all channels. Also
    returns them for palettes whose zeros have a mask. Returns None for encodings without a palette."""
    scaled, vectors = _INT8_TABLES.fullmatch(encoding), _VECTORS.fullmatch(encoding)
    alone = palette_alone(encoding) if scaled is None else scaled[1]
    grouped = _GROUPED.fullmatch(alone)
    if grouped is not None:
        return PALETTES[grouped[1]], int(grouped[2])
    if vectors is not None:
        return PALETTES[vectors[1]], 0
    return (PALETTES[alone], 0) if alone in PALETTES else None


def vector_of(encoding: str) -> int:
    """Returns the number of output channels in an entry of a palette: 1, 2 or 4."""
    match = _VECTORS.fullmatch(encoding)
    return 1 if match is None else int(match[2])


def has_int8_tables(encoding: str) -> bool:
    """True if the entries of a palette are integers with a scale for each table."""
    return _INT8_TABLES.fullmatch(encoding) is not None


def blocks_of(encoding: str) -> tuple[int, int] | None:
    """Returns the bits of an integer and the number of input channels that share a scale, or None for other
    encodings."""
    match = _BLOCKWISE.fullmatch(encoding)
    return None if match is None else (int(match[1]), int(match[2]))


def zeros_of(encoding: str) -> float | None:
    """Returns the part of a weight that becomes 0, 0 for none, or None for other encodings, including encodings with a
    palette."""
    match = _SPARSE.fullmatch(encoding)
    return None if match is None else float(match[1] or 0)


def zeros_beside_palette(encoding: str) -> float | None:
    """Returns the part that becomes 0 before a palette is made of all other numbers, 0 for none, or None for other
    encodings."""
    pruned, plus, _ = encoding.partition("+")
    return zeros_of(pruned) if plus and palette_of(encoding) is not None else None


def palette_alone(encoding: str) -> str:
    """Returns "palette4" for "sparse:0.5+palette4", and any encoding without "+" unchanged."""
    pruned, plus, palette = encoding.partition("+")
    return palette if plus and zeros_of(pruned) is not None else encoding


def _check_tolerance(given: float | None) -> None:
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if given is not None and (not is_number or not isfinite(given) or given <= 0):
        raise Error(f"[compress] tolerance: got {given!r}, need a number above 0, such as 0.02")


def _is_encoding(mode: str) -> bool:
    return any(parts(mode) is not None for parts in (palette_of, blocks_of, zeros_of))


def _check_mode(where: str, mode: object) -> None:
    if mode in MODES or (isinstance(mode, str) and _is_encoding(mode)):
        pruned = mode.partition("+")[0]
        zeros = zeros_of(pruned) if ":" in pruned else None
        if zeros is not None and zeros < LEAST_ZEROS:
            raise Error(f"[compress] {where}: got {mode!r}, need a part of zeros from {LEAST_ZEROS:g} to below 1")
        return
    near = get_close_matches(str(mode), MODES, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise Error(f"[compress] {where}: got {mode!r}, need none, auto, {FIXED_TEXT}{hint}")

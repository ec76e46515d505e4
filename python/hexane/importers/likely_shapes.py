"""Suggests shapes for inputs with open dims in error messages, as the option --input-shape reads them."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

Dims = Sequence[int | str | None] | None  # dims are numbers, names or None (open); None alone: the rank is open

BATCH, COLORS, IMAGE, LINE, FEATURES, TOKENS, CAPTION, SAMPLES = 1, 3, 224, 320, 32, 128, 16, 16000
LINE_HEIGHTS = (32, 48, 64)  # likely heights of images of one text line
COLOR_COUNTS = (1, 3, 4)
SOUND = ("audio", "wave", "speech", "signal", "pcm", "input_values")
# The suggested extent of a dim, by a word in its name. The first matching word decides.
BY_WORD = (
    (BATCH, ("batch", "bs", "n", "b")),
    (CAPTION, ("caption",)),
    (TOKENS, ("seq", "sequence", "len", "length", "token", "tokens", "time", "past", "frames", "t", "s")),
    (COLORS, ("channel", "channels", "c")),
    (None, ("height", "width", "h", "w")),  # an image's extent, which follows from other dims
)


def likely_shapes(
    inputs: Iterable[tuple[str, str, Dims]], known: Mapping[str, int] | None = None
) -> dict[str, tuple[int, ...]]:
    """Returns a shape for each input. An input is its name, the kind of its dtype ("float", "int", ...) and its dims.
    Dims with the same name get the same extent, which `known` may give.

    x [-1, 3, 48, -1]  ->  (1, 3, 48, 320)      image [N, 3, H, W]  ->  (1, 3, 224, 224)
    ids [batch, sequence]  ->  (1, 128)
    """
    named, inputs = dict(known or {}), list(inputs)
    for sums in (False, True):  # first the dims with one name, then the sums of names
        for name, kind, dims in inputs:
            guesses = _by_place(name, kind, dims or ())
            for place, (dim, guess) in enumerate(zip(dims or (), guesses, strict=True)):
                if isinstance(dim, str) and ("+" in dim) is sums:
                    counts = dim.lower() == "n" and place  # N of waves [batch, N] counts samples
                    named.setdefault(dim, guess if counts else _by_name(dim, named) or guess)
    return {name: _shape(name, kind, dims, named) for name, kind, dims in inputs}


def _shape(name: str, kind: str, dims: Dims, named: Mapping[str, int]) -> tuple[int, ...]:
    if dims is None:
        return (BATCH, TOKENS) if kind in ("int", "uint") else (BATCH, COLORS, IMAGE, IMAGE)
    guesses = _by_place(name, kind, dims)
    return tuple(
        named[dim] if isinstance(dim, str) else guess if dim is None else dim
        for dim, guess in zip(dims, guesses, strict=True)
    )


def shape_option(name: str, shape: Sequence[int]) -> str:
    """--input-shape image:1x3x224x224, with quotes where a shell needs them."""
    return f"--input-shape {shlex.quote(f'{name}:' + 'x'.join(map(str, shape)))}"


def _by_name(dim: str, named: Mapping[str, int]) -> int | None:
    terms = [term.strip() for term in dim.split("+")]
    if len(terms) > 1:  # "past_length + length" is the sum of two extents
        extents = [int(term) if term.isdecimal() else named.get(term) for term in terms]
        return None if None in extents else sum(e for e in extents if e is not None)
    words = set(re.split(r"[^a-z]+", dim.lower()))
    return next((extent for extent, of in BY_WORD if words & set(of)), None)


def _by_place(name: str, kind: str, dims: Sequence[int | str | None]) -> list[int]:
    """Returns a guess for each dim, by its index. Callers ignore the guesses for fixed dims."""
    rank, whole = len(dims), kind in ("int", "uint")
    guesses = [BATCH if rank > 1 and place == 0 else TOKENS for place in range(rank)]
    if not whole and rank <= 2 and rank and any(word in name.lower() for word in SOUND):
        guesses[-1] = SAMPLES
    if rank == 3 and not whole and isinstance(dims[0], int) and isinstance(dims[2], int) and dims[0] > 1:
        guesses[1] = BATCH  # the state of a recurrent network: (layers, batch, units)
    if rank in (4, 5):
        return _of_image(dims, list(range(2, rank)), 1, rank - 1)
    if rank == 3 and dims[2] in COLOR_COUNTS and not any(isinstance(d, int) for d in dims[:2]) and not _batched(dims):
        return [*_extents(dims, [0, 1], IMAGE), COLORS]
    if rank == 3 and dims[0] == COLORS:
        return [COLORS, *_extents(dims, [1, 2], IMAGE)]
    return guesses


def _batched(dims: Sequence[int | str | None]) -> bool:
    return isinstance(dims[0], str) and _by_name(dims[0], {}) == BATCH


def _of_image(dims: Sequence[int | str | None], first: list[int], before: int, after: int) -> list[int]:
    """Returns guesses for images [N, C, .., H, W], or for [N, .., H, W, C] if only the last dim can be the colours.
    first: the indices of the extents if channels come first."""
    last = dims[after] in COLOR_COUNTS and dims[before] not in COLOR_COUNTS
    places, channel = (list(range(1, after)), after) if last else (first, before)
    fixed = dims[channel]
    few = not isinstance(fixed, int) or fixed in COLOR_COUNTS
    guesses = [BATCH] * len(dims)
    guesses[channel] = COLORS
    for place, extent in zip(places, _extents(dims, places, IMAGE if few else FEATURES), strict=True):
        guesses[place] = extent
    if len(places) > 2 and not isinstance(dims[places[0]], int):
        guesses[places[0]] = FEATURES  # video frames, or slices of a volume
    return guesses


def _extents(dims: Sequence[int | str | None], places: Sequence[int], extent: int) -> list[int]:
    """Returns the extents of an image at these indices: a fixed extent for all, or else `extent`."""
    fixed = [d for d in (dims[place] for place in places[-2:]) if isinstance(d, int)]
    if fixed:
        extent = LINE if fixed[0] in LINE_HEIGHTS else fixed[0]
    return [extent] * len(places)

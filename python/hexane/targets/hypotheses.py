"""Hypotheses: what a chip may do although no source says so. They are off unless a caller names them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from hexane.errors import Error, UnsupportedError
from hexane.targets.chip import Chip

CHAINING, RING_BUFFERS = "chaining", "ring_buffers"
HYPOTHESES: Mapping[str, str] = MappingProxyType(
    {CHAINING: "a layer hands its result to the next layer on the chip, tile by tile"}
)
_NOT_COMPILED: Mapping[str, str] = MappingProxyType(
    {RING_BUFFERS: "no op of a network needs one, and no source gives its size (docs/schedule/memory.md)"}
)


def with_hypotheses(chip: Chip, names: Sequence[str]) -> Chip:
    """Returns the chip with these hypotheses taken for true. A name that is given twice counts once. Raises Error for
    an unknown name and for a fact that a source states, UnsupportedError for one that the compiler has no use for."""
    if isinstance(names, str):
        raise Error(f"[explain] hypotheses: got the text {names!r}, need a list: [{names!r}]")
    for name in dict.fromkeys(names):
        if name in _NOT_COMPILED:
            raise UnsupportedError(f"[explain] hypotheses: got {name!r}, which changes nothing: {_NOT_COMPILED[name]}")
        if name not in HYPOTHESES:
            raise Error(f"[explain] hypotheses: got {name!r}, need {' or '.join(map(repr, HYPOTHESES))}")
        known = getattr(chip.gates, name)
        if known is not None:
            raise Error(f"[explain] hypotheses: got {name!r}, which is no hypothesis for {chip.label}: it is {known}")
        chip = replace(chip, gates=replace(chip.gates, **{name: True}))
    return chip

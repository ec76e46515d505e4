"""What a target does with an encoding: its engine streams it, or the compiler folds it to fp16."""

from hexane.compression.request import PALETTES
from hexane.compression.weights import Weight
from hexane.targets import Chip, Target


def streams(weight: Weight, encoding: str, target: Target) -> bool:
    """Whether the encoding stays compressed up to the engine (the facts `formats.streams`, `formats.palette_bits`)."""
    if not isinstance(target, Chip) or not weight.is_kernel or encoding == "none":
        return False
    if encoding == "int8":
        return "int8" in target.formats.streams
    widths = target.formats.palette_bits or ()
    return "int4" in target.formats.streams and any(PALETTES[encoding] <= bits for bits in widths)


def said(weight: Weight, encoding: str, target: Target) -> str:
    """The same in words, for decisions and reports."""
    if not isinstance(target, Chip):
        return "folds on this CPU, which computes with whole weights: no memory gained"
    if streams(weight, encoding, target):
        return "streams"
    if not weight.is_kernel:
        return "folds: an embedding is no kernel of the engine"
    return "folds on this chip: no bandwidth gained"

"""What a user asks a quantiser for, and is told."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from difflib import get_close_matches
from math import isfinite

from hexane.errors import Error

DTYPES = ("int8", "uint8")
METHODS = ("minmax", "percentile", "entropy", "mse")
PERCENTILE = 99.99


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a network is quantised (docs/quantize.md). Raises Error for a dtype or method that is none, and for a
    percentile that is not above 50 and at most 100."""

    dtype: str = "int8"
    """Of activations and weights: "int8" or "uint8"."""

    _: KW_ONLY

    method: str = "mse"
    """Which numbers an activation's integers span. "minmax": all of the calibration; "percentile": all but the few
    outermost; "entropy": those under which the distribution of the integers is nearest to that of the numbers; "mse":
    those with the least squared error, rounding and clipping together, which weights get as well."""

    percentile: float = PERCENTILE
    """For "percentile": this part of the numbers, in percent, lies at or below the high end, and at or above the low
    end."""

    per_channel: bool = True
    """A scale for each output channel of a weight; else one for the whole weight."""

    equalize: bool = True
    """Channels of the tensor between two layers are given similar sizes, and the weights on both sides the inverse of
    each other's change."""

    float_layers: Sequence[str] = ()
    """Patterns, as in file names, of the layers that stay in floats: the node's name, or its first output where it has
    no name. Error for a pattern that fits no layer."""

    def __post_init__(self) -> None:
        _check_word("dtype", self.dtype, DTYPES)
        _check_word("method", self.method, METHODS)
        if not (isfinite(self.percentile) and 50 < self.percentile <= 100):
            raise Error(f"[quantize] percentile: got {self.percentile:g}, need more than 50 and at most 100")
        if isinstance(self.float_layers, str):
            raise Error(f"[quantize] float_layers: got the text {self.float_layers!r}, need a list of patterns")


@dataclass(frozen=True, slots=True)
class QuantizedLayer:
    """A layer: name, op, dtype of its integers or "float", how many scales its weight has, the range of the activations
    that it multiplies, and the relative error of its result where it alone is quantised; None where it is not."""

    name: str
    op: str
    dtype: str
    scales: int
    low: float | None
    high: float | None
    error: float | None


def _check_word(field: str, got: str, known: Sequence[str]) -> None:
    if got not in known:
        near = get_close_matches(str(got), known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise Error(f"[quantize] {field}: got {got!r}, need one of {', '.join(known)}{hint}")

"""A user's request to the quantiser, and the report."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from difflib import get_close_matches
from math import isfinite

from hexane.errors import Error

DTYPES = ("int8", "uint8", "int16")
METHODS = ("minmax", "percentile", "entropy", "mse")
PERCENTILE = 99.99


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a network is quantised (docs/quantize.md). Raises Error for a value that its field does not take, and for
    fields that exclude each other."""

    dtype: str = "int8"
    """The dtype of activations and weights: "int8" or "uint8". With "int16" only activations are int16, with their
    smallest and largest number as ends; weights are int8."""

    _: KW_ONLY

    method: str = "mse"
    """How the range of an activation is chosen. "minmax": all numbers of the calibration; "percentile": all but the few
    outermost; "entropy": the range with which the distribution of the integers is nearest to that of the numbers;
    "mse": the range with the least squared error, counting rounding and clipping. "mse" chooses the ranges of weights,
    too."""

    percentile: float = PERCENTILE
    """For "percentile": this part of the numbers, in percent, is at or below the high end, and as much at or above the
    low end."""

    per_channel: bool = True
    """Each output channel of a weight gets its own scale; else the whole weight has one."""

    equalize: bool = True
    """Factors make the channels of the tensor between two layers similar in size. The first layer's weights are divided
    by the factors and the second layer's weights multiplied by them, so the results stay the same."""

    float_layers: Sequence[str] = ()
    """Patterns, as for file names, of the layers that stay in floats. They match the node's name, or its first output
    if it has no name. A name that several layers have is followed by the output in parentheses. A pattern that matches
    no layer is an Error."""

    weights_only: bool = False
    """Weights are stored as integers and multiplied as floats, which needs no calibration. Only dtype, per_channel,
    float_layers and whether the method is "mse" have an effect."""

    dynamic: bool = False
    """Activations get their range from each input when the network runs, which needs no calibration. The same fields
    have an effect as for weights_only; activations are uint8, whatever the dtype of the weights."""

    tolerance: float | None = None
    """The largest allowed relative error of an output on the calibration inputs. Layers stay in floats until the error
    is within it. The first to stay in floats are the layers that change the outputs most when quantised alone. None:
    any error."""

    sensitivity: bool = False
    """Measure the error of the outputs with each layer alone quantised, which takes a compilation and a pass for each.
    It is also measured if the network does not meet its tolerance at first."""

    def __post_init__(self) -> None:
        _check_word("dtype", self.dtype, DTYPES)
        _check_word("method", self.method, METHODS)
        if not (isfinite(self.percentile) and 50 < self.percentile <= 100):
            raise Error(f"[quantize] percentile: got {self.percentile:g}, need more than 50 and at most 100")
        if self.tolerance is not None and not (isfinite(self.tolerance) and self.tolerance > 0):
            raise Error(f"[quantize] tolerance: got {self.tolerance:g}, need a number above 0")
        if self.weights_only and self.dynamic:
            raise Error("[quantize] dynamic: got it with weights_only, need one of them")
        if not self.calibrated and self.dtype == "int16":
            raise Error(f"[quantize] dtype: got int16 for {self._kind}, need int8 or uint8")
        if not self.calibrated and self.tolerance is not None:
            raise Error(
                f"[quantize] tolerance: got one for {self._kind}, need none: without calibration no error is measured"
            )
        if isinstance(self.float_layers, str):
            raise Error(f"[quantize] float_layers: got the text {self.float_layers!r}, need a list of patterns")

    @property
    def calibrated(self) -> bool:
        """True if activations get their range from calibration inputs."""
        return not (self.weights_only or self.dynamic)

    @property
    def _kind(self) -> str:
        return "weights only" if self.weights_only else "dynamic ranges"

    @property
    def weight_dtype(self) -> str:
        return "uint8" if self.dtype == "uint8" else "int8"


@dataclass(frozen=True, slots=True)
class QuantizedLayer:
    """A layer: name, op, dtype of its integers or "float", number of the weight's scales, the range of its activations,
    the relative error of its own result, and the relative error of the network's outputs if only this layer is
    quantised. The range and the error of the result are None for a layer in floats. All three are None if they were not
    measured."""

    name: str
    op: str
    dtype: str
    scales: int
    low: float | None
    high: float | None
    error: float | None
    output_error: float | None = None


def _check_word(field: str, got: str, known: Sequence[str]) -> None:
    if got not in known:
        near = get_close_matches(str(got), known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise Error(f"[quantize] {field}: got {got!r}, need one of {', '.join(known)}{hint}")

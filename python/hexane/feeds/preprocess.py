"""How the pixels of an image, or the samples of a sound, become the numbers that a network takes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.feeds.ports import Port
from hexane.graph import Array

LAYOUTS = ("nchw", "nhwc")
FORM = "mean=123.7,116.3,103.5 scale=0.017 layout=nchw"


@dataclass(frozen=True, slots=True)
class Preprocess:
    """Pixels: (x / divisor - mean) * scale / std. For a sound, samples from -1 to 1 take the place of x / divisor.
    mean, scale, std: one number, or one for each channel. layout: where an image has its channels; "" to decide by the
    shape of the input. given: whether the user set any of these fields."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: tuple[float, ...] = (1.0,)
    divisor: float = 255.0
    layout: str = ""
    given: bool = False

    def applied(self, numbers: Array, port: Port, channels: int) -> Array:
        """The result for these numbers: fp32, channels last."""

        def of(name: str) -> Array:
            values = getattr(self, name)
            if len(values) not in (1, channels):
                option = f"--preprocess {name}" if self.given else f"--{name}"
                raise Error(f"[input] {option}: got {len(values)} numbers for {port}, need 1 or {channels}")
            return np.asarray(values, np.float32)

        return (numbers - of("mean")) / of("std") * of("scale")


def parse_preprocess(texts: Iterable[str]) -> Preprocess:
    """Parses "mean=123.7,116.3,103.5 scale=0.017 layout=nchw", as one text or several: (x - mean) * scale of pixels
    from 0 to 255. With neither mean nor scale, pixels are divided by 255. Raises Error for anything else."""
    fields: dict[str, Any] = {}
    for part in (part for text in texts for part in text.split()):
        name, _, value = part.partition("=")
        if name in fields:
            raise Error(f"[input] --preprocess: got {name} twice, need it once")
        if name in ("mean", "scale"):
            fields[name] = _numbers(part, value)
        elif name == "layout" and value.lower() in LAYOUTS:
            fields[name] = value.lower()
        else:
            raise Error(f"[input] --preprocess: got {part!r}, need mean, scale and layout as in {FORM!r}")
    if "mean" in fields and "scale" not in fields:
        raise Error("[input] --preprocess: got a mean without a scale, need both; scale=1 leaves pixels as they are")
    return Preprocess(**fields, divisor=1.0 if "scale" in fields else 255.0, given=True)


def _numbers(part: str, value: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(text) for text in value.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not np.isfinite(numbers).all():
        raise Error(f"[input] --preprocess: got {part!r}, need a number, or one for each channel, as in {FORM!r}")
    return numbers

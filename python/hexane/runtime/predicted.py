"""Predicts errors of encodings from one measured encoding per weight and from samples of its rows."""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import numpy as np

from hexane.compression.encode import encode, stored_bytes
from hexane.compression.search import Choice
from hexane.compression.weights import Weight
from hexane.graph import Array, constant
from hexane.ops.encodings import encoding_of

PART = 1 << 12  # Encodings are compared on about this many elements of a weight.
ROWS = 16  # Consecutive rows in a sample: a group of channels with its own palette.
# Finding the best table of 256 entries takes long. The distance is a quarter of that with 64 entries.
QUARTER = {"palette8": "palette6"}
MEASURED = ("palette4", "int8", "palette6", "palette8")  # the first encoding that a weight supports is measured


def reference(encodings: Sequence[str]) -> str:
    """Returns the encoding to measure, from which the errors of other encodings are predicted."""
    return next((e for e in MEASURED if e in encodings), encodings[0])


def distances(weight: Weight, encodings: Sequence[str]) -> dict[str, tuple[float, int]]:
    """Returns for each encoding the Euclidean distance of the weight from the encoded weight, and the encoded bytes.
    For a large weight, the distance is that of a sample, and the bytes are extrapolated from the sample."""
    part, times = _part(weight)
    data = part.whole.node.data
    assert data is not None
    wide, by_encoding = data.astype(np.float64), dict[str, tuple[float, int]]()
    for encoding in encodings:
        other = QUARTER.get(encoding)
        if other in by_encoding and part is not weight:
            by_encoding[encoding] = by_encoding[other][0] / 4, weight.whole.type.size
            continue
        value = encode(part, encoding)
        numbers = encoding_of(value).decode().node.data
        assert numbers is not None
        distance = sqrt(float(np.square(numbers.astype(np.float64) - wide).sum()))
        by_encoding[encoding] = distance, round(stored_bytes(part, encoding, value) * times)
    return {encoding: by_encoding[encoding] for encoding in encodings}


def predicted(measured: Choice, known: dict[str, tuple[float, int]]) -> list[Choice]:
    """Returns the choices of a weight. The outputs' error is assumed proportional to the distance of the weight from
    the encoded weight."""
    of_measured = known[measured.encoding][0]
    rate = measured.error / of_measured if of_measured else 0.0
    return [
        measured if name == measured.encoding else Choice(name, size, 0.0 if name == "none" else rate * distance)
        for name, (distance, size) in known.items()
    ]


def corrected(choices: Sequence[Choice], exact: Choice, measured: Sequence[str]) -> list[Choice]:
    """Returns the choices of a weight after one more measurement, which also scales the predicted errors of encodings
    not measured yet."""
    before = next(c for c in choices if c.encoding == exact.encoding)
    factor = exact.error / before.error if before.error else 1.0
    return [
        exact if c.encoding == exact.encoding else c if c.encoding in measured else replace(c, error=c.error * factor)
        for c in choices
    ]


def _part(weight: Weight) -> tuple[Weight, float]:
    """Returns a sample of rows and columns of a large weight, as a weight, and the ratio of the sizes."""
    data: Array | None = weight.whole.node.data
    assert data is not None
    picked = data
    for axis, step in ((weight.axis, ROWS), (weight.input_axis, 1)):
        blocks, wanted = data.shape[axis] // step, max(1, PART * data.shape[axis] // (picked.size * step))
        if wanted < blocks:
            starts = np.linspace(0, blocks - 1, wanted).astype(int) * step
            picked = picked.take((starts[:, None] + np.arange(step)).reshape(-1), axis=axis)
    if picked is data:
        return weight, 1.0
    return replace(weight, whole=constant(picked, weight.whole.node.sources)), data.size / picked.size

"""Translations of TFLite's ops, by family. Importing these modules registers the translations."""

from hexane.importers.tflite.ops import (
    arithmetic,
    control,
    detection,
    functions,
    images,
    linear,
    movement,
    recurrent,
    reductions,
    spectra,
    windows,
)

__all__ = [
    "arithmetic",
    "control",
    "detection",
    "functions",
    "images",
    "linear",
    "movement",
    "recurrent",
    "reductions",
    "spectra",
    "windows",
]

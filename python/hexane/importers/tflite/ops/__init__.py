"""Readers of TFLite's ops, by family: importing these modules registers them."""

from hexane.importers.tflite.ops import (
    arithmetic,
    control,
    functions,
    images,
    linear,
    movement,
    recurrent,
    reductions,
    windows,
)

__all__ = ["arithmetic", "control", "functions", "images", "linear", "movement", "recurrent", "reductions", "windows"]

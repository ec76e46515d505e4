"""What reads the ops of TFLite, by family: importing these registers it."""

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

"""Translates the ops of ML programs to the catalogue's ops, one file for each family."""

from hexane.importers.coreml.ops import (
    control,
    detection,
    indexing,
    movement,
    recurrent,
    sampling,
    shapes,
    weights,
    windows,
)

__all__ = ["control", "detection", "indexing", "movement", "recurrent", "sampling", "shapes", "weights", "windows"]

"""The translation of ML programs' ops to the catalogue's, by family."""

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

"""The operations of Core AI as ops of the catalogue, one file for each kind. Importing the files registers all
operations."""

from hexane.importers.coreai.handlers import (
    composites,
    control,
    elementwise,
    indexing,
    shapes,
    weights,
    windows,
)

__all__ = ["composites", "control", "elementwise", "indexing", "shapes", "weights", "windows"]

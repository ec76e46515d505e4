"""The operations of Core AI in the catalogue's ops, one file for each kind. Importing them fills the registry."""

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

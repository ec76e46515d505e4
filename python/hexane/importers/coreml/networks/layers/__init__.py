"""Layers by family. Importing them registers them."""

from hexane.importers.coreml.networks.layers import (
    detection,
    elementwise,
    indexing,
    movement,
    norms,
    products,
    recurrent,
    windows,
)

__all__ = ["detection", "elementwise", "indexing", "movement", "norms", "products", "recurrent", "windows"]

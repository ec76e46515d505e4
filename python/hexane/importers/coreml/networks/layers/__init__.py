"""Layers by family. Importing these modules registers the layers."""

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

"""Layers by family. Importing them registers them."""

from hexane.importers.coreml.networks.layers import elementwise, indexing, movement, norms, products, recurrent, windows

__all__ = ["elementwise", "indexing", "movement", "norms", "products", "recurrent", "windows"]

"""What ops of ML programs are in the catalogue's ops, by family."""

from hexane.importers.coreml.ops import control, indexing, movement, recurrent, sampling, shapes, weights, windows

__all__ = ["control", "indexing", "movement", "recurrent", "sampling", "shapes", "weights", "windows"]

"""Weights with fewer bits: the request, the weights, their encodings, and the search for encodings within a tolerance
(docs/compression.md)."""

from hexane.compression.compress import compress, compress_weights
from hexane.compression.request import MODES, Compression, as_compression
from hexane.compression.weights import Weight, find_weights

__all__ = ["MODES", "Compression", "Weight", "as_compression", "compress", "compress_weights", "find_weights"]

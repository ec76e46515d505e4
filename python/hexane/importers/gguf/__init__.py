"""GGUF files: metadata, and tensors as floats or as blocks of integers."""

from hexane.importers.gguf.blocks import KINDS, Blocks, Kind
from hexane.importers.gguf.file import GgufFile, GgufTensor, is_gguf, open_gguf

__all__ = ["KINDS", "Blocks", "GgufFile", "GgufTensor", "Kind", "is_gguf", "open_gguf"]

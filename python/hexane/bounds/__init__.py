"""Bounds of every number of a network, from the ranges of its inputs: never too small, on the host or on any chip."""

from hexane.bounds.analyse import Bound, analyse

__all__ = ["Bound", "analyse"]

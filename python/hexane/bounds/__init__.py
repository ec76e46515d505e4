"""Computes bounds of all numbers in a network from the ranges of its inputs. The bounds hold on the host and on any
chip."""

from hexane.bounds.analyse import Bound, analyse

__all__ = ["Bound", "analyse"]

"""Compiled models: made, called, bound, saved and loaded."""

from hexane.runtime.compile import compile, load
from hexane.runtime.model import Model, PortType
from hexane.runtime.open_model import OpenModel

__all__ = ["Model", "OpenModel", "PortType", "compile", "load"]

"""Compiled models: made, called, bound, saved and loaded."""

from hexane.runtime.cache import Cache
from hexane.runtime.compile import compile, load
from hexane.runtime.model import Model, PortType
from hexane.runtime.open_model import OpenModel

__all__ = ["Cache", "Model", "OpenModel", "PortType", "compile", "load"]

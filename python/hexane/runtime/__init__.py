"""Compiled models: compiling, calling, binding, saving and loading them."""

from hexane.runtime.compile import compile
from hexane.runtime.context import Context
from hexane.runtime.coreml import SavedPackage, save_coreml
from hexane.runtime.functions import Functions, compile_functions
from hexane.runtime.load import load, load_functions
from hexane.runtime.model import Model, PortType
from hexane.runtime.open_model import OpenModel
from hexane.runtime.quantize_model import Quantized, quantize_model
from hexane.runtime.staged_model import StagedModel

__all__ = [
    "Context",
    "Functions",
    "Model",
    "OpenModel",
    "PortType",
    "Quantized",
    "SavedPackage",
    "StagedModel",
    "compile",
    "compile_functions",
    "load",
    "load_functions",
    "quantize_model",
    "save_coreml",
]

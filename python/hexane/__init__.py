"""Hexane compiles neural networks for any Apple Neural Engine generation, from any machine, and runs them on any CPU."""

from hexane import targets
from hexane.build import *  # noqa: F403
from hexane.build import Tensor, const, graph, input, param, state, stream
from hexane.decisions import Decision
from hexane.errors import Error, FallbackWarning, HazardWarning
from hexane.graph import Graph
from hexane.importers.safetensors import load_weights
from hexane.importers.torch import from_torch
from hexane.parse import parse
from hexane.report import Report, cross_compile_check, preflight
from hexane.runtime import Model, OpenModel, compile, load

__version__ = "0.1.0"
__all__ = [
    "Decision",
    "Error",
    "FallbackWarning",
    "Graph",
    "HazardWarning",
    "Model",
    "OpenModel",
    "Report",
    "Tensor",
    "compile",
    "const",
    "cross_compile_check",
    "from_torch",
    "graph",
    "input",
    "load",
    "load_weights",
    "param",
    "parse",
    "preflight",
    "state",
    "stream",
    "targets",
]

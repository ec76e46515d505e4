"""Hexane compiles neural networks for any Apple Neural Engine generation, from any machine, and runs them on any
CPU."""

from hexane import _core as _core  # first, since it refuses a sub-interpreter before NumPy warns of it
from hexane import llm, targets, train
from hexane.autograd import checkpoint, grad
from hexane.build import *  # noqa: F403
from hexane.build import Tensor, const, graph, input, param, state, stream
from hexane.compression import Compression
from hexane.cost import Estimate, Peak, project_peak
from hexane.errors import (
    CrossChipFP16Warning,
    DeviceError,
    Error,
    FallbackWarning,
    HazardWarning,
    InputError,
    UnsupportedError,
)
from hexane.graph import Graph
from hexane.graph.decisions import Decision
from hexane.importers.safetensors import load_weights
from hexane.importers.torch import from_torch
from hexane.memory import Memory
from hexane.ops.parse import parse
from hexane.options import AutoDtype, Device, Options
from hexane.quant import Quantization, QuantizedLayer
from hexane.report import (
    Comparison,
    Descriptors,
    DivergenceReport,
    Explanation,
    Fit,
    Profile,
    Report,
    compare,
    cross_compile_check,
    descriptors,
    estimate,
    explain,
    fit,
    predict_fp16_divergence,
    preflight,
    profile,
    write_hwx,
)
from hexane.runtime import (
    Context,
    Functions,
    Model,
    OpenModel,
    Quantized,
    SavedPackage,
    StagedModel,
    compile,
    compile_functions,
    load,
    load_functions,
    quantize_model,
    save_coreml,
)

__version__ = "0.1.0"
__all__ = [
    "AutoDtype",
    "Comparison",
    "Compression",
    "Context",
    "CrossChipFP16Warning",
    "Decision",
    "Descriptors",
    "Device",
    "DeviceError",
    "DivergenceReport",
    "Error",
    "Estimate",
    "Explanation",
    "FallbackWarning",
    "Fit",
    "Functions",
    "Graph",
    "HazardWarning",
    "InputError",
    "Memory",
    "Model",
    "OpenModel",
    "Options",
    "Peak",
    "Profile",
    "Quantization",
    "Quantized",
    "QuantizedLayer",
    "Report",
    "SavedPackage",
    "StagedModel",
    "Tensor",
    "UnsupportedError",
    "checkpoint",
    "compare",
    "compile",
    "compile_functions",
    "const",
    "cross_compile_check",
    "descriptors",
    "estimate",
    "explain",
    "fit",
    "from_torch",
    "grad",
    "graph",
    "input",
    "llm",
    "load",
    "load_functions",
    "load_weights",
    "param",
    "parse",
    "predict_fp16_divergence",
    "preflight",
    "profile",
    "project_peak",
    "quantize_model",
    "save_coreml",
    "state",
    "stream",
    "targets",
    "train",
    "write_hwx",
]

"""Quantises ONNX networks: calibration finds the ranges of activations, and weights become integers of 8 bits, and
activations integers of 8 or 16 bits (docs/quantize.md). The caller passes a callable that runs networks. `hexane.quant`
itself has the request and the report, and does not load `onnx`."""

from hexane.quant.request import METHODS, PERCENTILE, Quantization, QuantizedLayer

__all__ = ["METHODS", "PERCENTILE", "Quantization", "QuantizedLayer"]

"""Quantises ONNX networks: ranges of activations from calibration, weights and activations as integers of 8 bits
(docs/quantize.md). Runs networks through a given callable. This module has the request and the report: the rest loads
`onnx`."""

from hexane.quant.request import METHODS, PERCENTILE, Quantization, QuantizedLayer

__all__ = ["METHODS", "PERCENTILE", "Quantization", "QuantizedLayer"]

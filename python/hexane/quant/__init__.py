"""Quantises ONNX networks: ranges of activations from calibration, weights and activations as integers of 8 bits
(docs/quantize.md). Runs networks through a callable that it is given. Here is what is asked for and told: the rest
loads `onnx`."""

from hexane.quant.request import METHODS, PERCENTILE, Quantization, QuantizedLayer

__all__ = ["METHODS", "PERCENTILE", "Quantization", "QuantizedLayer"]

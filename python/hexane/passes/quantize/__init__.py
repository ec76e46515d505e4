"""Finds the integer arithmetic between pairs of dequantize and quantize."""

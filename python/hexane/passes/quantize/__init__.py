"""Replaces float ops between dequantize and quantize by integer arithmetic."""

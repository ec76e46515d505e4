"""Ops on the bits of integers."""

from hexane.errors import Error
from hexane.importers.onnx.node import Builder, OnnxNode, Result
from hexane.importers.onnx.registry import onnx_op
from hexane.importers.onnx.tensors import element_type


@onnx_op("BitShift")
def bit_shift(b: Builder, n: OnnxNode) -> Result:
    ops = {"LEFT": "shift_left", "RIGHT": "shift_right"}
    if n.attrs["direction"] not in ops:
        raise Error(f"direction: got {n.attrs['direction']!r}, need LEFT or RIGHT")
    return b.apply(ops[n.attrs["direction"]], n.value(0), n.value(1))


@onnx_op("BitCast")
def bit_cast(b: Builder, n: OnnxNode) -> Result:
    return b.bit_cast(n.value(0), dtype=element_type(n.attrs["to"]))

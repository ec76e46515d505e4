"""Fused activations on dequantised or float tensors, and limits of integers."""

from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.tflite.integer import NONE, RELU, RELU6, RELU_N1_TO_1, TANH
from hexane.ops.compose import Builder


def activated(b: Builder, x: Value, code: int) -> Value:
    if x.dtype.kind != "float":
        low = {NONE: None, RELU: 0, RELU6: 0, RELU_N1_TO_1: -1}.get(code, "")
        if low == "":
            raise Error(f"got the fused activation {code} of {x.dtype}, need none, relu, relu6 or relu_n1_to_1")
        if low is None:
            return x
        x = b.maximum(x, low)
        return x if code == RELU else b.minimum(x, 6 if code == RELU6 else 1)
    if code == NONE:
        return x
    if code == RELU:
        return b.relu(x)
    if code == RELU_N1_TO_1:
        return b.clip(x, alpha=-1.0, beta=1.0)
    if code == RELU6:
        return b.relu6(x)
    if code == TANH:
        return b.tanh(x)
    raise Error(f"got the fused activation {code}, need none, relu, relu6, relu_n1_to_1 or tanh")

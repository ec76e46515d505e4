"""Ops with another meaning in opset 6 than from opset 7 on: broadcasting needs an attribute, and inference is a
flag."""

from dataclasses import replace

from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.onnx.handlers import arithmetic, windows
from hexane.importers.onnx.node import Attributes, Builder, OnnxNode, Result, axis_of
from hexane.importers.onnx.registry import ONNX_OPS, onnx_op


@onnx_op("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor", until=6)
def elementwise(b: Builder, n: OnnxNode) -> Result:
    x, y = n.value(0), n.value(1)
    return ONNX_OPS[n.op].translate(b, replace(n, inputs=(x, _aligned(b, n, x, y)), attrs=Attributes({}, {})))


def _aligned(b: Builder, n: OnnxNode, x: Value, y: Value) -> Result:
    """Reshapes y, so that its axes align with the axes of x from `axis` on, or without `axis` with the last axes of
    x."""
    broadcast, axis = n.attrs["broadcast"], n.attrs.get("axis")
    if not broadcast:
        if x.shape != y.shape:
            raise Error(f"got the shapes {x.shape} and {y.shape} without broadcast, need equal ones")
        return y
    first = len(x.shape) - len(y.shape) if axis is None or y.type.size == 1 else axis_of(axis, len(x.shape))
    last = first + len(y.shape)
    if y.type.size == 1:
        return b.reshape(y, shape=())
    if (
        first < 0
        or last > len(x.shape)
        or any(d not in (1, e) for d, e in zip(y.shape, x.shape[first:last], strict=True))
    ):
        raise Error(f"got the shapes {x.shape} and {y.shape} with axis {axis}, need the second inside the first")
    return b.reshape(y, shape=(*y.shape, *[1] * (len(x.shape) - last)))


@onnx_op("Gemm", until=6)
def gemm(b: Builder, n: OnnxNode) -> Result:
    if not n.attrs["broadcast"] and len(n.value(2).shape) != 2:
        raise Error(f"got C of shape {n.value(2).shape} without broadcast, need a matrix")
    return arithmetic.gemm(b, n)


@onnx_op("PRelu", until=6)
def prelu(b: Builder, n: OnnxNode) -> Result:
    """Applies prelu with one slope, or with one per channel."""
    x, slope = n.value(0), n.value(1)
    if slope.type.size == 1:
        return b.prelu(x, b.reshape(slope, shape=()))
    if len(x.shape) < 2 or slope.shape != (x.shape[1],):
        raise Error(f"got a slope of shape {slope.shape} for {x.shape}, need one for each channel")
    return b.prelu(x, b.reshape(slope, shape=(-1, *[1] * (len(x.shape) - 2))))


@onnx_op("AveragePool", until=6)
def average_pool(b: Builder, n: OnnxNode) -> Result:
    if any(n.attrs.get("pads") or ()) or n.attrs["auto_pad"] not in ("NOTSET", "VALID"):
        raise Error("got padding, which opset 6 does not say how to count; need none")
    return windows.average_pool(b, n)


@onnx_op("BatchNormalization", "Dropout", until=6)
def tested(b: Builder, n: OnnxNode) -> Result:
    if not n.attrs["is_test"]:
        raise Error("is_test: got 0, need inference")
    return ONNX_OPS[n.op].translate(b, n)

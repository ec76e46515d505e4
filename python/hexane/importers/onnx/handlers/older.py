"""Ops as opset 6 had them, where opset 7 gave them another meaning: broadcasting asked for, and inference as a flag."""

from dataclasses import replace

from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.onnx.handlers import arithmetic, normalization, recurrent, resize, windows
from hexane.importers.onnx.node import Builder, Handler, OnnxNode, Result, axis_of
from hexane.ops import OPS

PLAIN = {name: op.name for op in OPS.values() for name in op.onnx}
ELEMENTWISE = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")


def by_version(now: Handler, before: Handler) -> Handler:
    return lambda b, n: (now if n.version >= 7 else before)(b, n)


def elementwise(name: str) -> Handler:
    def now(b: Builder, n: OnnxNode) -> Result:
        return arithmetic.power(b, n) if name == "Pow" else b.apply(PLAIN[name], n.optional(0), n.optional(1))

    def before(b: Builder, n: OnnxNode) -> Result:
        x, y = n.value(0), n.value(1)
        return now(b, replace(n, inputs=(x, _aligned(b, n, x, y))))

    return by_version(now, before)


def _aligned(b: Builder, n: OnnxNode, x: Value, y: Value) -> Result:
    """The second operand with its axes under those of the first from `axis` on, else under the last ones."""
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


def gemm(b: Builder, n: OnnxNode) -> Result:
    if not n.attrs["broadcast"] and len(n.value(2).shape) != 2:
        raise Error(f"got C of shape {n.value(2).shape} without broadcast, need a matrix")
    return arithmetic.gemm(b, n)


def prelu(b: Builder, n: OnnxNode) -> Result:
    """One slope for all, or one for each channel."""
    x, slope = n.value(0), n.value(1)
    if slope.type.size == 1:
        return b.prelu(x, b.reshape(slope, shape=()))
    if len(x.shape) < 2 or slope.shape != (x.shape[1],):
        raise Error(f"got a slope of shape {slope.shape} for {x.shape}, need one for each channel")
    return b.prelu(x, b.reshape(slope, shape=(-1, *[1] * (len(x.shape) - 2))))


def average_pool(b: Builder, n: OnnxNode) -> Result:
    if any(n.attrs.get("pads") or ()) or n.attrs["auto_pad"] not in ("NOTSET", "VALID"):
        raise Error("got padding, which opset 6 does not say how to count; need none")
    return windows.average_pool(b, n)


def tested(now: Handler) -> Handler:
    def run(b: Builder, n: OnnxNode) -> Result:
        if not n.attrs["is_test"]:
            raise Error("is_test: got 0, need inference")
        return now(b, n)

    return run


def refused(b: Builder, n: OnnxNode) -> Result:
    raise Error("got it as opset 6 has it, need opset 7 or newer")


HANDLERS = {
    **{name: elementwise(name) for name in ELEMENTWISE},
    "AveragePool": by_version(windows.average_pool, average_pool),
    "BatchNormalization": by_version(normalization.batch_normalization, tested(normalization.batch_normalization)),
    "Dropout": by_version(arithmetic.dropout, tested(arithmetic.dropout)),
    "Gemm": by_version(arithmetic.gemm, gemm),
    "PRelu": by_version(arithmetic.prelu, prelu),
    "Upsample": by_version(resize.resize, refused),
    **{name: by_version(handler, refused) for name, handler in recurrent.HANDLERS.items()},
}

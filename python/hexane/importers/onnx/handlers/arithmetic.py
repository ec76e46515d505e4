"""Elementwise ops, casts, dropout and matrix products."""

from functools import reduce
from math import isnan, prod

import numpy as np

from hexane.dtypes import BOOL, DTYPES, FP64, INT64, DType
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.onnx.handlers.random import stream
from hexane.importers.onnx.node import Builder, OnnxNode, Result, known
from hexane.importers.onnx.registry import onnx_op
from hexane.importers.onnx.tensors import element_type
from hexane.ops.compose import cast, limited
from hexane.ops.shape_rules import broadcast

UINT64 = DTYPES["uint64"]


@onnx_op("MatMul", valid_lengths=True)
def matmul(b: Builder, n: OnnxNode) -> Result:
    """Multiplies as NumPy does. A vector operand is a row or a column, and the result lacks that axis."""
    x, y = n.value(0), n.value(1)
    if not x.shape or not y.shape:
        raise Error(f"got the shapes {x.shape} and {y.shape}, need at least 1 axis each")
    row, column = len(x.shape) == 1, len(y.shape) == 1
    if row:
        x = b.reshape(x, shape=(1, *x.shape))
    if column:
        y = b.reshape(y, shape=(*y.shape, 1))
    out = _product(b, x, y)
    if not row and not column:
        return out
    shape = out.shape[:-2] + (() if row else (out.shape[-2],)) + (() if column else (out.shape[-1],))
    return b.reshape(out, shape=shape)


def _product(b: Builder, x: Value, y: Value) -> Value:
    """Returns x @ y. Integers are multiplied elementwise and summed."""
    out: Value
    if x.dtype.kind == "float":
        out = b.matmul(x, y)
        return out
    limited(prod(broadcast(x.shape[:-2], y.shape[:-2])) * prod(x.shape[-2:]) * y.shape[-1], x.dtype.numpy)
    out = b.reduce_sum(b.mul(b.expand_dims(x, axes=(-1,)), b.expand_dims(y, axes=(-3,))), axes=(-2,), keep_dims=False)
    return out


@onnx_op("Gemm", valid_lengths=True)
def gemm(b: Builder, n: OnnxNode) -> Result:
    x, y, bias = n.value(0), n.value(1), n.optional(2)
    if len(x.shape) != 2 or len(y.shape) != 2:
        raise Error(f"got the shapes {x.shape} and {y.shape}, need matrices")
    alpha, beta = n.attrs["alpha"], n.attrs["beta"]
    flags = {"transpose_x": bool(n.attrs["transA"]), "transpose_y": bool(n.attrs["transB"])}
    if beta == 0:  # a beta of 0 ignores C, even if C has a NaN
        bias = None
    if bias is not None and beta != 1:
        bias = b.mul(bias, beta)
    if bias is not None and alpha == 1 and len(bias.shape) <= 2 and bias.shape[:-1] in ((), (1,)):
        columns = y.shape[0 if flags["transpose_y"] else 1]
        if bias.shape and bias.shape[-1] == columns:
            flat = bias if len(bias.shape) == 1 else b.reshape(bias, shape=(columns,))
            return b.matmul(x, y, flat, **flags)
    out = b.matmul(x, y, **flags)
    if alpha != 1:
        out = b.mul(out, alpha)
    if bias is None:
        return out
    if broadcast(bias.shape, out.shape) != out.shape:
        raise Error(f"got C of shape {bias.shape}, need one that broadcasts to {out.shape}")
    return b.add(out, bias)


@onnx_op("Pow", valid_lengths=True)
def power(b: Builder, n: OnnxNode) -> Result:
    """Returns a power in the base's dtype. The exponent keeps its own dtype. An integer result is truncated."""
    x, y = n.value(0), n.value(1)
    kind = _power_dtype(x, y)
    if kind is FP64 and x.dtype is not FP64 and y.dtype in (INT64, UINT64):
        # The exponent must stay odd or even. Beyond 2^52 the exponent's size no longer matters.
        low = y if y.dtype is UINT64 else b.maximum(y, -(2**52))
        y = b.bitwise_or(b.minimum(low, 2**52), b.bitwise_and(y, 1))
    return cast(b, b.pow(cast(b, x, kind), cast(b, y, kind)), x.dtype)


def _power_dtype(x: Value, y: Value) -> DType:
    """Returns the dtype of the computation."""
    whole = x.dtype.kind != "float"
    if whole and (y.dtype.kind != "float" or _is_whole(y)):
        return x.dtype if _holds(x.dtype, y) else y.dtype if y.dtype is UINT64 else INT64
    return x.dtype if not whole and _holds(x.dtype, y) else FP64


def _holds(kind: DType, y: Value) -> bool:
    """True if `kind` holds y exactly: the elements of a constant, else every value of y's dtype."""
    data = known(y)
    if data is None:
        return kind is y.dtype or bool(np.can_cast(y.dtype.numpy, kind.numpy, "safe"))
    with np.errstate(all="ignore"):
        held = data.astype(kind.numpy)
        return bool((held.astype(data.dtype) == data).all() and (np.signbit(held) == np.signbit(data)).all())


def _is_whole(y: Value) -> bool:
    """True for a constant of non-negative integers."""
    data = known(y)
    return data is not None and bool(((data >= 0) & (data < 2.0**63) & (data == np.trunc(data))).all())


@onnx_op("Mod", valid_lengths=True)
def modulo(b: Builder, n: OnnxNode) -> Result:
    x, y = n.value(0), n.value(1)
    return b.fmod(x, y) if n.attrs["fmod"] else b.mod(x, y)


_JOINED = {"Max": "maximum", "Mean": "add", "Min": "minimum", "Sum": "add"}


@onnx_op("Max", "Min", "Sum", valid_lengths=True)
def variadic(b: Builder, n: OnnxNode) -> Result:
    return reduce(lambda x, y: b.apply(_JOINED[n.op], x, y), [n.value(i) for i in range(len(n.inputs))])


@onnx_op("Mean", valid_lengths=True)
def mean(b: Builder, n: OnnxNode) -> Result:
    return b.real_div(variadic(b, n), float(len(n.inputs)))


@onnx_op("Clip", valid_lengths=True)
def clip(b: Builder, n: OnnxNode) -> Result:
    """Clamps x. Before opset 11 the bounds are attributes. If low > high, the result is high."""
    x = n.value(0)
    if x.dtype.kind != "float" and ("min" in n.attrs or "max" in n.attrs):
        raise Error(f"got {x.dtype} with bounds as attributes, need floats")
    low, high = (
        b.const(n.attrs[k], x.dtype.numpy) if k in n.attrs else n.optional(i) for i, k in ((1, "min"), (2, "max"))
    )
    bounds = {}
    for name, bound in (("alpha", low), ("beta", high)):
        if bound is not None and bound.type.size != 1:
            raise Error(f"got a bound of shape {bound.shape}, need a scalar")
        if bound is not None and (number := known(bound)) is not None and x.dtype.kind == "float":
            bounds[name] = float(number.reshape(()))
    whole = len(bounds) == sum(v is not None for v in (low, high))
    if whole and not any(map(isnan, bounds.values())) and bounds.get("alpha", -np.inf) <= bounds.get("beta", np.inf):
        return b.clip(x, **bounds) if bounds else x
    if low is not None:
        x = b.maximum(x, b.reshape(low, shape=()))
    return x if high is None else b.minimum(x, b.reshape(high, shape=()))


@onnx_op("Selu", valid_lengths=True)
def selu(b: Builder, n: OnnxNode) -> Result:
    return b.selu(n.value(0), alpha=n.attrs["alpha"], beta=n.attrs["gamma"])


@onnx_op("Gelu", valid_lengths=True)
def gelu(b: Builder, n: OnnxNode) -> Result:
    forms = {"none": "gelu", "tanh": "gelu_tanh"}
    if n.attrs["approximate"] not in forms:
        raise Error(f"approximate: got {n.attrs['approximate']!r}, need one of {', '.join(forms)}")
    return b.apply(forms[n.attrs["approximate"]], n.value(0))


@onnx_op("Swish", valid_lengths=True)
def swish(b: Builder, n: OnnxNode) -> Result:
    x = n.value(0)
    return b.silu(x) if n.attrs["alpha"] == 1 else b.mul(x, b.sigmoid(b.mul(x, n.attrs["alpha"])))


@onnx_op("PRelu", valid_lengths=True)
def prelu(b: Builder, n: OnnxNode) -> Result:
    x, slope = n.value(0), n.value(1)
    if broadcast(x.shape, slope.shape) != x.shape:
        raise Error(f"got a slope of shape {slope.shape}, need one that broadcasts to {x.shape}")
    return b.prelu(x, slope)


@onnx_op("Cast", valid_lengths=True, ignores=("round_mode", "saturate"))
def cast_to(b: Builder, n: OnnxNode) -> Result:
    return converted(b, n.value(0), element_type(n.attrs["to"]), n)


@onnx_op("CastLike", valid_lengths=True, ignores=("round_mode", "saturate"))
def cast_like(b: Builder, n: OnnxNode) -> Result:
    return converted(b, n.value(0), n.value(1).dtype, n)


def converted(b: Builder, x: Value, to: DType, n: OnnxNode) -> Value:
    """Casts x. Raises Error for integers below 8 bits and 8-bit floats, whose rounding and saturation `cast` lacks."""
    if to.bits < 8 or (to.bits == 8 and to.kind == "float"):
        raise Error(f"got a cast to {to}, need a dtype of 8-bit integers or 16-bit floats and above")
    result: Value = cast(b, x, to)
    return result


@onnx_op("Dropout", shape_inputs=(1, 2), ignores=(1, "ratio", "seed"))
def dropout(b: Builder, n: OnnxNode) -> Result:
    """Returns x outside training. In training, the kept elements are scaled so that the expected sum is unchanged, and
    the mask marks them."""
    x = n.value(0)
    ratio = float(n.scalar(1) if n.has(1) else 0.5) if n.has(2) and bool(n.scalar(2)) else 0.0
    if not 0 <= ratio < 1:
        raise Error(f"ratio: got {ratio}, need 0 or more, and less than 1")
    if ratio:
        kept = b.greater_equal(b.random(stream(b, n), shape=x.shape), ratio)
        return [b.select(kept, b.mul(x, 1 / (1 - ratio)), b.const(np.zeros((), x.dtype.numpy))), kept]
    if not n.wants(1):
        return [x]
    kind = BOOL if n.version >= 10 else x.dtype  # the dtype of the mask
    return [x, b.broadcast_to(b.const(np.array(1, kind.numpy)), shape=x.shape)]

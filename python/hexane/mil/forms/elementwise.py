"""Activations, arithmetic, comparisons, casts."""

import math
from typing import Any

import numpy as np

from hexane.dtypes import FP16, FP32, DType
from hexane.errors import Error
from hexane.graph import Node, Value, constant
from hexane.mil.forms.form import Form, MilCall, Result, plain
from hexane.ops.compose import Builder

_UNARY = (
    "abs", "acos", "asin", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "exp2", "floor", "logical_not", "relu",
    "relu6", "round", "sigmoid", "sign", "silu", "sin", "sinh", "softplus", "softsign", "sqrt", "square", "tan", "tanh",
)  # fmt: skip
_PARAMETRIC = (
    "clamped_relu", "elu", "leaky_relu", "linear_activation", "scaled_tanh", "sigmoid_hard", "threshold",
)  # fmt: skip
_BINARY = (
    "add", "equal", "floor_div", "greater", "greater_equal", "less", "less_equal", "logical_and", "logical_or", "logical_xor",  # noqa: E501
    "maximum", "minimum", "mod", "mul", "not_equal", "pow", "real_div", "sub",
)  # fmt: skip


def _with_epsilon(op: str) -> Form:
    """Returns the form of log, rsqrt or inverse. MIL's ops add an epsilon to x, which is written as 0."""

    def write(node: Node) -> MilCall:
        return MilCall(op, {"x": node.inputs[0], "epsilon": 0.0})

    def read(b: Builder, x: Value, epsilon: float) -> Value:
        return b.apply(op, b.add(x, epsilon) if x.dtype.numpy.type(epsilon) else x)  # fp16 may round the epsilon to 0

    return Form(op, op, write, read)


def _gelu(op: str, mode: str) -> Form:
    return Form(op, "gelu", lambda node: MilCall("gelu", {"x": node.inputs[0], "mode": mode}), None)


def _read_gelu(b: Builder, x: Value, mode: str) -> Value:
    if mode == "SIGMOID_APPROXIMATION":
        return b.mul(x, b.sigmoid(b.mul(x, 1.702)))
    ops = {"EXACT": "gelu", "TANH_APPROXIMATION": "gelu_tanh"}
    if mode not in ops:
        raise Error(f"mode: got {mode!r}, need EXACT, TANH_APPROXIMATION or SIGMOID_APPROXIMATION")
    return b.apply(ops[mode], x)


def _write_clip(node: Node) -> MilCall | None:
    """Writes a clip whose bounds are finite and still differ after rounding to the clip's dtype: MIL text has no
    infinity, and MIL's clip needs alpha < beta. Other clips become a maximum, a minimum or both."""
    low, high, kind = node.attrs["alpha"], node.attrs["beta"], node.types[0].dtype
    held = (_held(low, kind), _held(high, kind)) if kind.kind == "float" else (low, high)
    if math.isinf(low) or math.isinf(high) or held[0] == held[1]:
        return None
    return MilCall("clip", {"x": node.inputs[0], **node.attrs})


def _read_clip(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    return b.clip(x, alpha=alpha, beta=beta)


def _write_prelu(node: Node) -> MilCall | None:
    """Writes a prelu with a slope for each channel of axis 1, as MIL needs it."""
    x, slope = node.inputs
    assert x is not None
    assert slope is not None
    rank = len(x.shape)
    per_channel = slope.node.data is not None and rank >= 3 and slope.shape == (x.shape[1], *[1] * (rank - 2))
    if not per_channel:
        return None
    assert slope.node.data is not None
    return MilCall("prelu", {"x": x, "alpha": constant(slope.node.data.reshape(-1), slope.node.sources)})


def _read_prelu(b: Builder, x: Value, alpha: Value) -> Value:
    if len(x.shape) < 3 or alpha.shape != (x.shape[1],):
        raise Error(f"got x {x.type} and alpha {alpha.type}, need (N, C, ...) and (C,)")
    slopes = alpha.node.data
    assert slopes is not None
    return b.prelu(x, slopes.reshape(-1, *[1] * (len(x.shape) - 2)))


def _held(value: float, kind: DType) -> float:
    """Returns the number rounded to a float dtype."""
    with np.errstate(over="ignore"):
        return float(kind.numpy.type(value))


def _next(value: float, direction: float, kind: DType) -> float:
    """Returns the next number of this dtype towards `direction`."""
    with np.errstate(over="ignore"):
        return float(np.nextafter(kind.numpy.type(value), kind.numpy.type(direction)))


def _write_thresholded_relu(node: Node) -> MilCall | None:
    """Writes the next number after alpha, because MIL keeps x >= alpha, and the catalogue's op keeps x > alpha."""
    kind = node.types[0].dtype
    if kind not in (FP16, FP32) or math.isinf(alpha := _next(node.attrs["alpha"], math.inf, kind)):
        return None
    return MilCall("thresholded_relu", {"x": node.inputs[0], "alpha": alpha})


def _read_thresholded_relu(b: Builder, x: Value, alpha: float) -> Value:
    if x.dtype in (FP16, FP32) and math.isfinite(below := _next(alpha, -math.inf, x.dtype)):
        return b.thresholded_relu(x, alpha=below)
    return b.select(b.greater_equal(x, alpha), x, b.const(np.zeros((), x.dtype.numpy)))


def _read_identity(b: Builder, x: Value) -> Value:
    return x


def _write_cast(node: Node) -> MilCall | None:
    kind = node.types[0].dtype
    x = node.inputs[0]
    assert x is not None
    return MilCall("cast", {"x": x, "dtype": kind}) if {kind.name, x.dtype.name} <= set(_CASTS) else None


def _read_cast(b: Builder, x: Value, dtype: Any) -> Result:
    return b.cast(x, dtype=dtype)


_CASTS = ("bool", "fp16", "fp32", "int8", "int16", "int32", "uint8", "uint16")

FORMS = (
    *map(plain, (*_UNARY, *_PARAMETRIC, *_BINARY, "select")),
    *map(_with_epsilon, ("log", "rsqrt", "inverse")),
    _gelu("gelu", "EXACT"),
    _gelu("gelu_tanh", "TANH_APPROXIMATION"),
    Form("", "gelu", None, _read_gelu),
    Form("clip", "clip", _write_clip, _read_clip),
    Form("prelu", "prelu", _write_prelu, _read_prelu),
    Form("thresholded_relu", "thresholded_relu", _write_thresholded_relu, _read_thresholded_relu),
    Form("cast", "cast", _write_cast, _read_cast),
    Form("", "identity", None, _read_identity),
)

"""Activations, and elementwise functions of one or several tensors."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hexane.dtypes import BOOL, FP32
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.coreml.networks.registry import LayerContext, reads
from hexane.ops.compose import cast


def _of_channels(n: LayerContext, weights: Any, x: Value, what: str) -> Value:
    """Returns one number per channel as (C, 1, 1), or one number for all channels."""
    if len(x.shape) < 3:
        raise Error(f"got x of {len(x.shape)} axes, need channels, height and width at least")
    count = len(weights.floatValue) or len(weights.float16Value) // 2
    return n.b.const(n.weight(weights, 1 if count == 1 else x.shape[-3], what=what).reshape(-1, 1, 1))


def activation_kind(p: Any) -> str:
    """Returns the name of the one field that is set."""
    kinds = [field.name for field, _ in p.ListFields()]
    if len(kinds) != 1:
        raise Error(f"got {len(kinds)} kinds of activation, need one")
    return str(kinds[0])


def activated(n: LayerContext, p: Any, x: Value) -> Value:
    """Applies an ActivationParams to x."""
    kind = activation_kind(p)
    a, b = getattr(p, kind), n.b
    plain = {"ReLU": "relu", "tanh": "tanh", "sigmoid": "sigmoid", "softsign": "softsign", "softplus": "softplus"}
    one = {"leakyReLU": "leaky_relu", "ELU": "elu"}
    two = {"linear": "linear_activation", "scaledTanh": "scaled_tanh", "sigmoidHard": "sigmoid_hard"}
    if kind in plain:
        return b.apply(plain[kind], x)
    if kind in one:
        return b.apply(one[kind], x, alpha=a.alpha)
    if kind in two:
        return b.apply(two[kind], x, alpha=a.alpha, beta=a.beta)
    if kind == "thresholdedReLU":  # x where x >= alpha, else 0
        return b.select(b.greater_equal(x, a.alpha), x, np.zeros((), np.float32))
    if kind == "PReLU":
        return b.prelu(x, _of_channels(n, a.alpha, x, "alpha"))
    alpha, beta = (_of_channels(n, getattr(a, f), x, f) for f in ("alpha", "beta"))
    return b.mul(b.softplus(b.mul(x, beta)), alpha)


@reads("activation")
def activation(n: LayerContext, p: Any, x: Value) -> Value:
    return activated(n, p, x)


UNARY = {0: "sqrt", 4: "exp", 5: "log", 6: "abs"}


@reads("unary")
def unary(n: LayerContext, p: Any, x: Value) -> Value:
    b, epsilon = n.b, p.epsilon or 1e-6
    scale = p.scale or 1.0
    if scale != 1.0:
        x = b.mul(x, scale)
    if p.shift:
        x = b.add(x, p.shift)
    if p.type in UNARY:
        return b.apply(UNARY[p.type], x)
    if p.type in (1, 2):
        return b.apply("rsqrt" if p.type == 1 else "inverse", b.add(x, epsilon))
    if p.type == 3:
        return b.pow(x, p.alpha)
    if p.type == 7:
        return b.threshold(x, alpha=p.alpha)
    raise Error(f"type: got {p.type}, need 0 to 7")


PLAIN = {
    name: name
    for name in (
        "ceil", "floor", "sign", "round", "exp2", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
        "asinh", "acosh", "atanh", "erf",
    )
} | {"copy": "identity"}  # fmt: skip


def _plain(op: str) -> Callable[[LayerContext, Any, Value], Value]:
    return lambda n, p, x: n.b.apply(op, x)


for _layer, _op in PLAIN.items():
    reads(_layer)(_plain(_op))


@reads("clip")
def clip(n: LayerContext, p: Any, x: Value) -> Value:
    return n.b.clip(x, alpha=p.minVal, beta=p.maxVal)


@reads("clampedReLU")
def clamped_relu(n: LayerContext, p: Any, x: Value) -> Value:
    return n.b.clamped_relu(x, alpha=p.alpha, beta=p.beta)


GELU = ("EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION")


@reads("gelu")
def gelu(n: LayerContext, p: Any, x: Value) -> Value:
    if not 0 <= p.mode < len(GELU):
        raise Error(f"mode: got {p.mode}, need 0, 1 or 2")
    return n.mil("gelu", x=x, mode=GELU[p.mode])


# ---- several tensors ----


def _folded(op: str, n: LayerContext, values: tuple[Value, ...]) -> Value:
    total, *others = values
    for value in others:
        total = n.b.apply(op, total, value)
    return total


@reads("add")
def add(n: LayerContext, p: Any, *values: Value) -> Value:
    return n.b.add(values[0], p.alpha) if len(values) == 1 else _folded("add", n, values)


@reads("multiply")
def multiply(n: LayerContext, p: Any, *values: Value) -> Value:
    return n.b.mul(values[0], p.alpha) if len(values) == 1 else _folded("mul", n, values)


@reads("average")
def average(n: LayerContext, p: Any, *values: Value) -> Value:
    return n.b.mul(_folded("add", n, values), 1.0 / len(values))


SEVERAL = {
    "max": "maximum", "min": "minimum", "maxBroadcastable": "maximum", "minBroadcastable": "minimum",
    "addBroadcastable": "add", "multiplyBroadcastable": "mul",
}  # fmt: skip
PAIRS = {
    "subtractBroadcastable": "sub", "divideBroadcastable": "real_div", "floorDivBroadcastable": "floor_div",
    "modBroadcastable": "mod", "powBroadcastable": "pow",
}  # fmt: skip
COMPARISONS = {
    "equal": "equal", "notEqual": "not_equal", "lessThan": "less", "lessEqual": "less_equal",
    "greaterThan": "greater", "greaterEqual": "greater_equal",
}  # fmt: skip
LOGIC = {"logicalAnd": "logical_and", "logicalOr": "logical_or", "logicalXor": "logical_xor"}


def _several(op: str) -> Callable[..., Value]:
    return lambda n, p, *values: _folded(op, n, values)


def _pair(op: str) -> Callable[..., Value]:
    return lambda n, p, x, y: n.b.apply(op, x, y)


def _comparison(op: str) -> Callable[..., Value]:
    """Returns a comparison with the results 1 and 0. A single tensor is compared with the number alpha."""
    return lambda n, p, x, y=None: cast(n.b, n.b.apply(op, x, p.alpha if y is None else y), FP32)


def _logic(op: str) -> Callable[..., Value]:
    return lambda n, p, x, y: cast(n.b, n.b.apply(op, cast(n.b, x, BOOL), cast(n.b, y, BOOL)), FP32)


for _table, _make in ((SEVERAL, _several), (PAIRS, _pair), (COMPARISONS, _comparison), (LOGIC, _logic)):
    for _layer, _op in _table.items():
        reads(_layer)(_make(_op))


@reads("logicalNot")
def logical_not(n: LayerContext, p: Any, x: Value) -> Value:
    return cast(n.b, n.b.logical_not(cast(n.b, x, BOOL)), FP32)


@reads("whereBroadcastable")
def where(n: LayerContext, p: Any, condition: Value, x: Value, y: Value) -> Value:
    return n.b.select(cast(n.b, condition, BOOL), x, y)

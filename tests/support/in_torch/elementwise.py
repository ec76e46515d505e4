"""Ops on single elements, in PyTorch. At kinks they have PyTorch's own derivative."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

T = torch.Tensor


def clip(x: T, alpha: float, beta: float) -> T:
    return torch.clamp(x, alpha, beta)


def elu(x: T, alpha: float, beta: float = 1.0) -> T:
    return torch.where(x > 0, beta * x, alpha * beta * torch.expm1(torch.clamp(x, max=0)))


def clamped_relu(x: T, alpha: float, beta: float) -> T:
    return torch.clamp(torch.where(x > 0, x, alpha * x), max=beta)


def shrink(x: T, bias: float, lambd: float) -> T:
    return torch.where(x > lambd, x - bias, torch.where(x < -lambd, x + bias, torch.zeros_like(x)))


def floor_div(x: T, y: T) -> T:
    return torch.floor(x / y)


def prelu(x: T, y: T) -> T:
    return torch.where(x > 0, x, x * y)


def identity(x: T) -> T:
    return x


FORMS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in (
        "abs", "neg", "ceil", "floor", "round", "sign", "sqrt", "rsqrt", "square", "exp", "exp2", "log", "erf", "sin", "cos",
        "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "tanh", "sigmoid", "relu", "add", "sub",
        "mul", "maximum", "minimum", "pow", "fmod", "det",
    )},
    "inverse": torch.reciprocal,
    "relu6": F.relu6,
    "leaky_relu": lambda x, alpha: F.leaky_relu(x, alpha),
    "elu": elu,
    "selu": elu,
    "celu": lambda x, alpha: F.celu(x, alpha),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "hard_swish": F.hardswish,
    "mish": F.mish,
    "softplus": lambda x: F.softplus(x, threshold=700.0),
    "softsign": F.softsign,
    "sigmoid_hard": lambda x, alpha, beta: F.hardtanh(alpha * x + beta, 0.0, 1.0),
    "clip": clip,
    "scaled_tanh": lambda x, alpha, beta: alpha * torch.tanh(beta * x),
    "thresholded_relu": lambda x, alpha: F.threshold(x, alpha, 0.0),
    "threshold": lambda x, alpha: torch.clamp(x, min=alpha),
    "linear_activation": lambda x, alpha, beta: alpha * x + beta,
    "real_div": torch.div,
    "floor_div": floor_div,
    "mod": torch.remainder,
    "prelu": prelu,
    "clamped_relu": clamped_relu,
    "shrink": shrink,
    "identity": identity,
    "cast": lambda x, dtype: x,
    "stop_gradient": lambda x: x.detach(),
    "select": torch.where,
}  # fmt: skip

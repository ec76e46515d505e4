"""Optimisers: how a param and its moments are updated from its gradient."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from hexane.errors import Error
from hexane.train.schedules import Schedule, as_schedule


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimiser. op: the op that updates a param. moments: names of the states per param, with the param's shape and
    initially 0. lr: the learning rate as a function of the step. attrs: the op's attributes. no_decay: a pattern of
    names of params without weight decay: `*` for any characters, `?` for one, `|` between alternatives."""

    op: str
    moments: tuple[str, ...]
    lr: Schedule
    attrs: Mapping[str, Any] = field(default_factory=dict)
    no_decay: str = ""


def sgd(
    lr: "Schedule | float",
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    *,
    no_decay: str = "",
) -> Optimizer:
    """Gradient descent, as torch.optim.SGD. no_decay: params without weight decay, a pattern of names such as
    "*norm*|*bias". Raises Error for numbers out of range, and for `nesterov` without momentum."""
    decay = _least_zero("weight_decay", weight_decay)
    if not momentum:
        if nesterov:
            raise Error("[sgd] nesterov: got it without momentum, need momentum as well")
        return Optimizer("sgd_step", (), as_schedule(lr), {"decay": decay}, no_decay)
    attrs = {"momentum": _share("momentum", momentum), "nesterov": nesterov, "decay": decay}
    return Optimizer("momentum_step", ("momentum",), as_schedule(lr), attrs, no_decay)


def adam(
    lr: "Schedule | float",
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    no_decay: str = "",
) -> Optimizer:
    """Adam with weight decay added to the gradient, as torch.optim.Adam. no_decay: see `sgd`."""
    return _adam(lr, betas, eps, weight_decay, no_decay, decoupled=False)


def adamw(
    lr: "Schedule | float",
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    *,
    no_decay: str = "",
) -> Optimizer:
    """Adam with weight decay applied to the params, as torch.optim.AdamW. no_decay: see `sgd`."""
    return _adam(lr, betas, eps, weight_decay, no_decay, decoupled=True)


def lion(
    lr: "Schedule | float",
    betas: tuple[float, float] = (0.9, 0.99),
    weight_decay: float = 0.0,
    *,
    no_decay: str = "",
) -> Optimizer:
    """Lion: one moment, and updates whose elements are +-lr (or 0) before weight decay. Lion's learning rate is usually
    3 to 10 times smaller than Adam's. no_decay: see `sgd`."""
    beta1, beta2 = (_share("betas", beta) for beta in betas)
    attrs = {"beta1": beta1, "beta2": beta2, "decay": _least_zero("weight_decay", weight_decay)}
    return Optimizer("lion_step", ("m",), as_schedule(lr), attrs, no_decay)


def _adam(
    lr: Any, betas: tuple[float, float], eps: float, weight_decay: float, no_decay: str, decoupled: bool
) -> Optimizer:
    beta1, beta2 = (_share("betas", beta) for beta in betas)
    attrs = {"beta1": beta1, "beta2": beta2, "epsilon": _least_zero("eps", eps),
             "decay": _least_zero("weight_decay", weight_decay), "decoupled": decoupled}  # fmt: skip
    return Optimizer("adam_step", ("m", "v"), as_schedule(lr), attrs, no_decay)


def _share(name: str, value: float) -> float:
    if not 0 <= value < 1:
        raise Error(f"[train] {name}: got {value!r}, need a number from 0 to below 1")
    return float(value)


def _least_zero(name: str, value: float) -> float:
    if not (isfinite(value) and value >= 0):
        raise Error(f"[train] {name}: got {value!r}, need 0 or more")
    return float(value)

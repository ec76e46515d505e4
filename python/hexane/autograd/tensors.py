"""`hx.grad`, the function for users."""

from collections.abc import Sequence
from typing import overload

import numpy as np

from hexane.autograd.backward import backward
from hexane.build import Tensor
from hexane.dtypes import dtype as dtype_of
from hexane.errors import Error
from hexane.graph import Value, constant
from hexane.graph.origins import call_site


@overload
def grad(loss: "Tensor | Sequence[Tensor]", wrt: Tensor, *, seed: object = None, dtype: object = None) -> Tensor: ...


@overload
def grad(
    loss: "Tensor | Sequence[Tensor]", wrt: Sequence[Tensor], *, seed: object = None, dtype: object = None
) -> list[Tensor]: ...


def grad(
    loss: "Tensor | Sequence[Tensor]",
    wrt: "Tensor | Sequence[Tensor]",
    *,
    seed: object = None,
    dtype: object = None,
) -> "Tensor | list[Tensor]":
    """The gradients, as tensors of the same graph, of a loss with respect to tensors that it is computed from.

    loss: a single number, or any tensor together with `seed`, its own gradient, which has the same shape. Several
    losses are added up. wrt: inputs, params, states, or values in between; the gradients have their shapes and dtypes.
    dtype: of the sum of gradients for a value with several readers; None: at least fp32.

    Where a derivative is a matter of convention (relu at 0, equal maxima, the ends of a clip), it follows PyTorch 2.13.
    Gradients are ops like any others, so they may be differentiated again.

    Raises Error for a loss that is no float or has more than one element and no seed, for a tensor that the loss does
    not depend on, and for an op in between that has no gradient.
    """
    losses, tensors = _floats("loss", loss), _floats("wrt", wrt)
    seeds: dict[Value, Value] = {}
    for t, given in zip(losses, _seeds(losses, seed), strict=True):
        seeds[t.value] = given if t.value not in seeds else (Tensor(seeds[t.value]) + Tensor(given)).value
    gradients = backward(seeds, [t.value for t in tensors], None if dtype is None else dtype_of(dtype))
    for t, gradient in zip(tensors, gradients, strict=True):
        if gradient is None:
            raise _error(
                f"wrt: the loss does not depend on {t.value.node.where}, or only through step functions and integers:"
                " need a tensor it is computed from"
            )
    results = [Tensor(gradient) for gradient in gradients if gradient is not None]
    return results[0] if isinstance(wrt, Tensor) else results


def _floats(what: str, given: "Tensor | Sequence[Tensor]") -> list[Tensor]:
    if not isinstance(given, (Tensor, list, tuple)) or not (isinstance(given, Tensor) or given):
        raise _error(f"{what}: got {given!r}, need a tensor or several")
    tensors = [given] if isinstance(given, Tensor) else list(given)
    for t in tensors:
        if not isinstance(t, Tensor):
            raise _error(f"{what}: got {type(t).__name__}, need a tensor")
        if t.dtype.kind != "float":
            raise _error(f"{what}: got {t.type}, which has no gradient, need floats")
    return tensors


def _seeds(losses: Sequence[Tensor], seed: object) -> list[Value]:
    if seed is None:
        for loss in losses:
            if loss.type.size != 1:
                raise _error(f"loss: got {loss.type}, need one number, or a seed of this shape")
        return [constant(np.ones(t.shape, t.dtype.numpy)) for t in losses]
    given = [seed] if len(losses) == 1 and not isinstance(seed, (list, tuple)) else list(seed)  # type: ignore[call-overload]
    if len(given) != len(losses):
        raise _error(f"seed: got {len(given)} for {len(losses)} losses, need one for each")
    values = []
    for loss, one in zip(losses, given, strict=True):
        value = one.value if isinstance(one, Tensor) else constant(np.array(one, loss.dtype.numpy))
        if value.type != loss.type:
            raise _error(f"seed: got {value.type}, need {loss.type}")
        values.append(value)
    return values


def _error(message: str) -> Error:
    where = " at ".join(("grad", *call_site()[:1]))
    return Error(f"[{where}] {message}")

"""A training step as one graph: forward, backward and the updates of all params, which are states."""

from collections.abc import Mapping, Sequence
from math import log
from typing import Any, Protocol

import numpy as np

from hexane import build as hx
from hexane.autograd import grad
from hexane.build import FUNCTIONS, Tensor
from hexane.dtypes import FP32
from hexane.errors import Error
from hexane.graph import Graph
from hexane.importers.patterns import matching
from hexane.ops.records.optimizers import RATES
from hexane.train.notes import NOTES, kept_notes
from hexane.train.optimizers import Optimizer
from hexane.train.running_statistics import moved_statistics

GUARDS = ("all", "each")
STEP = "step"  # The state with the number of updates.
CALLS = "calls"  # The state that counts calls.
GRADIENT = ".grad"  # The state NAME.grad accumulates the gradients of the param NAME.


class Sums(Protocol):
    """Sums gradients over `count` processes that train together."""

    @property
    def count(self) -> int: ...

    def __call__(self, gradients: Sequence[Tensor], last: Tensor | None) -> list[Tensor]:
        """last: true in a call that updates the params; None: every call updates."""


def step(
    loss: Tensor,
    params: Sequence[Tensor],
    optimizer: Optimizer,
    *,
    clip: float | None = None,
    clip_value: float | None = None,
    accumulate: int = 1,
    loss_scale: float = 1.0,
    guard: str = "all",
    notes: Mapping[str, Any] | None = None,
    sums: Sums | None = None,
) -> Graph:
    """Returns the graph of a training step. The compiled program, net(x=.., labels=..), updates the params and returns
    `loss`, `lr` (the learning rate of this step) and `norm` (of the gradients, after `clip_value` and before `clip`; 0
    in a call without an update, unless it moves running statistics).

    params: `hx.param`s in fp32, each with a name. The moments of params are states "NAME.m" and so on; the states
    "step" and "calls" count updates and calls. clip: the largest global norm of the gradients; clip_value: the largest
    magnitude of an element, applied first. accumulate: calls per update, which uses the mean of their gradients.
    loss_scale: initial gradient of the backward pass in place of 1, so that small gradients survive fp16; updates
    divide by it. guard: which updates a non-finite gradient stops. "all": every update, so that the step changes no
    param; all gradients are kept until the last one is computed. "each": only the update of its own param, so that a
    gradient takes memory only until its param is updated. `norm` is not finite in a call with such a gradient. `clip`
    needs the norm of all gradients and turns "each" into "all". notes: JSON values by name, stored in the state "notes"
    of the program; `hx.train.read_notes` reads them. sums: adds up the gradients of several processes; `Trainer` gives
    it. The running statistics of each `hx.train.batch_norm` in the loss move in every call with finite gradients.

    Raises Error for a loss that is not one number, for invalid params or running statistics, and for options out of
    range.
    """
    _check(loss, params, clip, clip_value, accumulate, loss_scale)
    if guard not in GUARDS:
        raise Error(f"[train.step] guard: got {guard!r}, need {' or '.join(map(repr, GUARDS))}")
    alone = guard == "each" and clip is None
    gradients = grad(loss, list(params), seed=np.full(loss.shape, loss_scale, loss.dtype.numpy))
    calls = hx.state(CALLS, (1,), "int64")
    updates = [_write(calls, calls + 1)]
    last = None
    if accumulate > 1:
        turn = hx.mod(calls, accumulate)
        last = hx.equal(turn, accumulate - 1)
        gradients, writes = _accumulated(params, gradients, hx.equal(turn, 0))
        updates += writes
    scale = 1.0 / (accumulate * loss_scale)
    if sums is not None:
        gradients = sums(gradients, last)
        scale /= sums.count
    if clip_value is not None:
        gradients = [hx.clip(g, alpha=-clip_value / scale, beta=clip_value / scale) for g in gradients]
    statistics = moved_statistics(loss)
    squares = [_squares(g, None if statistics else last) for g in gradients]
    norm = hx.sqrt(_sum(squares)) * scale
    applied = hx.less(norm, np.float64("inf"))
    updates += [_write(old, hx.select(applied, new, old)) for old, new in statistics]
    if last is not None:
        applied = hx.logical_and(applied, last)
    done = hx.state(STEP, (1,), "int64")
    names = [_name(p) for p in params]
    lasting = set(matching("train.step", optimizer.no_decay, names)) if optimizer.no_decay else set()
    numbers, lr = _rates(done, optimizer, norm, scale, clip)
    for p, g, square in zip(params, gradients, squares, strict=True):
        allowed = _finite(square, last) if alone else applied
        rates = hx.concat(numbers, hx.cast(allowed, dtype="fp32"), axis=0)
        moments = [hx.state(f"{_name(p)}.{name}", p.shape, p.dtype) for name in optimizer.moments]
        decay = {"decay": 0.0} if _name(p) in lasting else {}
        results = FUNCTIONS[optimizer.op](p, g, *moments, rates, **{**optimizer.attrs, **decay})
        news = results if isinstance(results, tuple) else (results,)
        updates += [_write(old, new) for old, new in zip((p, *moments), news, strict=True)]
    if alone:
        updates.append(_write(done, done + (1 if last is None else hx.cast(last, dtype="int64"))))
    else:
        updates.append(_write(done, done + hx.cast(applied, dtype="int64")))
    if notes:
        updates.append(kept_notes(notes))
    shown = {"loss": loss, "lr": hx.cast(lr, dtype="fp32"), "norm": hx.cast(norm, dtype="fp32")}
    return hx.graph({name: hx.reshape(t, shape=()) for name, t in shown.items()}, updates, name=STEP)


def check_states(graph: Graph, params: Sequence[Tensor], optimizer: Optimizer) -> None:
    """Raises Error for a step with further states, of random numbers or running statistics, which would differ between
    processes."""
    own = {STEP, CALLS, NOTES}
    for p in params:
        own |= {_name(p), _name(p) + GRADIENT, *(f"{_name(p)}.{name}" for name in optimizer.moments)}
    written = {n.inputs[0].node for n in graph.nodes if n.op == "write_state" and n.inputs[0] is not None}
    kept = {str(n.attrs["name"]) for n in graph.nodes if n.op == "state" or (n.op == "param" and n in written)}
    if other := sorted(kept - own):
        got = f"got a loss that changes the state {other[0]!r}"
        raise Error(f"[train.Trainer] communicator: {got}, need one without dropout and batch norms")


def _accumulated(
    params: Sequence[Tensor], gradients: Sequence[Tensor], first: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the accumulated sums of the gradients, and their writes. first: true in the first call after an
    update."""
    sums, writes = [], []
    for p, gradient in zip(params, gradients, strict=True):
        written, now = hx.state(_name(p) + GRADIENT, p.shape, p.dtype), first
        parts = sorted(_parts(gradient), key=_is_scattered)
        if _is_scattered(parts[0]):
            total = hx.restart_sum(written, first)
            written = _write(written, total)
        for part in parts:
            if _is_scattered(part):
                _, indices, rows = map(Tensor, part.value.node.inputs)  # type: ignore[arg-type]
                total = hx.scatter_nd(written, indices, rows, mode="add")
            else:
                total = hx.accumulate_step(written, part, now)
                now = hx.const(np.array([False]))
            written = _write(written, total)
        sums.append(total)
        writes.append(written)
    return sums, writes


def _parts(gradient: Tensor) -> list[Tensor]:
    """Returns the terms of a gradient: one per use of the param. Each term is added directly to the accumulated sum,
    and its memory is freed."""
    node = gradient.value.node
    if node.op != "add" or any(v is None or v.type != gradient.type for v in node.inputs):
        return [gradient]
    return [part for v in node.inputs for part in _parts(Tensor(v))]  # type: ignore[arg-type]


def _is_scattered(gradient: Tensor) -> bool:
    """True if the gradient is rows scattered into zeros, like the gradient of an embedding."""
    node = gradient.value.node
    if node.op != "scatter_nd" or node.attrs["mode"] != "add" or node.inputs[0] is None:
        return False
    zeros = node.inputs[0].node
    # Graphs express large arrays of zeros as broadcasts and reshapes.
    while zeros.op in ("broadcast_to", "reshape") and zeros.inputs[0] is not None:
        zeros = zeros.inputs[0].node
    return zeros.op == "const" and zeros.data is not None and not zeros.data.any()


def _squares(gradient: Tensor, when: Tensor | None) -> Tensor:
    """Returns the sum of squares, in fp64 of shape (1,); 0 if `when` is false."""
    return hx.cast(hx.reshape(hx.squared_norm(gradient, when), shape=(1,)), dtype="fp64")


def _finite(square: Tensor, last: Tensor | None) -> Tensor:
    """True if the sum of squares is finite and the call updates the params."""
    finite = hx.less(square, np.float64("inf"))
    return finite if last is None else hx.logical_and(finite, last)


def _rates(done: Tensor, optimizer: Optimizer, norm: Tensor, scale: float, clip: float | None) -> tuple[Tensor, Tensor]:
    """Returns all numbers but the last that the optimiser ops read (ops/records/optimizers.py), and the learning rate.
    Computed in fp64: 1 - 0.999 loses digits in fp32."""
    count = hx.reshape(hx.cast(done, dtype="fp64"), shape=())
    lr = hx.reshape(optimizer.lr(count), shape=(1,))
    after = hx.reshape(count + 1.0, shape=(1,))
    corrections = [
        1.0 - hx.exp(after * log(optimizer.attrs[beta])) if optimizer.attrs.get(beta) else after * 0.0 + 1.0
        for beta in ("beta1", "beta2")
    ]
    factor = after * 0.0 + scale
    if clip is not None:
        factor = factor * hx.minimum(clip / (norm + 1e-6), 1.0)
    numbers = [lr, 1.0 / corrections[0], 1.0 / hx.sqrt(corrections[1]), factor]
    assert len(numbers) == RATES - 1
    return hx.cast(hx.concat(*numbers, axis=0), dtype="fp32"), lr


def _write(state: Tensor, value: Tensor) -> Tensor:
    """Replaces the whole state."""
    if not state.shape:
        raise Error(
            f"[train.step] {_name(state)}: got a param without axes, need at least one: shape (1,) for a number"
        )
    return hx.write_state(state, value, np.array(0))


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for one in parts[1:]:
        total = total + one
    return total


def _name(t: Tensor) -> str:
    return str(t.value.node.attrs["name"])


def _check(
    loss: Tensor, params: Sequence[Tensor], clip: object, clip_value: object, accumulate: int, loss_scale: float
) -> None:
    if not params:
        raise Error("[train.step] params: got none, need the hx.param tensors to train")
    for p in params:
        if not isinstance(p, Tensor) or p.value.node.op != "param":
            raise Error(f"[train.step] params: got {p!r}, need tensors made by hx.param")
        if p.dtype is not FP32:
            raise Error(f"[train.step] params: got {p.type} for {_name(p)!r}, need fp32")
    if len({_name(p) for p in params}) != len(params):
        raise Error("[train.step] params: got a param twice, need each once")
    if not isinstance(loss, Tensor) or loss.type.size != 1:
        raise Error(f"[train.step] loss: got {loss!r}, need a tensor of one number")
    for name, value in (("clip", clip), ("clip_value", clip_value), ("loss_scale", loss_scale)):
        if value is not None and not (isinstance(value, (int, float)) and 0 < value < float("inf")):
            raise Error(f"[train.step] {name}: got {value!r}, need a number above 0")
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise Error(f"[train.step] accumulate: got {accumulate!r}, need an integer from 1 on")

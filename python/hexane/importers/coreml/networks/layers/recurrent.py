"""LSTM, GRU and simple recurrent layers of x (sequence, batch, vector, 1, 1).

The catalogue's recurrent ops compute most forms. The steps are unrolled if the cell may reach its limit, if gates are
coupled, or if the ops lack an activation.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.importers.coreml.networks.layers.elementwise import activated, activation_kind
from hexane.importers.coreml.networks.registry import LayerContext, reads
from hexane.ops.compose import part

OPS = {"sigmoid": "sigmoid", "tanh": "tanh", "ReLU": "relu", "sigmoidHard": "sigmoid_hard"}
BOUNDED = ("sigmoid", "tanh", "sigmoidHard")
GATE_LIMIT = 50.0  # bound of the operands of unbounded activations.
CELL_LIMIT = 50.0  # The cell's limit if the file says 0.
MOST_STEPS = 2048  # A longer sequence is not unrolled.
Step = Callable[[Value, Sequence[Value]], list[Value]]  # Arguments: a step's part of the input, the states.


# The alpha and beta of an activation if the file has neither, as in coremltools. In recurrent layers, Core ML allows no
# other numbers.
USUAL = {"linear": (1.0, 0.0), "sigmoidHard": (0.2, 0.5), "scaledTanh": (1.7159, 2 / 3)}


def _numbers(activation: Any) -> tuple[float, float]:
    kind = activation_kind(activation)
    given = getattr(activation, kind)
    return (given.alpha, given.beta) if given.alpha or given.beta else USUAL[kind]


def _activated(n: LayerContext, activation: Any, x: Value) -> Value:
    kind = activation_kind(activation)
    if kind not in USUAL:
        return activated(n, activation, x)
    alpha, beta = _numbers(activation)
    op = {"linear": "linear_activation", "sigmoidHard": "sigmoid_hard", "scaledTanh": "scaled_tanh"}[kind]
    return n.b.apply(op, x, alpha=alpha, beta=beta)


def _plain(activations: Sequence[Any]) -> bool:
    """True if Hexane's recurrent ops have each activation. They have sigmoidHard only with the numbers in USUAL."""
    return all(
        activation_kind(a) in OPS
        and (activation_kind(a) != "sigmoidHard" or np.allclose(_numbers(a), USUAL["sigmoidHard"]))
        for a in activations
    )


def _bounded(activations: Sequence[Any]) -> bool:
    return all(activation_kind(a) in BOUNDED for a in activations)


def _vectors(n: LayerContext, x: Value, size: int) -> Value:
    """Returns x as (sequence, batch, vector)."""
    x = n.five(x)
    if x.shape[2:] != (size, 1, 1):
        raise Error(f"inputVectorSize: got x {x.shape}, need (sequence, batch, {size}, 1, 1)")
    return n.b.reshape(x, shape=x.shape[:3])


def _state(n: LayerContext, given: Value | None, batch: int, hidden: int) -> Value:
    """Returns a state as (batch, hidden), zeros if none is given."""
    if given is None:
        return n.b.const(np.zeros((batch, hidden), np.float32))
    return n.b.reshape(given, shape=(batch, hidden))


def _result(n: LayerContext, y: Value, whole: bool) -> Value:
    """Reshapes (sequence, batch, vector) to (sequence or 1, batch, vector, 1, 1)."""
    if not whole:
        y = part(n.b, y, 0, y.shape[0] - 1, y.shape[0])
    return n.least(n.b.reshape(y, shape=(*y.shape, 1, 1)))


def _last(n: LayerContext, state: Value) -> Value:
    return n.least(n.b.reshape(state, shape=(1, *state.shape[-2:], 1, 1)))


def _limited(n: LayerContext, activation: Any, z: Value) -> Value:
    if activation_kind(activation) not in BOUNDED:
        z = n.b.clip(z, alpha=-GATE_LIMIT, beta=GATE_LIMIT)
    return _activated(n, activation, z)


def _written_out(
    n: LayerContext, x: Value, weight: Array, bias: Array | None, states: list[Value], step: Step
) -> tuple[Value, list[Value]]:
    """Unrolls the steps. Returns all outputs (sequence, batch, hidden), and the last states."""
    count, batch, size = x.shape
    if count > MOST_STEPS:
        raise Error(f"got a sequence of {count}, need at most {MOST_STEPS} for these activations or limits")
    flat = n.b.linear(n.b.reshape(x, shape=(count * batch, size)), weight, bias)
    inputs = n.b.reshape(flat, shape=(count, batch, weight.shape[0]))
    rows: list[Value] = []
    for t in range(count):
        now = n.b.reshape(part(n.b, inputs, 0, t, t + 1), shape=(batch, weight.shape[0]))
        states = step(now, states)
        rows.append(states[0])
    return n.b.stack(*rows, axis=0), states


def _gates(b: Any, z: Value, count: int) -> tuple[Value, ...]:
    return tuple(b.several("split", z, axis=1, num_splits=count))


# ---- LSTM: gates in the order input, output, forget, new ----

LSTM_GATES = ("inputGate", "outputGate", "forgetGate", "blockInput")


def _lstm(
    n: LayerContext, p: Any, w: Any, activations: Sequence[Any], x: Value, h: Value, c: Value, starts_at_zero: bool
) -> tuple[Value, Value, Value]:
    """Computes one direction. Returns outputs (sequence, batch, hidden) and the last states (batch, hidden)."""
    inner, hidden, about = int(p.inputVectorSize), int(p.outputVectorSize), p.params
    if len(activations) != 3:
        raise Error(f"activations: got {len(activations)}, need 3")
    weight = np.concatenate([n.weight(getattr(w, f"{g}WeightMatrix"), hidden, inner) for g in LSTM_GATES])
    recurrent = np.concatenate([n.weight(getattr(w, f"{g}RecursionMatrix"), hidden, hidden) for g in LSTM_GATES])
    bias = np.zeros(4 * hidden, np.float32)
    if about.hasBiasVectors:
        bias = np.concatenate([n.weight(getattr(w, f"{g}BiasVector"), hidden) for g in LSTM_GATES])
    if about.forgetBias:
        bias[2 * hidden : 3 * hidden] += 1
    peepholes = None
    if about.hasPeepholeVectors:
        peepholes = np.stack([n.weight(getattr(w, f"{g}PeepholeVector"), hidden) for g in LSTM_GATES[:3]])
    limit = about.cellClipThreshold or CELL_LIMIT
    # If all gates are at most 1, a step adds at most 1 to the cell.
    is_limited = not (starts_at_zero and _bounded(activations) and x.shape[0] <= limit)
    if _plain(activations) and _bounded(activations) and not is_limited and not about.coupledInputAndForgetGate:
        both = np.concatenate([bias, np.zeros_like(bias)])[None]
        names = [OPS[activation_kind(a)] for a in activations]
        start = [n.b.expand_dims(v, axes=(0,)) for v in (h, c)]
        peephole = None if peepholes is None else peepholes.reshape(1, -1)
        y, last_h, last_c = n.b.several(
            "lstm", x, weight[None], recurrent[None], both, None, *start, peephole, activations=names
        )
        return (
            n.b.reshape(y, shape=(y.shape[0], *y.shape[2:])),
            *(n.b.reshape(v, shape=v.shape[1:]) for v in (last_h, last_c)),
        )  # type: ignore[return-value]  # outputs and two states

    def step(now: Value, states: Sequence[Value]) -> list[Value]:
        b, (last, cell) = n.b, states
        i, o, f, z = _gates(b, b.add(now, b.matmul(last, np.ascontiguousarray(recurrent.T))), 4)
        if peepholes is not None:
            i, f = b.add(i, b.mul(cell, peepholes[0])), b.add(f, b.mul(cell, peepholes[2]))
        i, z = _limited(n, activations[0], i), _limited(n, activations[1], z)
        keep = (
            b.sub(n.b.const(1.0, "float32"), i) if about.coupledInputAndForgetGate else _limited(n, activations[0], f)
        )
        cell = b.clip(b.add(b.mul(cell, keep), b.mul(i, z)), alpha=-limit, beta=limit)
        if peepholes is not None:
            o = b.add(o, b.mul(cell, peepholes[1]))
        o = _limited(n, activations[0], o)
        return [b.mul(_activated(n, activations[2], cell), o), cell]

    y, (last_h, last_c) = _written_out(n, x, weight, bias, [h, c], step)
    return y, last_h, last_c


@reads("uniDirectionalLSTM")
def lstm(n: LayerContext, p: Any, x: Value, h: Value | None = None, c: Value | None = None) -> tuple[Value, ...]:
    hidden = int(p.outputVectorSize)
    x = _vectors(n, x, int(p.inputVectorSize))
    if p.reverseInput:
        x = n.b.reverse(x, axes=(0,))
    start = [_state(n, v, x.shape[1], hidden) for v in (h, c)]
    y, last_h, last_c = _lstm(n, p, p.weightParams, p.activations, x, start[0], start[1], starts_at_zero=c is None)
    return _result(n, y, p.params.sequenceOutput), _last(n, last_h), _last(n, last_c)


@reads("biDirectionalLSTM")
def bidirectional_lstm(n: LayerContext, p: Any, x: Value, *states: Value) -> tuple[Value, ...]:
    """Computes both directions, the second from the last element to the first, and concatenates the two outputs of an
    element."""
    hidden = int(p.outputVectorSize)
    if len(p.weightParams) != 2 or len(states) not in (0, 4):
        raise Error(f"got {len(p.weightParams)} directions and {len(states)} states, need 2 and 0 or 4")
    x = _vectors(n, x, int(p.inputVectorSize))
    sides, lasts = [], []
    for i, w in enumerate(p.weightParams):
        given = states[2 * i : 2 * i + 2] or (None, None)
        start = [_state(n, v, x.shape[1], hidden) for v in given]
        side = n.b.reverse(x, axes=(0,)) if i else x
        activations = (p.activationsBackwardLSTM if i else ()) or p.activationsForwardLSTM
        y, last_h, last_c = _lstm(n, p, w, activations, side, start[0], start[1], starts_at_zero=not states)
        if not p.params.sequenceOutput:
            y = n.b.expand_dims(last_h, axes=(0,))
        elif i:
            y = n.b.reverse(y, axes=(0,))
        sides.append(y)
        lasts += [_last(n, last_h), _last(n, last_c)]
    return _result(n, n.b.concat(*sides, axis=2), True), *lasts


# ---- GRU: gates in the order update, reset, new ----

GRU_GATES = ("updateGate", "resetGate", "outputGate")


@reads("gru")
def gru(n: LayerContext, p: Any, x: Value, h: Value | None = None) -> tuple[Value, ...]:
    inner, hidden = int(p.inputVectorSize), int(p.outputVectorSize)
    if len(p.activations) != 2:
        raise Error(f"activations: got {len(p.activations)}, need 2")
    x = _vectors(n, x, inner)
    x = n.b.reverse(x, axes=(0,)) if p.reverseInput else x
    start = _state(n, h, x.shape[1], hidden)
    weight = np.concatenate([n.weight(getattr(p, f"{g}WeightMatrix"), hidden, inner) for g in GRU_GATES])
    recurrent = np.concatenate([n.weight(getattr(p, f"{g}RecursionMatrix"), hidden, hidden) for g in GRU_GATES])
    bias = np.zeros(3 * hidden, np.float32)
    if p.hasBiasVectors:
        bias = np.concatenate([n.weight(getattr(p, f"{g}BiasVector"), hidden) for g in GRU_GATES])
    if _plain(p.activations):
        names = [OPS[activation_kind(a)] for a in p.activations]
        return _by_op(n, "gru", x, weight, recurrent, bias, start, names, _bounded(p.activations), p.sequenceOutput)

    def step(now: Value, states: Sequence[Value]) -> list[Value]:
        b, (last,) = n.b, states
        first = np.ascontiguousarray(recurrent[: 2 * hidden].T)
        z, r, new = _gates(b, now, 3)
        more = _gates(b, b.matmul(last, first), 2)
        z, r = (_limited(n, p.activations[0], b.add(g, m)) for g, m in zip((z, r), more, strict=True))
        product = b.matmul(b.mul(last, r), np.ascontiguousarray(recurrent[2 * hidden :].T))
        new = _limited(n, p.activations[1], b.add(new, product))
        return [b.add(b.mul(b.sub(b.const(1.0, "float32"), z), new), b.mul(z, last))]

    y, (last,) = _written_out(n, x, weight, bias, [start], step)
    return _result(n, y, p.sequenceOutput), _last(n, last)


@reads("simpleRecurrent")
def simple_recurrent(n: LayerContext, p: Any, x: Value, h: Value | None = None) -> tuple[Value, ...]:
    inner, hidden = int(p.inputVectorSize), int(p.outputVectorSize)
    x = _vectors(n, x, inner)
    x = n.b.reverse(x, axes=(0,)) if p.reverseInput else x
    start = _state(n, h, x.shape[1], hidden)
    weight, recurrent = n.weight(p.weightMatrix, hidden, inner), n.weight(p.recursionMatrix, hidden, hidden)
    bias = n.weight(p.biasVector, hidden) if p.hasBiasVector else np.zeros(hidden, np.float32)
    if _plain([p.activation]):
        names = [OPS[activation_kind(p.activation)]]
        return _by_op(n, "rnn", x, weight, recurrent, bias, start, names, _bounded([p.activation]), p.sequenceOutput)

    def step(now: Value, states: Sequence[Value]) -> list[Value]:
        product = n.b.matmul(states[0], np.ascontiguousarray(recurrent.T))
        return [_limited(n, p.activation, n.b.add(now, product))]

    y, (last,) = _written_out(n, x, weight, bias, [start], step)
    return _result(n, y, p.sequenceOutput), _last(n, last)


def _by_op(
    n: LayerContext, op: str, x: Value, weight: Array, recurrent: Array, bias: Array, start: Value, names: list[str],
    is_bounded: bool, whole: bool,
) -> tuple[Value, Value]:  # fmt: skip
    both = np.concatenate([bias, np.zeros_like(bias)])[None]
    limit = {} if is_bounded else {"clip": GATE_LIMIT}
    initial = n.b.expand_dims(start, axes=(0,))
    y, last = n.b.several(op, x, weight[None], recurrent[None], both, None, initial, activations=names, **limit)
    flat = n.b.reshape(y, shape=(y.shape[0], *y.shape[2:]))
    return _result(n, flat, whole), _last(n, last)

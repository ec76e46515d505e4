"""RNN, GRU and LSTM, one step after the other. Inside, everything has the time axis first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.onnx.handlers.constants import limited
from hexane.importers.onnx.node import Builder, OnnxNode, Result

MAX_STEPS = 2048  # each is a handful of ops
ACTIVATIONS = {
    "Relu": "relu", "Sigmoid": "sigmoid", "Softplus": "softplus", "Softsign": "softsign", "Tanh": "tanh"
}  # fmt: skip
Function = Callable[[Value], Value]


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction's weights. `inputs` are the products of x and W with their bias, (time, batch, gates * hidden)."""

    inputs: Value
    recurrent: Value  # (gates * hidden, hidden)
    bias: Value | None  # the recurrent one, (gates * hidden,)
    peephole: Value | None
    functions: Sequence[Function]
    hidden: int
    options: OnnxNode


State = tuple[Value, ...]
Step = Callable[[Builder, Direction, Value, State], State]


def part(b: Builder, x: Value, axis: int, start: int, stop: int) -> Result:
    begin, end = [0] * len(x.shape), list(x.shape)
    begin[axis], end[axis] = start, stop
    return b.slice_by_index(x, begin=begin, end=end)


def gate(b: Builder, d: Direction, x: Value, index: int, axis: int = 1) -> Result:
    """The part of x that belongs to one gate."""
    return part(b, x, axis, index * d.hidden, (index + 1) * d.hidden)


def clipped(b: Builder, d: Direction, x: Value) -> Result:
    bound = d.options.attrs.get("clip", 0.0)
    return b.clip(x, alpha=-bound, beta=bound) if bound else x


def _product(b: Builder, d: Direction, hidden: Value) -> Result:
    return b.matmul(hidden, d.recurrent, d.bias, transpose_y=True)


def rnn_step(b: Builder, d: Direction, x: Value, state: State) -> State:
    return (d.functions[0](clipped(b, d, b.add(x, _product(b, d, state[0])))),)


def gru_step(b: Builder, d: Direction, x: Value, state: State) -> State:
    """Gates z, r, h. With linear_before_reset the reset gate scales the product, else what is multiplied."""
    (hidden,) = state
    product = _product(b, d, hidden)
    update, reset = (d.functions[0](clipped(b, d, b.add(gate(b, d, x, i), gate(b, d, product, i)))) for i in range(2))
    if d.options.attrs.get("linear_before_reset", 0):
        inner = b.mul(reset, gate(b, d, product, 2))
    else:
        bias = None if d.bias is None else gate(b, d, d.bias, 2, 0)
        inner = b.matmul(b.mul(reset, hidden), gate(b, d, d.recurrent, 2, 0), bias, transpose_y=True)
    new = d.functions[1](clipped(b, d, b.add(gate(b, d, x, 2), inner)))
    return (b.add(b.mul(b.sub(1.0, update), new), b.mul(update, hidden)),)


def lstm_step(b: Builder, d: Direction, x: Value, state: State) -> State:
    """Gates i, o, f, c; the peepholes of i and f see the old cell, that of o the new one."""
    hidden, cell = state
    total = b.add(x, _product(b, d, hidden))

    def opened(index: int, seen: Value) -> Value:
        value = gate(b, d, total, index)
        if d.peephole is not None:
            value = b.add(value, b.mul(gate(b, d, d.peephole, index, 0), seen))
        return d.functions[0](clipped(b, d, value))

    enter, keep = opened(0, cell), opened(2, cell)
    new = b.mul(enter, d.functions[1](clipped(b, d, gate(b, d, total, 3))))
    after = b.add(b.mul(keep, cell), new)
    return b.mul(opened(1, after), d.functions[2](after)), after


def recurrent(step: Step, gates: int, defaults: Sequence[str]) -> Callable[[Builder, OnnxNode], Result]:
    """`defaults` are the activations, for one direction."""
    states = 2 if step is lstm_step else 1

    def run(b: Builder, n: OnnxNode) -> Result:
        x, weights, recurrent, bias, lengths = n.value(0), n.value(1), n.value(2), n.optional(3), n.optional(4)
        initial = [n.optional(5 + i) for i in range(states)]
        peephole = n.optional(7) if states == 2 else None
        if n.attrs.get("input_forget", 0):
            raise Error("input_forget: got 1, need 0")
        if n.attrs.get("activation_alpha") or n.attrs.get("activation_beta"):
            raise Error("got activation_alpha or activation_beta, need activations without")
        batch_first = bool(n.attrs.get("layout", 0))
        if len(x.shape) != 3 or len(weights.shape) != 3 or len(recurrent.shape) != 3:
            raise Error(f"got X {x.shape}, W {weights.shape} and R {recurrent.shape}, need 3 axes each")
        if batch_first:
            x = b.transpose(x, perm=(1, 0, 2))
            initial = [None if v is None else b.transpose(v, perm=(1, 0, 2)) for v in initial]
        time, batch, _ = x.shape
        directions, hidden = weights.shape[0], recurrent.shape[-1]
        way = n.attrs["direction"]
        if way not in ("forward", "reverse", "bidirectional") or directions != 1 + (way == "bidirectional"):
            raise Error(f"direction: got {way!r} for {directions} sets of weights")
        if weights.shape[1] != gates * hidden or n.attrs.get("hidden_size", hidden) != hidden:
            raise Error(f"got W {weights.shape} and R {recurrent.shape}, need {gates} gates of hidden_size")
        if not 1 <= time <= MAX_STEPS:
            raise Error(f"got {time} steps, need 1 to {MAX_STEPS}")
        if lengths is not None and way != "forward":
            if lengths.node.data is None or (lengths.node.data != time).any():
                raise Error(f"got sequence_lens with direction {way}, need the full length, or forward")
            lengths = None
        names = n.attrs.get("activations", ())
        if not names or (names == ("Tanh", "Tanh") and len(defaults) == 1):  # RNN's default, for two directions
            names = tuple(defaults) * directions
        if len(names) != len(defaults) * directions or any(name not in ACTIVATIONS for name in names):
            raise Error(f"activations: got {names}, need {len(defaults) * directions} of {', '.join(ACTIVATIONS)}")
        limited(batch * hidden, x.dtype.numpy)
        outs, lasts = [], []
        for i in range(directions):
            one = [None if v is None else b.reshape(part(b, v, 0, i, i + 1), shape=v.shape[1:])
                   for v in (weights, recurrent, bias, peephole, *initial)]  # fmt: skip
            chosen = names[i * len(defaults) : (i + 1) * len(defaults)]
            functions = [_function(b, name) for name in chosen]
            backwards = way == "reverse" or i == 1
            d = _direction(b, n, x, one, functions, gates * hidden)
            start = [v if v is not None else b.const(np.zeros((batch, hidden), x.dtype.numpy)) for v in one[4:]]
            found, last = _unrolled(b, d, step, tuple(start), lengths, backwards)
            outs.append(found)
            lasts.append(last)
        whole = b.stack(*outs, axis=1)
        ends = [b.stack(*values, axis=0) for values in zip(*lasts, strict=True)]
        if batch_first:
            return [b.transpose(whole, perm=(2, 0, 1, 3)), *(b.transpose(v, perm=(1, 0, 2)) for v in ends)]
        return [whole, *ends]

    return run


def _function(b: Builder, name: str) -> Function:
    return lambda x: b.apply(ACTIVATIONS[name], x)


def _direction(
    b: Builder, n: OnnxNode, x: Value, one: Sequence[Value | None], functions: Sequence[Function], width: int
) -> Direction:
    weights, recurrent, bias, peephole = one[:4]
    assert weights is not None
    assert recurrent is not None
    halves = (None, None) if bias is None else (part(b, bias, 0, 0, width), part(b, bias, 0, width, 2 * width))
    inputs = b.matmul(x, weights, halves[0], transpose_y=True)
    return Direction(inputs, recurrent, halves[1], peephole, functions, recurrent.shape[-1], n)


def _unrolled(
    b: Builder, d: Direction, step: Step, state: State, lengths: Value | None, backwards: bool
) -> tuple[Value, State]:
    """(time, batch, hidden) and the last state; behind a sequence's end the state stays and the output is 0."""
    time, batch, _ = d.inputs.shape
    found: dict[int, Value] = {}
    nothing = b.const(np.zeros((), d.inputs.dtype.numpy))
    for t in reversed(range(time)) if backwards else range(time):
        x = b.reshape(part(b, d.inputs, 0, t, t + 1), shape=(batch, -1))
        after = step(b, d, x, state)
        out = after[0]
        if lengths is not None:
            running = b.reshape(b.greater(lengths, b.const(np.array(t, lengths.dtype.numpy))), shape=(batch, 1))
            after = tuple(b.select(running, new, old) for new, old in zip(after, state, strict=True))
            out = b.select(running, out, nothing)
        found[t], state = out, after
    return b.stack(*(found[t] for t in range(time)), axis=0), state


HANDLERS = {
    "GRU": recurrent(gru_step, 3, ("Sigmoid", "Tanh")),
    "LSTM": recurrent(lstm_step, 4, ("Sigmoid", "Tanh", "Tanh")),
    "RNN": recurrent(rnn_step, 1, ("Tanh",)),
}

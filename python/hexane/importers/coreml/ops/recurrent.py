"""LSTM, GRU and RNN: Core ML's order of gates, and its order of reversed sequences."""

from typing import Any

import numpy as np

from hexane.dtypes import FP32
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.coreml.registry import Context, reads
from hexane.ops.compose import Builder, cast

ACTIVATIONS = {
    "tanh": "tanh", "sigmoid": "sigmoid", "relu": "relu", "linear": "linear", "hard_sigmoid": "sigmoid_hard",
    "sigmoid_hard": "sigmoid_hard",
}  # fmt: skip


def _activation(name: str) -> str:
    if name not in ("tanh", "sigmoid", "relu", "hard_sigmoid", "sigmoid_hard"):
        raise Error(f"got the activation {name!r}, need tanh, sigmoid, relu or hard_sigmoid")
    return ACTIVATIONS[name]


def _gates(b: Builder, weight: Value | None, order: tuple[int, ...], hidden: int) -> Value | None:
    """Reorders the rows of gates. The result is (1, gates * hidden, ..)."""
    if weight is None:
        return None
    rows = np.concatenate([np.arange(g * hidden, (g + 1) * hidden) for g in order]).astype(np.int32)
    picked = b.gather(weight, rows, axis=0)
    return b.expand_dims(picked, axes=(0,))


def _first_rows(b: Builder, state: Value, batch: int) -> Value:
    """Returns the first `batch` rows of a state. The states of PyTorch's packed sequences may have more rows."""
    if state.shape[0] <= batch:
        return state
    return b.slice_by_index(state, begin=(0, 0), end=(batch, state.shape[1]))


def _directions(b: Builder, state: Value, batch: int, hidden: int, directions: int) -> Value:
    """Reshapes (batch, directions * hidden) to (directions, batch, hidden)."""
    state = _first_rows(b, state, batch)
    split = b.reshape(state, shape=(batch, directions, hidden))
    return b.transpose(split, perm=(1, 0, 2))


def _together(b: Builder, state: Value) -> Value:
    """Reshapes (directions, batch, hidden) to (batch, directions * hidden)."""
    directions, batch, hidden = state.shape
    return b.reshape(b.transpose(state, perm=(1, 0, 2)), shape=(batch, directions * hidden))


def _stacked(b: Builder, parts: list[Value | None]) -> Value | None:
    if any(p is None for p in parts):
        return None
    return parts[0] if len(parts) == 1 else b.concat(*parts, axis=0)


def _sequence(b: Builder, y: Value, whole: bool, last: Value) -> Value:
    """Reshapes (s, directions, batch, hidden) to (s, batch, directions * hidden), or returns only the last step."""
    steps, directions, batch, hidden = y.shape
    if not whole:
        return b.expand_dims(_together(b, last), axes=(0,))
    return b.reshape(b.transpose(y, perm=(0, 2, 1, 3)), shape=(steps, batch, directions * hidden))


def _run(
    c: Context, op: str, x: Value, sides: list[tuple[Any, ...]], states: list[Value], direction: str,
    whole: bool, hidden: int, activations: list[str], extra: dict[str, Any], peepholes: list[Value | None],
) -> tuple[Value, ...]:  # fmt: skip
    """sides: weight, recurrent and bias of each direction. states: (batch, directions * hidden) each. For a reversed
    sequence, the output of the last element comes first, because it is computed first."""
    b, dtype = c.b, x.dtype
    x = cast(b, x, FP32)
    if direction == "reverse":
        x = b.reverse(x, axes=(0,))
    directions = len(sides)
    batch = x.shape[1]
    weight, recurrent, bias = (_stacked(b, [cast_or_none(b, side[i]) for side in sides]) for i in range(3))
    initial = [_directions(b, cast(b, s, FP32), batch, hidden, directions) for s in states]
    operands = [x, weight, recurrent, bias, None, *initial]
    if op == "lstm":
        operands.append(_stacked(b, [cast_or_none(b, p) for p in peepholes]))
    sequences = b.several(
        op, *operands, direction="bidirectional" if directions == 2 else "forward", activations=activations, **extra
    )
    y, *lasts = sequences
    results = [_sequence(b, y, whole, lasts[0]), *(_together(b, last) for last in lasts)]
    return tuple(cast(b, r, dtype) for r in results)


def cast_or_none(b: Builder, value: Value | None) -> Value | None:
    return None if value is None else cast(b, value, FP32)


# The gates of an LSTM are i, o, f, c in the catalogue and i, f, o, z in Core ML; of a GRU z, r, h and r, o, z.
LSTM, GRU = (0, 2, 1, 3), (2, 0, 1)
PEEPHOLE = (0, 2, 1)  # ONNX: i, o, f; Core ML: i, f, o


@reads(
    "lstm x initial_h initial_c weight_ih weight_hh bias? peephole? weight_ih_back? weight_hh_back? bias_back?"
    " peephole_back? direction:str=forward output_sequence:bool=false recurrent_activation:str=sigmoid"
    " cell_activation:str=tanh activation:str=tanh clip:float?"
)
def lstm(c: Context, _: Any, /, **g: Any) -> tuple[Value, ...]:
    b, hidden = c.b, g["weight_hh"].shape[1]
    both = g["direction"] == "bidirectional"
    names = ["", "_back"] if both else [""]
    sides = [
        (
            _gates(b, g[f"weight_ih{n}"], LSTM, hidden),
            _gates(b, g[f"weight_hh{n}"], LSTM, hidden),
            _with_none(b, _gates(b, g[f"bias{n}"], LSTM, hidden)),
        )
        for n in names
    ]
    peepholes = [_gates(b, g[f"peephole{n}"], PEEPHOLE, hidden) for n in names]
    if g["clip"] is not None:
        raise Error(f"clip: got {g['clip']}, need none: it limits the cell alone")
    # Core ML's names: recurrent_activation for the gates, cell_activation for the new contents, activation for the
    # output.
    activations = [_activation(g[k]) for k in ("recurrent_activation", "cell_activation", "activation")]
    states = [g["initial_h"], g["initial_c"]]
    return _run(
        c, "lstm", g["x"], sides, states, g["direction"], g["output_sequence"], hidden, activations * len(names), {},
        peepholes,
    )  # fmt: skip


def _with_none(b: Builder, bias: Value | None) -> Value | None:
    """Returns both biases of a direction, the second as zeros."""
    if bias is None:
        return None
    return b.concat(bias, b.const(np.zeros(bias.shape, bias.dtype.numpy)), axis=1)


@reads(
    "gru x initial_h weight_ih weight_hh bias? input_bias? direction:str=forward output_sequence:bool=false"
    " recurrent_activation:str=sigmoid activation:str=tanh reset_after:bool=false"
)
def gru(c: Context, _: Any, /, **g: Any) -> tuple[Value, ...]:
    """Computes a GRU. Without reset_after, the reset gate is applied before the product, and there is one bias."""
    b, hidden = c.b, g["weight_hh"].shape[1]
    bias, other = _gates(b, g["bias"], GRU, hidden), _gates(b, g["input_bias"], GRU, hidden)
    after = g["reset_after"]
    given = bias if bias is not None else other
    if given is None:
        both = None
    else:
        zeros = b.const(np.zeros(given.shape, given.dtype.numpy))
        # With reset_after, `bias` is added to the recurrent product.
        pair = (other if other is not None else zeros, bias if bias is not None else zeros)
        both = b.concat(*pair, axis=1)
    side = (_gates(b, g["weight_ih"], GRU, hidden), _gates(b, g["weight_hh"], GRU, hidden), both)
    activations = [_activation(g[k]) for k in ("recurrent_activation", "activation")]
    return _run(
        c, "gru", g["x"], [side], [g["initial_h"]], g["direction"], g["output_sequence"], hidden, activations,
        {"linear_before_reset": after}, [],
    )  # fmt: skip


@reads("rnn x initial_h weight_ih weight_hh bias? direction:str=forward output_sequence:bool=false activation:str=tanh")
def rnn(c: Context, _: Any, /, **g: Any) -> tuple[Value, ...]:
    b, hidden = c.b, g["weight_hh"].shape[1]
    side = (
        _gates(b, g["weight_ih"], (0,), hidden),
        _gates(b, g["weight_hh"], (0,), hidden),
        _with_none(b, _gates(b, g["bias"], (0,), hidden)),
    )
    activations = [_activation(g["activation"])]
    return _run(
        c, "rnn", g["x"], [side], [g["initial_h"]], g["direction"], g["output_sequence"], hidden, activations, {}, []
    )

"""Recurrent ops, whose states are variables. Sequences become the catalogue's lstm or rnn if the op can express them;
other sequences are unrolled."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hexane.dtypes import FP32, INT32, INT64
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.tflite.integer import RELU, TANH, clamped, halved_away, multiplier, stored, two
from hexane.importers.tflite.ops.activations import activated
from hexane.importers.tflite.ops.fixed_point import sigmoid_table_16, tanh_table_16
from hexane.importers.tflite.ops.linear import hybrid_product, sums
from hexane.importers.tflite.registry import INT8, INT16, Context, reads
from hexane.ops.compose import cast, part

MOST_STEPS = 512
INPUT, FORGET, CELL, OUTPUT = range(4)
LSTM_OUTPUT_STATE, LSTM_CELL_STATE = 18, 19


def _product(c: Context, x: Value, i: int) -> Value:
    """Multiplies x by a weight operand. If the weight is stored in integers, each row of x is quantised."""
    w = c.x(i)
    if w.dtype.kind == "float":
        return c.b.matmul(x, w, transpose_y=True)
    grid = c.grid(i)
    if grid.zeros.any() or grid.scales.size > 1:
        raise Error("got a zero point or scales of channels, need one scale")
    return hybrid_product(c.b, x, w, grid.scales[0], not c.o.get("asymmetric_quantize_inputs"))


def _real(c: Context, i: int) -> Value | None:
    """Returns an operand as floats, or None if the op lacks it."""
    if not c.has(i):
        return None
    x = c.x(i)
    if x.dtype.kind == "float":
        return x
    return c.b.mul(cast(c.b, x, FP32), float(c.grid(i).scale))


def _state(c: Context, i: int) -> Value:
    if not c.t(i).is_variable:
        raise Error("got a state that is no variable, need one")
    return c.x(i)


def _keep(c: Context, i: int, value: Value) -> None:
    c.translator.assign(c.translator.state_name(c.scope, c.op.inputs[i]), value, c.b.sources)


def _steps(c: Context, x: Value, time_major: bool, step: Callable[[Value], Value]) -> Value:
    """Applies a step to each time index of x (time, batch, ..), or (batch, time, ..)."""
    axis = 0 if time_major else 1
    if len(x.shape) != 3 or not 0 < x.shape[axis] <= MOST_STEPS:
        raise Error(f"got x {list(x.shape)}, need 1 to {MOST_STEPS} steps")
    results = []
    for t in range(x.shape[axis]):
        now = part(c.b, x, axis, t, t + 1)
        results.append(step(c.b.reshape(now, shape=[d for i, d in enumerate(x.shape) if i != axis])))
    return c.b.stack(*results, axis=axis)


# ---- LSTM ----


@reads("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM")
def lstm(c: Context) -> Value:
    if c.o.get("kernel_type"):
        raise Error("got the basic kernel, need the full one")
    if c.o.get("diagonal_recurrent_tensors"):
        raise Error("got diagonal recurrent weights, need matrices")
    if len(c.op.outputs) != 1:
        raise Error(f"got {len(c.op.outputs)} results, need 1")
    x = c.x(0)
    state = [_state(c, LSTM_OUTPUT_STATE), _state(c, LSTM_CELL_STATE)]
    if c.op.name != "LSTM" and _is_lstm_op(c):
        return _lstm_op(c, x, state[0], state[1])
    step = _integer_cell(c) if x.dtype is INT8 else _float_cell(c)

    def one(now: Value) -> Value:
        state[0], state[1] = step(now, state[0], state[1])
        return state[0]

    y = one(x) if c.op.name == "LSTM" else _steps(c, x, bool(c.o["time_major"]), one)
    _keep(c, LSTM_OUTPUT_STATE, state[0])
    _keep(c, LSTM_CELL_STATE, state[1])
    return y


def _is_lstm_op(c: Context) -> bool:
    """True if the catalogue's lstm computes the op: floats of rank 3 with an input gate and tanh, without a
    projection, layer normalisation or a limit of the cell state."""
    floats = all(c.x(i).dtype.kind == "float" for i in (0, *range(2, 9)))
    others = (16, *range(20, 24))  # operands of a projection and of layer normalisation
    return (
        floats and c.has(1) and c.has(5) and not any(c.has(i) for i in others) and len(c.x(0).shape) == 3
        and c.o["fused_activation_function"] == TANH and not c.o["cell_clip"]
    )  # fmt: skip


def _lstm_op(c: Context, x: Value, hidden: Value, cell: Value) -> Value:
    b, order = c.b, (INPUT, OUTPUT, FORGET, CELL)
    units = c.x(6).shape[0]

    def together(values: list[Value | None], size: int) -> Value | None:
        """Concatenates vectors to one row, with zeros for missing ones. Returns None if all are missing."""
        if all(v is None for v in values):
            return None
        zeros = b.const(np.zeros(size, x.dtype.numpy))
        return b.expand_dims(b.concat(*(zeros if v is None else v for v in values), axis=0), axes=(0,))

    def stacked(first: int) -> Value:
        return b.expand_dims(b.concat(*(c.x(first + g) for g in order), axis=0), axes=(0,))

    time_major = bool(c.o["time_major"])
    axis = 0 if time_major else 1  # the axis of directions in the states
    y, last, last_cell = b.several(
        "lstm", x, stacked(1), stacked(5), together([*(_real(c, 12 + g) for g in order), *[None] * 4], units), None,
        b.expand_dims(hidden, axes=(axis,)), b.expand_dims(cell, axes=(axis,)),
        together([_real(c, 9), _real(c, 11), _real(c, 10)], units), batch_first=not time_major,
    )  # fmt: skip
    _keep(c, LSTM_OUTPUT_STATE, b.squeeze(last, axes=(axis,)))
    _keep(c, LSTM_CELL_STATE, b.squeeze(last_cell, axes=(axis,)))
    return b.squeeze(y, axes=(1 if time_major else 2,))


Cell = Callable[[Value, Value, Value], tuple[Value, Value]]


def _float_cell(c: Context) -> Cell:
    b, code = c.b, c.o["fused_activation_function"]
    coupled = not c.has(1)
    peepholes = {INPUT: _real(c, 9), FORGET: _real(c, 10), OUTPUT: _real(c, 11)}
    norms = [_real(c, 20 + g) for g in range(4)]
    biases = [_real(c, 12 + g) for g in range(4)]

    def gate(g: int, x: Value, h: Value, cell: Value) -> Value:
        y = b.add(_product(c, x, 1 + g), _product(c, h, 5 + g))
        peephole = peepholes.get(g)
        y = y if peephole is None else b.add(y, b.mul(cell, peephole))
        norm, bias = norms[g], biases[g]
        if norm is not None:
            centred = b.sub(y, b.reduce_mean(y, axes=(1,)))
            spread = b.reduce_mean(b.mul(centred, centred), axes=(1,))
            y = b.mul(b.real_div(centred, b.sqrt(b.add(spread, 1e-8))), norm)
        y = y if bias is None else b.add(y, bias)
        return activated(b, y, code) if g == CELL else b.sigmoid(y)

    def limited(x: Value, most: float) -> Value:
        return b.clip(x, alpha=-most, beta=most) if most > 0 else x

    def step(x: Value, h: Value, cell: Value) -> tuple[Value, Value]:
        forget = gate(FORGET, x, h, cell)
        let_in = b.add(b.neg(forget), 1.0) if coupled else gate(INPUT, x, h, cell)
        new = b.add(b.mul(forget, cell), b.mul(let_in, gate(CELL, x, h, cell)))
        new = limited(new, float(c.o["cell_clip"]))
        y = b.mul(gate(OUTPUT, x, h, new), activated(b, new, code))
        if c.has(16):
            y = _product(c, y, 16)
            bias = _real(c, 17)
            y = limited(y if bias is None else b.add(y, bias), float(c.o["proj_clip"]))
        return y, new

    return step


def _integer_cell(c: Context) -> Cell:
    """An int8 LSTM with an int16 cell state. Gates are in Q3.12, and each step saturates to int16."""
    b, op = c.b, c.op
    if any(c.has(i) for i in range(20, 24)):
        raise Error("got int8 with layer normalisation, which is not computed bit for bit, need none or floats")
    if len(op.intermediates) != 5 or c.o["fused_activation_function"] != 4:
        raise Error("got int8 without the scales of five results, or not with tanh, need these scales and tanh")
    hidden = c.scope.graph.tensors[op.intermediates[4]].grid
    x_grid, h_grid, cell_grid = c.grid(0), c.grid(LSTM_OUTPUT_STATE), c.grid(LSTM_CELL_STATE)
    power = int(np.round(np.log2(float(cell_grid.scale))))
    if hidden is None or float(cell_grid.scale) != 2.0**power or not -15 <= power <= -9:
        raise Error("got no scale of the hidden state, or a cell on no power of two, need both")
    coupled = not c.has(1)

    def sat(x: Value) -> Value:
        return clamped(b, x, -32768, 32767)

    def rescaled(x: Value, w: int, grid: Any, to: float, bias: int | None) -> Value:
        total = sums(b, x, c.x(w), 0, 0, True)
        offset = -grid.zero * c.known(w).astype(np.int64).sum(axis=1)
        if bias is not None and c.has(bias):
            offset = offset + c.known(bias).astype(np.int64)
        m, shift = multiplier(float(np.float32(c.grid(w).scale) * np.float32(grid.scale) / np.float32(to)))
        return sat(two(b, b.add(total, b.const(offset)), m, shift))

    def table(x: Value, values: Any) -> Value:
        return cast(b, b.gather(b.const(values), b.add(cast(b, x, INT32), 32768), axis=0), INT64)

    def gate(g: int, x: Value, h: Value, cell: Value) -> Value:
        y = sat(b.add(rescaled(x, 1 + g, x_grid, 2.0**-12, 12 + g), rescaled(h, 5 + g, h_grid, 2.0**-12, None)))
        peephole = {INPUT: 9, FORGET: 10, OUTPUT: 11}.get(g)
        if peephole is not None and c.has(peephole):
            real = float(np.float32(2.0**power) * np.float32(c.grid(peephole).scale) / np.float32(2.0**-12))
            more = two(b, b.mul(cast(b, cell, INT64), cast(b, c.x(peephole), INT64)), *multiplier(real))
            y = sat(b.add(y, sat(more)))
        return table(y, tanh_table_16(3) if g == CELL else sigmoid_table_16())

    def clip(x: Value, most: float, scale: float, limit: int) -> Value:
        if most <= 0:
            return x
        n = min(int(np.float32(most) / np.float32(scale)), limit)
        return clamped(b, x, -n, n)

    def step(x: Value, h: Value, cell: Value) -> tuple[Value, Value]:
        wide = cast(b, cell, INT64)
        forget = gate(FORGET, x, h, cell)
        let_in = b.sub(b.const(np.int64(32767)), forget) if coupled else gate(INPUT, x, h, cell)
        kept = sat(halved_away(b, b.mul(forget, wide), 15))
        added = sat(halved_away(b, b.mul(let_in, gate(CELL, x, h, cell)), 30 + power))
        new = clip(sat(b.add(kept, added)), float(c.o["cell_clip"]), float(cell_grid.scale), 32767)
        new = cast(b, new, INT16)
        out = b.mul(gate(OUTPUT, x, h, new), table(new, tanh_table_16(15 + power)))
        y = stored(
            b, two(b, out, *multiplier(float(np.float32(2.0**-30) / np.float32(hidden.scale)))), INT8, hidden.zero
        )
        if c.has(16):
            m, shift = multiplier(
                float(np.float32(c.grid(16).scale) * np.float32(hidden.scale) / np.float32(h_grid.scale))
            )
            offset = -hidden.zero * c.known(16).astype(np.int64).sum(axis=1)
            if c.has(17):
                offset = offset + c.known(17).astype(np.int64)
            total = b.add(sums(b, y, c.x(16), 0, 0, True), b.const(offset))
            projected = b.add(two(b, total, m, shift), h_grid.zero)
            y = cast(b, clip(clamped(b, projected, -128, 127), float(c.o["proj_clip"]), float(h_grid.scale), 127), INT8)
        return y, new

    return step


# ---- simple recurrent networks ----


@reads("RNN")
def rnn(c: Context) -> Value:
    h = _recurrent(c, c.x(0), _state(c, 4))
    _keep(c, 4, h)
    return h


def _recurrent(c: Context, x: Value, h: Value) -> Value:
    b = c.b
    y = b.add(b.add(_product(c, x, 1), _product(c, h, 2)), c.x(3))
    return activated(b, y, c.o["fused_activation_function"])


@reads("UNIDIRECTIONAL_SEQUENCE_RNN")
def sequence_rnn(c: Context) -> Value:
    state = [_state(c, 4)]
    code = {RELU: "relu", TANH: "tanh"}.get(c.o["fused_activation_function"])
    if code and len(c.x(0).shape) == 3 and all(c.x(i).dtype.kind == "float" for i in range(4)):
        return _rnn_op(c, c.x(0), state[0], code)

    def one(now: Value) -> Value:
        state[0] = _recurrent(c, now, state[0])
        return state[0]

    y = _steps(c, c.x(0), bool(c.o["time_major"]), one)
    _keep(c, 4, state[0])
    return y


def _rnn_op(c: Context, x: Value, hidden: Value, activation: str) -> Value:
    b, time_major = c.b, bool(c.o["time_major"])
    axis = 0 if time_major else 1  # the axis of directions in the states
    bias = b.concat(c.x(3), b.const(np.zeros(c.x(3).shape, x.dtype.numpy)), axis=0)
    y, last = b.several(
        "rnn", x, b.expand_dims(c.x(1), axes=(0,)), b.expand_dims(c.x(2), axes=(0,)), b.expand_dims(bias, axes=(0,)),
        None, b.expand_dims(hidden, axes=(axis,)), activations=(activation,), batch_first=not time_major,
    )  # fmt: skip
    _keep(c, 4, b.squeeze(last, axes=(axis,)))
    return b.squeeze(y, axes=(1 if time_major else 2,))


@reads("SVDF")
def svdf(c: Context) -> Value:
    """Writes the features of each step to a memory, and returns the weighted sum over the memory's steps."""
    b, x, feature, time, state = c.b, c.x(0), c.x(1), c.x(2), _state(c, 4)
    batch, filters, memory, rank = x.shape[0], feature.shape[0], time.shape[1], int(c.o["rank"])
    if rank < 1 or filters % rank or time.shape[0] != filters:
        raise Error(f"got {filters} filters of rank {rank}, need a multiple")
    units = filters // rank
    integers = x.dtype is INT8
    if integers:
        grid, state_grid, to = c.grid(0), c.grid(4), c.out_grid
        first = np.float64(grid.scale) * np.float64(c.grid(1).scale) / np.float64(state_grid.scale)
        total = sums(b, x, feature, grid.zero, 0, True)
        column = stored(b, two(b, total, *multiplier(float(first))), state.dtype, 0)
    else:
        column = _product(c, x, 1)
    before = part(b, b.reshape(state, shape=(batch, filters, memory)), 2, 1, memory)
    moments = b.concat(before, b.reshape(column, shape=(batch, filters, 1)), axis=2)
    _keep(c, 4, b.reshape(moments, shape=state.shape))
    if integers:
        weighed = b.mul(cast(b, moments, INT64), cast(b, time, INT64))
        whole = b.reduce_sum(weighed, axes=(2,), keep_dims=False)
        whole = b.reduce_sum(b.reshape(whole, shape=(batch, units, rank)), axes=(2,), keep_dims=False)
        if c.has(3):
            whole = b.add(whole, cast(b, c.x(3), INT64))
        second = np.float64(state_grid.scale) * np.float64(c.grid(2).scale) / np.float64(to.scale)
        if c.o["fused_activation_function"] != RELU:
            raise Error("got int8 with another activation than relu, need relu")
        # LiteRT's kernel applies no relu. The lowest number that the result can store is usually 0, so storing clamps.
        return stored(b, two(b, whole, *multiplier(float(second))), INT8, to.zero)
    weights = time if time.dtype.kind == "float" else b.mul(cast(b, time, FP32), float(c.grid(2).scale))
    y = b.reduce_sum(b.mul(moments, weights), axes=(2,), keep_dims=False)
    y = b.reduce_sum(b.reshape(y, shape=(batch, units, rank)), axes=(2,), keep_dims=False)
    y = b.add(y, c.x(3)) if c.has(3) else y
    return activated(b, y, c.o["fused_activation_function"])

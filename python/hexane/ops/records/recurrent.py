"""RNN, GRU and LSTM, step by step, with ONNX's order of weights. Internally, the time axis comes first. In the host's
and the C99 runtime a network is one op, whose kernel runs all steps, if there is a kernel for its dtype and no gradient
reads its steps. Chips unroll the steps. Gradients are unrolled up to 64 steps, and loops for more steps.

x (time, batch, input), weight (directions, gates * hidden, input), recurrent (directions, gates * hidden, hidden), bias
(directions, 2 * gates * hidden): the input's bias, then the recurrent one; lengths (batch,); the initial states
(directions, batch, hidden). batch_first exchanges time (or directions) and batch in x, states and results.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hexane.dtypes import BOOL, INT32, INT64
from hexane.errors import Error
from hexane.graph import Graph, Node, Port, TensorType, Value, unique
from hexane.ops.attributes import Attr, finite, flag, number, text, texts
from hexane.ops.compose import Builder, WriteOutError, cast, check_lengths, checked_lengths, limited, part
from hexane.ops.dtype_rules import floating
from hexane.ops.element_functions import sigmoid, softplus
from hexane.ops.shape_rules import Shape
from hexane.ops.spec import Case, Op

Array = Any
State = tuple[Any, ...]
LONG_STEPS = 64  # For more steps, the gradient is a loop.
MAX_STEPS = 2048  # The most steps of an unrolled sequence; each step is several ops.
LOOP = "recurrent"  # the kernel's name
FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0), "sigmoid": sigmoid, "sigmoid_hard": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "softplus": softplus, "softsign": lambda x: x / (1 + np.abs(x)), "tanh": np.tanh,
}  # fmt: skip
LENGTHS, INITIAL = 4, 5  # input indices of lengths and initial states
PEEPHOLE = 7


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of recurrent network: its number of gates and states, and its default activations for one direction."""

    gates: int
    states: int
    defaults: tuple[str, ...]
    step: Callable[..., State]  # (b, direction, a step's inputs, state) -> state, built of ops.
    # The step in NumPy, for one item: (x, state, w, r, both biases, peephole, functions, attrs) -> state.
    next: Callable[..., State]


# ---- expansion to other ops ----


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction's weights. inputs: the products of x and the weight, plus its bias, (time, batch, gates *
    hidden)."""

    inputs: Value
    recurrent: Value  # (gates * hidden, hidden)
    bias: Value | None  # The bias of the recurrent product, (gates * hidden,).
    peephole: Value | None
    functions: Sequence[Callable[[Value], Value]]
    hidden: int
    attrs: Mapping[str, Any]


def _gate(b: Builder, d: Direction, x: Value, index: int, axis: int = 1) -> Value:
    """Returns the part of x for one gate."""
    return part(b, x, axis, index * d.hidden, (index + 1) * d.hidden)


def _clipped(b: Builder, d: Direction, x: Value) -> Value:
    bound = d.attrs["clip"]
    return b.clip(x, alpha=-bound, beta=bound) if bound else x


def _product(b: Builder, d: Direction, hidden: Value) -> Value:
    return b.matmul(hidden, d.recurrent, d.bias, transpose_y=True)


def _rnn_step(b: Builder, d: Direction, x: Value, state: State) -> State:
    return (d.functions[0](_clipped(b, d, b.add(x, _product(b, d, state[0])))),)


def _gru_step(b: Builder, d: Direction, x: Value, state: State) -> State:
    (hidden,) = state
    together = 3 if d.attrs["linear_before_reset"] else 2
    bias = None if d.bias is None else part(b, d.bias, 0, 0, together * d.hidden)
    product = b.matmul(hidden, part(b, d.recurrent, 0, 0, together * d.hidden), bias, transpose_y=True)
    update, reset = (
        d.functions[0](_clipped(b, d, b.add(_gate(b, d, x, i), _gate(b, d, product, i)))) for i in range(2)
    )
    if d.attrs["linear_before_reset"]:
        inner = b.mul(reset, _gate(b, d, product, 2))
    else:
        last = None if d.bias is None else _gate(b, d, d.bias, 2, 0)
        inner = b.matmul(b.mul(reset, hidden), _gate(b, d, d.recurrent, 2, 0), last, transpose_y=True)
    new = d.functions[1](_clipped(b, d, b.add(_gate(b, d, x, 2), inner)))
    return (b.add(b.mul(b.sub(1.0, update), new), b.mul(update, hidden)),)


def _lstm_step(b: Builder, d: Direction, x: Value, state: State) -> State:
    """The peepholes of i and f read the old cell, and the peephole of o reads the new cell. With input_forget, the
    forget gate is 1 minus the input gate."""
    hidden, cell = state
    total = b.add(x, _product(b, d, hidden))

    def opened(index: int, seen: Value) -> Value:
        value = _gate(b, d, total, index)
        if d.peephole is not None:
            value = b.add(value, b.mul(_gate(b, d, d.peephole, index, 0), seen))
        return d.functions[0](_clipped(b, d, value))

    enter = opened(0, cell)
    keep = b.sub(1.0, enter) if d.attrs.get("input_forget") else opened(2, cell)
    new = b.mul(enter, d.functions[1](_clipped(b, d, _gate(b, d, total, 3))))
    after = b.add(b.mul(keep, cell), new)
    return b.mul(opened(1, after), d.functions[2](after)), after


def _expansion(cell: Cell, long: bool = False) -> Callable[..., Any]:
    """Returns the expansion of a cell. long: sequences of more than LONG_STEPS become loops, because their gradients
    need loops."""

    def expand(b: Builder, x: Value, *rest: Value | None, **attrs: Any) -> list[Value]:
        functions = [lambda v, name=name: b.apply(name, v) for name in attrs["activations"]]
        return _written_out(b, cell, functions, long, x, rest, attrs)

    return expand


def write_steps(
    b: Builder, op: str, functions: Sequence[Callable[[Value], Value]], *inputs: Value | None, **attrs: Any
) -> list[Value]:
    """Writes a network with any activations in other ops, and a sequence of more than LONG_STEPS as a loop.

    functions: the activations of each direction, in the op's order. attrs: the op's other attributes. An LSTM also has
    input_forget. The caller has checked the operands.
    """
    x, *rest = inputs
    assert x is not None
    return _written_out(b, CELLS[op], functions, True, x, rest, attrs)


def _written_out(
    b: Builder, cell: Cell, functions: Sequence[Callable[[Value], Value]], long: bool,
    x: Value, rest: Sequence[Value | None], attrs: Mapping[str, Any],
) -> list[Value]:  # fmt: skip
    weights, lengths, peephole, initial = _sorted(cell, rest)
    x = _time_first(b, x, attrs)
    is_loop = long and x.shape[0] > LONG_STEPS
    if x.shape[0] > MAX_STEPS and not is_loop:
        raise WriteOutError(
            f"[{b.sources[0] if b.sources else 'recurrent'}] got {x.shape[0]} steps to write out, need at most"
            f" {MAX_STEPS}: use shorter sequences, or fp32 on the host"
        )
    if attrs["batch_first"]:
        initial = [None if v is None else b.transpose(v, perm=(1, 0, 2)) for v in initial]
    if lengths is not None:
        lengths = checked_lengths(b, lengths, x.shape[0])
    directions, width = weights[0].shape[:2]
    zeros = np.zeros((x.shape[1], weights[1].shape[-1]), x.dtype.numpy)
    outs, ends = [], []
    for i in range(directions):
        r = _direction(b, weights[1], i)
        bias, p, *start = (v and _direction(b, v, i) for v in (weights[2], peephole, *initial))
        own = None if bias is None else part(b, bias, 0, width, 2 * width)
        inputs = _input_products(b, x, weights[0], weights[2], i)
        d = Direction(inputs, r, own, p, functions[i * len(cell.defaults) :], r.shape[-1], attrs)
        state = tuple(b.const(zeros) if v is None else v for v in start)
        steps = _looped if is_loop else _unrolled
        out, last = steps(b, cell, d, state, lengths, attrs["direction"] == "reverse" or i == 1)
        outs.append(out)
        ends.append(last)
    results = [b.stack(*outs, axis=1), *(b.stack(*values, axis=0) for values in zip(*ends, strict=True))]
    if attrs["batch_first"]:
        results = [b.transpose(v, perm=(2, 0, 1, 3) if i == 0 else (1, 0, 2)) for i, v in enumerate(results)]
    return results


def _time_first(b: Builder, x: Value, attrs: Mapping[str, Any]) -> Value:
    return b.transpose(x, perm=(1, 0, 2)) if attrs["batch_first"] else x


def _input_products(b: Builder, x: Value, weight: Value, bias: Value | None, index: int) -> Value:
    """Returns the products of one direction's inputs for all steps, (time, batch, gates * hidden)."""
    own = None if bias is None else part(b, _direction(b, bias, index), 0, 0, weight.shape[1])
    return b.matmul(x, _direction(b, weight, index), own, transpose_y=True)


def is_written_out(b: Builder, node: Node, nodes: Container[Node]) -> bool:
    """True if `nodes` also has the expansion of this recurrent op, because gradients of short sequences read values of
    the expansion."""
    x, weight, _, bias = node.inputs[:4]
    assert x is not None
    assert weight is not None
    if x.shape[1 if node.attrs["batch_first"] else 0] > LONG_STEPS:
        return False
    return _input_products(b, _time_first(b, x, node.attrs), weight, bias, 0).node in nodes


def _direction(b: Builder, v: Value, index: int) -> Value:
    return b.reshape(part(b, v, 0, index, index + 1), shape=v.shape[1:])


def _sorted(cell: Cell, rest: Sequence[Any]) -> tuple[list[Any], Any, Any, list[Any]]:
    """Returns (weight, recurrent, bias), lengths, peephole and initial states from the inputs after x."""
    weight, recurrent, bias, lengths, *more = rest
    peephole = more[2] if cell.states == 2 else None
    return [weight, recurrent, bias], lengths, peephole, more[: cell.states]


def _unrolled(
    b: Builder, cell: Cell, d: Direction, state: State, lengths: Value | None, backwards: bool
) -> tuple[Value, State]:
    """Returns (time, batch, hidden) and the last state. After a sequence's end the state is kept and the output is
    0."""
    time = d.inputs.shape[0]
    outs: dict[int, Value] = {}
    for t in reversed(range(time)) if backwards else range(time):
        x = b.reshape(part(b, d.inputs, 0, t, t + 1), shape=d.inputs.shape[1:])
        at = None if lengths is None else b.const(np.array(t, lengths.dtype.numpy))
        outs[t], state = _step(b, cell, d, x, state, lengths, at)
    return b.stack(*(outs[t] for t in range(time)), axis=0), state


def _step(
    b: Builder, cell: Cell, d: Direction, x: Value, state: State, lengths: Value | None, at: Value | None
) -> tuple[Value, State]:
    """Returns the output and the next state of a step. at: the step's number, in the dtype of the lengths."""
    after = cell.step(b, d, x, state)
    out = after[0]
    if lengths is not None:
        running = b.reshape(b.greater(lengths, at), shape=(lengths.shape[0], 1))
        after = tuple(b.select(running, new, old) for new, old in zip(after, state, strict=True))
        out = b.select(running, out, b.const(np.zeros((), d.inputs.dtype.numpy)))
    return out, after


def _looped(
    b: Builder, cell: Cell, d: Direction, state: State, lengths: Value | None, backwards: bool
) -> tuple[Value, State]:
    """Like _unrolled, but writes one loop."""
    time = d.inputs.shape[0]
    step, going = unique("input", "step", TensorType(INT64, ())), unique("input", "condition", TensorType(BOOL, ()))
    outer = dict.fromkeys(v for v in (d.inputs, d.recurrent, d.bias, d.peephole, lengths) if v is not None)
    before = [unique("input", f"state{i}", v.type) for i, v in enumerate(state)]
    inner = {v: unique("input", f"value{i}", v.type) for i, v in enumerate(outer)}
    at = b.sub(time - 1, step) if backwards else step
    own = replace(
        d, inputs=inner[d.inputs], recurrent=inner[d.recurrent], bias=d.bias and inner[d.bias],
        peephole=d.peephole and inner[d.peephole],
    )  # fmt: skip
    many = None if lengths is None else cast(b, inner[lengths], INT64)
    out, after = _step(b, cell, own, b.gather(own.inputs, at, axis=0), tuple(before), many, at)
    names = ["condition", *(f"state{i}" for i in range(len(state))), "y"]
    results = [b.const(np.array(True)), *after, out]
    ports = tuple(Port(f"next_{name}", value) for name, value in zip(names, results, strict=True))
    body = Graph((step, going, *before, *inner.values()), ports, name="body")
    *last, y, _ = b.several(
        "loop", b.const(np.array(time)), None, *state, *outer, body=body, carried=len(state), most=time, whole=True
    )
    return b.gather(y, b.const(np.arange(time)[::-1].copy()), axis=0) if backwards else y, tuple(last)


# ---- reference: one item of the batch and one step at a time ----


def _rnn_next(x: Array, state: State, w: Array, r: Array, bx: Array, bh: Array, p: Any, f: Any, attrs: Any) -> State:
    return (f[0](_bounded(w @ x + bx + r @ state[0] + bh, attrs)),)


def _gru_next(x: Array, state: State, w: Array, r: Array, bx: Array, bh: Array, p: Any, f: Any, attrs: Any) -> State:
    (h,) = state
    wz, wr, wh = np.split(w, 3)
    rz, rr, rh = np.split(r, 3)
    (xz, xr, xh), (hz, hr, hh) = np.split(bx, 3), np.split(bh, 3)
    z = f[0](_bounded(wz @ x + xz + rz @ h + hz, attrs))
    reset = f[0](_bounded(wr @ x + xr + rr @ h + hr, attrs))
    inner = reset * (rh @ h + hh) if attrs["linear_before_reset"] else rh @ (reset * h) + hh
    return ((1 - z) * f[1](_bounded(wh @ x + xh + inner, attrs)) + z * h,)


def _lstm_next(x: Array, state: State, w: Array, r: Array, bx: Array, bh: Array, p: Any, f: Any, attrs: Any) -> State:
    h, c = state
    i, o, forget, new = np.split(w @ x + bx + r @ h + bh, 4)
    pi, po, pf = np.split(p, 3) if p is not None else (0.0, 0.0, 0.0)
    cell = f[0](_bounded(forget + pf * c, attrs)) * c
    cell = cell + f[0](_bounded(i + pi * c, attrs)) * f[1](_bounded(new, attrs))
    return f[0](_bounded(o + po * cell, attrs)) * f[2](cell), cell


def _bounded(x: Array, attrs: Mapping[str, Any]) -> Array:
    return np.clip(x, -attrs["clip"], attrs["clip"]) if attrs["clip"] else x


def _meaning(cell: Cell) -> Callable[..., list[Array]]:
    def ref(x: Array, *rest: Array | None, **attrs: Any) -> list[Array]:
        (weight, recurrent, bias), lengths, peephole, initial = _sorted(cell, rest)
        order = (1, 0, 2) if attrs["batch_first"] else (0, 1, 2)
        x = np.transpose(x, order)
        time, batch, _ = x.shape
        directions, width, hidden = recurrent.shape
        if lengths is not None:
            check_lengths(lengths, time)
        bias = np.zeros((directions, 2 * width)) if bias is None else bias
        y = np.zeros((time, directions, batch, hidden))
        ends = [np.zeros((directions, batch, hidden)) if v is None else np.transpose(v, order).copy() for v in initial]
        for k in range(directions):
            functions = [FUNCTIONS[name] for name in attrs["activations"][k * len(cell.defaults) :]]
            for item in range(batch):
                steps = range(time if lengths is None else int(lengths[item]))
                state = tuple(v[k, item] for v in ends)
                for t in reversed(steps) if attrs["direction"] == "reverse" or k == 1 else steps:
                    state = cell.next(x[t, item], state, weight[k], recurrent[k], bias[k, :width], bias[k, width:],
                                      None if peephole is None else peephole[k], functions, attrs)  # fmt: skip
                    y[t, k, item] = state[0]
                for end, value in zip(ends, state, strict=True):
                    end[k, item] = value
        if attrs["batch_first"]:
            return [np.transpose(y, (2, 0, 1, 3)), *(np.transpose(v, order) for v in ends)]
        return [y, *ends]

    return ref


# ---- shapes, dtypes and the record ----


def _shapes(cell: Cell) -> Callable[..., list[Shape]]:
    def shape(x: Shape, *rest: Shape | None, direction: str, batch_first: bool, **_: Any) -> list[Shape]:
        (weight, recurrent, bias), lengths, peephole, initial = _sorted(cell, rest)
        if len(x) != 3 or len(weight) != 3 or len(recurrent) != 3:
            raise Error(f"got x {x}, weight {weight} and recurrent {recurrent}, need 3 axes each")
        time, batch = (x[1], x[0]) if batch_first else x[:2]
        directions, hidden = recurrent[0], recurrent[-1]
        if directions != (2 if direction == "bidirectional" else 1):
            raise Error(f"direction: got {direction!r} for {directions} sets of weights")
        if time < 1:
            raise Error(f"got {time} steps, need at least 1")
        state = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
        width = cell.gates * hidden
        for name, got, need in (
            ("weight", weight, (directions, width, x[2])),
            ("recurrent", recurrent, (directions, width, hidden)),
            ("bias", bias, (directions, 2 * width)),
            ("lengths", lengths, (batch,)),
            ("peephole", peephole, (directions, 3 * hidden)),
            *(("initial state", v, state) for v in initial),
        ):
            if got is not None and got != need:
                raise Error(f"{name}: got the shape {got}, need {need}: {cell.gates} gates of {hidden}")
        y = (batch, time, directions, hidden) if batch_first else (time, directions, batch, hidden)
        return [y, *[state] * cell.states]

    return shape


def _dtype(*dtypes: Any, **_: Any) -> Any:
    lengths = dtypes[LENGTHS]
    if lengths not in (None, INT32, INT64):
        raise Error(f"got lengths of dtype {lengths}, need int32 or int64")
    return floating(*dtypes[:LENGTHS], *dtypes[INITIAL:])


def _filled(cell: Cell) -> Callable[..., dict[str, Any]]:
    def canonical(types: Sequence[TensorType | None], attrs: Mapping[str, Any]) -> dict[str, Any]:
        directions = 2 if attrs["direction"] == "bidirectional" else 1
        names = attrs["activations"] or cell.defaults
        if len(names) == len(cell.defaults):
            names = names * directions
        if len(names) != len(cell.defaults) * directions:
            raise Error(f"activations: got {names}, need {len(cell.defaults)} for each direction")
        return {**attrs, "activations": names}

    return canonical


def _bounds(types: Sequence[TensorType | None], attrs: Mapping[str, Any]) -> None:
    x, recurrent = types[0], types[2]
    if attrs["clip"] < 0:
        raise Error(f"clip: got {attrs['clip']}, need a number that is not negative")
    if x is not None and recurrent is not None and x.rank == 3 and recurrent.rank == 3:
        limited(x.shape[0 if attrs["batch_first"] else 1] * recurrent.shape[-1], x.dtype.numpy)  # initial zeros


_ATTRS: dict[str, Attr] = {
    "direction": text("forward", ("forward", "reverse", "bidirectional")), "activations": texts((), tuple(FUNCTIONS)),
    "clip": number(0.0), "batch_first": flag(False),
}  # fmt: skip
_SHAPES = (
    " Shapes: x (time, batch, input), weight (directions, {n} * hidden, input), recurrent (directions, {n} * hidden, "
    "hidden), bias (directions, 2 * {n} * hidden), lengths (batch,), initial states (directions, batch, hidden). "
    "Returns y (time, directions, batch, hidden) and the last states; with batch_first, x is (batch, time, input), "
    "y (batch, time, directions, hidden) and states (batch, directions, hidden). The activations are {a}, for one or each "
    "direction. A clip other than 0 bounds their operands."
)


def _network(
    name: str,
    doc: str,
    cell: Cell,
    extra: tuple[str, ...] = (),
    attrs: Mapping[str, Attr] | None = None,
    cases: Any = (),
) -> Op:
    states = ("h", "c")[: cell.states]
    return Op(
        name=name, doc=doc + _SHAPES.format(n=cell.gates, a=", ".join(cell.defaults) + " by default"),
        inputs=("x", "weight", "recurrent", "bias?", "lengths?", *(f"initial_{s}?" for s in states), *extra),
        outputs=("y", *(f"y_{s}" for s in states)), attrs={**_ATTRS, **(attrs or {})}, shape=_shapes(cell), dtype=_dtype,
        check=(finite("clip"), _bounds), canonical=_filled(cell), expand=_expansion(cell), ref=_meaning(cell), cases=cases,
        expand_for_gradients=_expansion(cell, long=True),
    )  # fmt: skip


def _sequences(gates: int, states: int, *lengths: int, peephole: bool = False, seed: int = 0) -> tuple[Array, ...]:
    """Returns test inputs for two directions, with items of these lengths, of at most 5 steps."""
    rng = np.random.default_rng(seed)
    batch, hidden = len(lengths), 4
    shapes = [(5, batch, 3), (2, gates * hidden, 3), (2, gates * hidden, hidden), (2, 2 * gates * hidden)]
    shapes += [(2, batch, hidden)] * states + [(2, 3 * hidden)] * peephole
    arrays = [rng.uniform(-1, 1, s).astype(np.float32) for s in shapes]
    return (*arrays[:LENGTHS], np.array(lengths, np.int32), *arrays[LENGTHS:])


_BOTH = {"direction": "bidirectional"}
CELLS = {
    "rnn": Cell(1, 1, ("tanh",), _rnn_step, _rnn_next),
    "gru": Cell(3, 1, ("sigmoid", "tanh"), _gru_step, _gru_next),
    "lstm": Cell(4, 2, ("sigmoid", "tanh", "tanh"), _lstm_step, _lstm_next),
}

OPS = (
    _network(
        "rnn", "A recurrent network: h = f(weight x + recurrent h + both biases).",
        CELLS["rnn"],
        cases=(Case(((5, 2, 3), (1, 4, 3), (1, 4, 4), (1, 8)), low=-1, high=1),
               Case(arrays=_sequences(1, 1, 5, 2), attrs={**_BOTH, "activations": ("relu", "softsign")})),
    ),
    _network(
        "gru", "Gated recurrent units, with the gates in the order update, reset, new. With linear_before_reset the "
            "reset gate scales the product with the recurrent weight, else the product's operand h.",
        CELLS["gru"], attrs={"linear_before_reset": flag(False)},
        cases=(Case(((5, 2, 3), (1, 12, 3), (1, 12, 4), (1, 24)), {"linear_before_reset": True}, low=-1, high=1),
               Case(((2, 5, 3), (1, 12, 3), (1, 12, 4)), {"direction": "reverse", "batch_first": True}, low=-1, high=1),
               Case(arrays=_sequences(3, 1, 4, 0, 5), attrs={**_BOTH, "clip": 0.5})),
    ),
    _network(
        "lstm", "Long short-term memory, with the gates in the order input, output, forget, new. With a peephole "
                "(directions, 3 * hidden), the first three gates also read the cell.",
        CELLS["lstm"], extra=("peephole?",),
        cases=(Case(((5, 2, 3), (1, 16, 3), (1, 16, 4), (1, 32)), low=-1, high=1),
               Case(((2, 5, 3), (2, 16, 3), (2, 16, 4)), {**_BOTH, "batch_first": True}, low=-1, high=1),
               Case(arrays=_sequences(4, 2, 1, 5, peephole=True), attrs={**_BOTH, "clip": 0.8})),
    ),
)  # fmt: skip


# ---- one op for all steps ----


def loop_name(op: str, room: bool = False) -> str:
    """Returns the name of the op whose kernel runs all steps of a network. room: the op with an output that is the
    kernel's scratch."""
    return f"cpu.{op}{'_with_room' * room}"


def _loop(op: Op, room: bool = False) -> Op:
    def shape(*shapes: Shape | None, sequence: bool, **attrs: Any) -> list[Shape]:
        y, *states = op.shape(*shapes, **attrs)
        if not sequence:
            y = (y[0], 1, *y[2:]) if attrs["batch_first"] else (1, *y[1:])
        return [y, *states, *[y[-1:]] * room]

    def ref(*arrays: Array, sequence: bool, **attrs: Any) -> list[Array]:
        y, *states = op.ref(*arrays, **attrs)
        if not sequence:
            y = np.zeros_like(y[:, :1] if attrs["batch_first"] else y[:1])
        return [y, *states, *[np.zeros_like(y, shape=y.shape[-1:])] * room]

    def kernel_attrs(inputs: Any, attrs: Mapping[str, Any]) -> dict[str, Any]:
        names = sorted(FUNCTIONS)
        return {
            "cell": op.name, "batch_first": attrs["batch_first"], "reverse": attrs["direction"] == "reverse",
            "linear_before_reset": attrs.get("linear_before_reset", False), "clip": attrs["clip"],
            "activations": [names.index(name) for name in attrs["activations"]],
        }  # fmt: skip

    return Op(
        name=loop_name(op.name, room),
        doc=f"{op.name} as its kernel runs it: lengths are int64, from 0 to the number of steps. sequence: y has all "
        "steps; otherwise y has one row without meaning." + " room: scratch of one hidden state." * room,
        inputs=op.inputs, outputs=(*op.outputs, *["room"] * room), attrs={**(op.attrs or {}), "sequence": flag(True)}, shape=shape,
        dtype=op.dtype, check=op.check, canonical=op.canonical, kernel=LOOP, kernel_attrs=kernel_attrs, level="kernel",
        ref=ref, cases=(),
    )  # fmt: skip


RECURRENT = tuple(op.name for op in OPS)
LOOPS = (*map(_loop, OPS), _loop(OPS[RECURRENT.index("gru")], room=True))
